"""Objects + runtime + program + manifest + weights -> one shared library, and its C header.

Equal inputs give equal bytes: the linker runs in a folder of its own with fixed relative names, and
nothing it writes depends on place or time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from tcc.backends.header import model_header
from tcc.backends.host import decode_program
from tcc.backends.images import GpuImages, encode_images
from tcc.backends.toolchain import (
    Toolchain,
    find_toolchain,
    run_tool,
    runtime_folder,
    runtime_objects,
)
from tcc.errors import InternalError, ToolError
from tcc.ir.container import (
    ABI_VERSION,
    LISTINGS_SECTION,
    MANIFEST_SECTION,
    SIDE_SUFFIX,
    TRAILER,
    TRAILER_MAGIC,
    TRAILER_VERSION,
)
from tcc.ir.program import IntOp, Let, Port, Program
from tcc.target import isa_feature

BytesLike: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, Any]  # row-major

EXPORTS = (
    "tcc_artifact_api",
    "__tvm_ffi_main",
    "__tvm_ffi_run_into",
    "__tvm_ffi__metadata_main",
    "__tvm_ffi__doc_main",
)
# Weights of this size and more start at a huge page's boundary in the file.
_HUGE_PAGE = 2 << 20
_PAGE = 64 << 10
_LINE = 64
# Some tools treat files above 2 GiB badly, so larger weights go beside the artifact.
_MOST_EMBEDDED = 2 << 30

_LINK_FLAGS = (
    "-shared", "-fPIC", "-Wl,--version-script=exports.map", "-Wl,--build-id=none",
    "-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,-z,defs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weight section's parts in order, their size and content hash.

    The last `images` bytes of it are kernels for GPUs.
    """

    parts: Sequence[BytesLike]
    size: int
    sha256: bytes
    images: int


def c_name(text: str) -> str:
    """`text` as a C identifier: what an artifact's model name may be."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII) or "model"
    return name if not name[0].isdigit() else f"model_{name}"


def link_artifact(
    objects: Sequence[bytes],
    program: bytes,
    kernels: Sequence[str],
    manifest: dict[str, Any],
    weights: Sequence[BytesLike],
    name: str,
    out: Path,
    features: Sequence[str],
    *,
    triple: str = "",
    side_file: bool = False,
    gpu: GpuImages | None = None,
    listings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Writes the artifact `out`, and its C header beside it with the suffix `.h`.

    `objects` are ELF relocatable files that define `kernels` (hidden, with the kernel ABI of
    runtime.h), in the order of the program's kernel numbers.  `weights` are the parts of the weight
    section, which starts 64-byte aligned; offsets inside it are the caller's.  `name` is a C
    identifier (`c_name`).  `features` are what the CPU must have.  The manifest is `manifest` and
    what is known here: abi, name, inputs, outputs, kernel_count, features, weights, arena_bytes.
    `gpu` holds the kernels in place of `objects`, for a program that runs on a GPU; they go behind
    the weights, and the manifest's `gpu` says where and for what.
    `listings` are kept beside the code, for people.
    Returns it.  Files are written beside, then renamed.  Raises ToolError where no compiler is
    found or it fails, or `out` cannot be written.
    """
    decoded = decode_program(program)
    if decoded.kernels != tuple(kernels) or name != c_name(name):
        raise InternalError("kernels or name do not fit the program", where="link")
    images = encode_images(gpu) if gpu else b""
    section = _measure(weights, images)
    side = side_file or section.size > _MOST_EMBEDDED
    full = _complete(manifest, decoded, name, features, section, side)
    if gpu:
        full["gpu"] = _describe_images(gpu, section)
    toolchain = find_toolchain(triple)
    text = json.dumps(full, sort_keys=True, indent=1, ensure_ascii=True)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tcc-", dir=out.parent) as made:
            folder = Path(made)
            _write_inputs(folder, objects, program, decoded.kernels, text, name, features, section)
            _write_listings(folder, listings)
            _link(toolchain, folder, len(objects))
            _append_weights(folder, section, side)
            (folder / "model.h").write_text(model_header(name, decoded, full))
            _publish(folder, out, side and section.size > 0)
    except OSError as error:
        raise ToolError(
            "the artifact cannot be written",
            where=str(error.filename or out),
            why=error.strerror or str(error),
            hint="choose another place with -o",
        ) from error
    return full


def _bytes_of(part: BytesLike) -> memoryview:
    if isinstance(part, np.ndarray):
        return part.reshape(-1).view(np.uint8).data
    return memoryview(part).cast("B")


def _measure(weights: Sequence[BytesLike], images: bytes) -> _Weights:
    parts = list(weights)
    if images:
        parts += [bytes(-sum(_bytes_of(part).nbytes for part in parts) % _LINE), images]
    digest, size = hashlib.sha256(), 0
    for part in parts:
        view = _bytes_of(part)
        digest.update(view)
        size += view.nbytes
    return _Weights(parts, size, digest.digest(), len(images))


def _describe_images(gpu: GpuImages, weights: _Weights) -> dict[str, Any]:
    return {
        "platform": gpu.platform.name.lower(),
        "offset": weights.size - weights.images,
        "bytes": weights.images,
        "variants": [{"arch": v.arch, "form": v.form.name.lower()} for v in gpu.variants],
    }


def _complete(
    manifest: dict[str, Any],
    program: Program,
    name: str,
    features: Sequence[str],
    weights: _Weights,
    side: bool,
) -> dict[str, Any]:
    constants = constant_registers(program)
    return {
        **manifest,
        "abi": ABI_VERSION,
        "name": name,
        "inputs": [_describe(port, constants) for port in program.inputs],
        "outputs": [_describe(port, constants) for port in program.outputs],
        "kernel_count": len(program.kernels),
        "features": list(features),
        "arena_bytes": constants.get(program.arena),
        "weights": {
            "bytes": weights.size,
            "sha256": weights.sha256.hex(),
            "place": "side file" if side else "artifact",
        },
    }


def _describe(port: Port, constants: dict[int, int]) -> dict[str, Any]:
    return {
        "name": port.name,
        "dtype": port.dtype.name,
        "shape": [constants.get(register) for register in port.dims],
        "text": port.text,
        "state": port.state,
    }


def constant_registers(program: Program) -> dict[int, int]:
    """Values of the registers that the program's front sets to constants."""
    constants: dict[int, int] = {}
    for instr in program.body:
        if isinstance(instr, Let) and instr.op is IntOp.CONST:
            constants[instr.target] = instr.a
        elif isinstance(instr, Let):
            constants.pop(instr.target, None)
    return constants


def _write_inputs(
    folder: Path,
    objects: Sequence[bytes],
    program: bytes,
    kernels: tuple[str, ...],
    manifest: str,
    name: str,
    features: Sequence[str],
    weights: _Weights,
) -> None:
    for i, data in enumerate(objects):
        (folder / f"object{i}.o").write_bytes(data)
    (folder / "program.bin").write_bytes(program)
    (folder / "manifest.json").write_text(manifest, encoding="ascii")
    exports = "".join(f" {symbol};" for symbol in (f"{name}_api", *EXPORTS))
    (folder / "exports.map").write_text(f"{{ global:{exports} local: *; }};\n")
    (folder / "artifact.c").write_text(_artifact_source(kernels, name, features, weights))


def _write_listings(folder: Path, listings: Mapping[str, str] | None) -> None:
    """C for a section that no program loads; nothing where there are no listings."""
    source = ""
    if listings:
        packed = zlib.compress(json.dumps(dict(listings)).encode(), 9)
        (folder / "listings.bin").write_bytes(packed)
        source = (
            f'__asm__(".pushsection {LISTINGS_SECTION},\\"\\",@progbits\\n"\n'
            '        ".incbin \\"listings.bin\\"\\n.popsection\\n");\n'
        )
    (folder / "listings.h").write_text(source)


def _artifact_source(
    kernels: tuple[str, ...], name: str, features: Sequence[str], weights: _Weights
) -> str:
    """C that ties one artifact together: kernel table, program, manifest, and the two exports."""
    linked = () if weights.images else kernels  # those of GPUs are not linked
    for kernel in linked:
        if not re.fullmatch(r"[A-Za-z_.$][\w.$]*", kernel, flags=re.ASCII):
            raise InternalError(f"'{kernel}' cannot be a symbol", where="link")
    declarations = "\n".join(
        f'extern __attribute__((visibility("hidden"))) void tcc_k{i}(void *const *, '
        f'const int64_t *, int64_t, int64_t, void *) __asm__("{kernel}");'
        for i, kernel in enumerate(linked)
    )
    table = ", ".join(f"tcc_k{i}" for i in range(len(linked))) or "0"
    rows = [isa_feature(feature) for feature in features]
    checks = ", ".join(
        f'{{"{row.name}", {row.leaf}u, {row.subleaf}u, {row.reg}u, {row.bit}u, {row.xcr0}ull}}'
        for row in rows
    )
    digest = ", ".join(str(byte) for byte in weights.sha256)
    return f"""#include "runtime.h"
#include "listings.h"

{declarations}
static const tcc_kernel kernels[] = {{{table}}};
static const tcc_feature features[] = {{{checks or "{0, 0, 0, 0, 0, 0}"}}};

__asm__(".pushsection .rodata.tcc.program,\\"a\\"\\n"
        ".balign 64\\n"
        "tcc_program_begin: .incbin \\"program.bin\\"\\n"
        "tcc_program_end: .byte 0\\n"
        ".section {MANIFEST_SECTION},\\"a\\"\\n"
        "tcc_manifest_begin: .incbin \\"manifest.json\\"\\n"
        "tcc_manifest_end:\\n"
        ".popsection\\n");
#define HIDDEN extern __attribute__((visibility("hidden")))
HIDDEN const uint8_t tcc_program_begin[], tcc_program_end[];
HIDDEN const char tcc_manifest_begin[], tcc_manifest_end[];

const tcc_artifact tcc_artifact_info = {{
    .abi = {ABI_VERSION},
    .name = "{name}",
    .program = tcc_program_begin,
    .program_end = tcc_program_end,
    .manifest = tcc_manifest_begin,
    .manifest_end = tcc_manifest_end,
    .kernels = kernels,
    .n_kernels = {len(kernels)},
    .features = features,
    .n_features = {len(rows)},
    .weight_bytes = {weights.size}ull,
    .images_offset = {weights.size - weights.images}ull,
    .images_bytes = {weights.images}ull,
    .weight_sha256 = {{{digest}}},
}};

#define EXPORT __attribute__((visibility("default")))
EXPORT const tcc_api *tcc_artifact_api(void) {{ return tcc_runtime_api(); }}
EXPORT const tcc_api *{name}_api(void) {{ return tcc_runtime_api(); }}
"""


def _link(toolchain: Toolchain, folder: Path, objects: int) -> None:
    base = runtime_folder()
    compile_flags = (
        "-std=c11", "-O1", "-g0", "-fPIC", "-fvisibility=hidden",
        f"-I{base / 'include'}", f"-I{base / 'src'}", "-I.",
    )  # fmt: skip
    run_tool((*toolchain.command, *compile_flags, "-c", "artifact.c", "-o", "artifact.o"), folder)
    runtime = [str(path) for path in runtime_objects(toolchain)]
    inputs = ["artifact.o", *(f"object{i}.o" for i in range(objects)), *runtime]
    libraries = ("-lm", "-lpthread", "-ldl")
    run_tool((*toolchain.command, *_LINK_FLAGS, *inputs, *libraries, "-o", "model.so"), folder)


def _append_weights(folder: Path, weights: _Weights, side: bool) -> None:
    """Behind the ELF image (or into the side file): padding, the parts, the trailer."""
    if weights.size == 0:
        return
    with (folder / ("weights" if side else "model.so")).open("ab") as file:
        unit = _HUGE_PAGE if weights.size >= _HUGE_PAGE else _PAGE
        offset = (file.tell() + unit - 1) // unit * unit
        file.truncate(offset)
        file.seek(offset)
        _write_weights(file, offset, weights)


def _write_weights(file: BinaryIO, offset: int, weights: _Weights) -> None:
    for part in weights.parts:
        file.write(_bytes_of(part))
    file.write(TRAILER.pack(TRAILER_MAGIC, TRAILER_VERSION, offset, weights.size, weights.sha256))


def _publish(folder: Path, out: Path, side: bool) -> None:
    """The artifact last: whoever sees it sees what belongs to it."""
    (folder / "model.so").chmod(0o755)
    beside = out.with_name(out.name + SIDE_SUFFIX)
    if side:
        os.replace(folder / "weights", beside)
    os.replace(folder / "model.h", out.with_suffix(".h"))
    os.replace(folder / "model.so", out)
