"""Links objects, runtime, program, manifest and weights into one file, with a C header.

Equal inputs give equal bytes: the linker runs in a new folder with fixed relative names, and its
output depends neither on the folder nor on the time.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tcc.backends.artifact.assets import NO_ASSETS, asset_entries, write_assets
from tcc.backends.artifact.emit import link_object, section_header, side_path
from tcc.backends.artifact.gpu_binaries import encode_images
from tcc.backends.artifact.header import model_header
from tcc.backends.artifact.identifiers import transliterated
from tcc.backends.artifact.publish import folder_beside
from tcc.backends.artifact.toolchain import (
    Toolchain,
    find_toolchain,
    run_tool,
    runtime_folder,
    runtime_objects,
)
from tcc.backends.artifact.variant import (
    Variant,
    check_variants,
    describe_ports,
    describe_variant,
    row_source,
    variant_source,
)
from tcc.backends.artifact.weight_section import Range, Section, append_section, lay_out
from tcc.errors import InternalError, UserError
from tcc.options import EMITS, is_reserved
from tcc.runtime.sections import (
    ABI_VERSION,
    LISTINGS_SECTION,
    MANIFEST_SECTION,
    MOST_LISTINGS,
    SEAL,
    SEAL_MAGIC,
)
from tcc.runtime.soname import ROOM, set_soname
from tcc.zipped import zip_equal

EXPORTS = (
    "tcc_artifact_api",
    "tcc_python_functions",
    "__tvm_ffi_main",
    "__tvm_ffi_run_into",
    "__tvm_ffi__metadata_main",
    "__tvm_ffi__doc_main",
)

# Some tools fail for files above 2 GiB, and programs may link several models. Larger weights are in
# a side file.
_MOST_APPENDED = 2 << 30
_MOST_LINKED = 1 << 30

_LINK_FLAGS = (
    "-shared", "-fPIC", f"-Wl,-soname,{'/' * ROOM}", "-Wl,--as-needed", "-Wl,--build-id=none",
    "-Wl,--version-script=exports.map",
    "-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,-z,defs",
)  # fmt: skip


def c_name(text: str) -> str:
    """Returns `text` as a valid name of an artifact: a C identifier that tcc does not reserve.

    Keywords of C are allowed, because the exported functions are called NAME_api and NAME_run.
    """
    name = transliterated(text) or "model"
    needs_prefix = name[0].isdigit() or is_reserved(name)
    return f"model_{name}" if needs_prefix else name


def link_artifact(
    variants: Sequence[Variant],
    manifest: dict[str, Any],
    name: str,
    out: Path,
    *,
    triple: str = "",
    emit: str = "shared",
    side_file: bool = False,
    assets: Mapping[str, bytes] = NO_ASSETS,
) -> dict[str, Any]:
    """Writes the artifact `out`, and next to it its C header with the suffix `.h`.

    The loader takes the first of the `variants` that the machine can run; GPUs come before the CPU.
    `name` is a C identifier (`c_name`). `emit` is a key of `EMITS`, and `side_file` asks for a
    side file of weights. `assets` are files for users of the model, by name. The kernels' listings
    become a section that is not loaded. Each file is written under another name and then renamed.

    Returns the manifest: `manifest` extended by abi, name, inputs, outputs, variants and weights,
    and by assets if there are any.
    Raises InternalError if the variants do not fit each other. Raises ToolError if no compiler is
    found, if it fails, or if `out` cannot be written.
    """
    check_variants(variants)
    if name != c_name(name):
        raise InternalError(f"{name!r} is no name of an artifact", where="link")
    toolchain = find_toolchain(triple)
    linked = emit != "shared"
    with folder_beside(out, "the artifact") as folder:
        section = lay_out(
            folder / "section",
            [variant.weights_of(rank) for variant in variants for rank in range(variant.ranks)],
            [encode_images(variant.gpu) if variant.gpu else b"" for variant in variants],
        )
        side = side_file or section.size > (_MOST_LINKED if linked else _MOST_APPENDED)
        full_manifest = {
            **_complete(manifest, variants, name, section, side),
            **asset_entries(assets),
        }
        text = json.dumps(full_manifest, sort_keys=True, indent=1, ensure_ascii=True)
        objects = _write_inputs(folder, variants, text, name, section)
        _write_listings(folder, _listings(variants))
        write_assets(folder, assets)
        if linked or side:
            append_section(folder / "weights", section)
        if linked:
            header = section_header(side_path(out).name, not side and section.size > 0)
            (folder / "section.h").write_text(header)
        inputs = _compile(toolchain, folder, objects)
        if linked:
            link_object(toolchain, folder, inputs, name, emit)
        else:
            _link(toolchain, folder, inputs, out.name, None if side else section)
        (folder / "model.h").write_text(model_header(name, variants[0].program, full_manifest))
        _publish(folder, out, EMITS[emit], side and section.size > 0)
    return full_manifest


def _complete(
    manifest: dict[str, Any],
    variants: Sequence[Variant],
    name: str,
    section: Section,
    side: bool,
) -> dict[str, Any]:
    ports = describe_ports(variants[0].program)
    return {
        **manifest,
        "abi": ABI_VERSION,
        "name": name,
        **ports,
        "variants": [describe_variant(*facts, ports) for facts in _places(variants, section)],
        "weights": {
            "bytes": section.size,
            "sha256": section.sha256.hex(),
            "place": "side file" if side else "artifact",
        },
    }


def _places(
    variants: Sequence[Variant], section: Section
) -> Iterator[tuple[Variant, tuple[Range, ...], Range]]:
    """Yields each variant, the range of each rank's weights, and the range of its images."""
    ranges = iter(section.weights)
    for variant, images in zip_equal(variants, section.images):
        yield variant, tuple(islice(ranges, variant.ranks)), images


def _listings(variants: Sequence[Variant]) -> dict[str, str]:
    """Returns the listings by symbol, or by `variant number/symbol` if there are several
    variants."""
    if len(variants) == 1:
        return dict(variants[0].listings)
    return {
        f"{number}/{symbol}": text
        for number, variant in enumerate(variants)
        for symbol, text in variant.listings.items()
    }


def _write_inputs(
    folder: Path, variants: Sequence[Variant], manifest: str, name: str, section: Section
) -> int:
    """Writes the input files of compiler and linker, and returns the number of object files."""
    objects = [data for variant in variants for data in variant.objects]
    for i, data in enumerate(objects):
        (folder / f"object{i}.o").write_bytes(data)
    for i, variant in enumerate(variants):
        (folder / f"program{i}.bin").write_bytes(variant.program_bytes)
        (folder / f"needs{i}.bin").write_bytes(variant.needs)
    (folder / "manifest.json").write_text(manifest, encoding="ascii")
    exports = "".join(f" {symbol};" for symbol in (f"{name}_api", *EXPORTS))
    (folder / "exports.map").write_text(f"{{ global:{exports} local: *; }};\n")
    (folder / "artifact.c").write_text(_artifact_source(variants, name, section))
    return len(objects)


def _write_listings(folder: Path, listings: Mapping[str, str]) -> None:
    """Writes listings.h, which puts the listings into a section that is not loaded.

    The file is empty if there are none.
    """
    source = ""
    if listings:
        text = json.dumps(dict(listings)).encode()
        if len(text) > MOST_LISTINGS:
            raise UserError(
                "the kernels' LLVM IR is too large to be kept",
                where="--keep-ir",
                why=f"it has {len(text)} bytes, and readers take {MOST_LISTINGS}",
                hint="leave --keep-ir out, and use tcc inspect MODEL.onnx --form llvm --kernel K",
            )
        (folder / "listings.bin").write_bytes(zlib.compress(text, 9))
        source = (
            f'__asm__(".pushsection {LISTINGS_SECTION},\\"\\",@progbits\\n"\n'
            '        ".incbin \\"listings.bin\\"\\n.popsection\\n");\n'
        )
    (folder / "listings.h").write_text(source)


def _artifact_source(variants: Sequence[Variant], name: str, section: Section) -> str:
    """Returns the C text of the artifact's variants, its manifest, and its two exported functions.

    Objects have a file section.h, which `section_header` describes.
    """
    parts = "\n".join(variant_source(i, variant) for i, variant in enumerate(variants))
    places = enumerate(_places(variants, section))
    rows = "".join(row_source(i, *facts) for i, facts in places)
    digests = section.sha256, _digest(variants, section)
    section_digest, digest = (", ".join(map(str, data)) for data in digests)
    return f"""#include "runtime.h"
#include "listings.h"
#define HIDDEN extern __attribute__((visibility("hidden")))
#include "assets.h"

{parts}
static const tcc_variant variants[] = {{
{rows}}};

__asm__(".pushsection {MANIFEST_SECTION},\\"a\\"\\n"
        "tcc_manifest_begin: .incbin \\"manifest.json\\"\\n"
        "tcc_manifest_end:\\n"
        ".popsection\\n");
HIDDEN const char tcc_manifest_begin[], tcc_manifest_end[];
#if __has_include("section.h")
#include "section.h"
#else
#define TCC_SECTION 0
#define TCC_SIDE_NAME 0
#endif

const tcc_artifact tcc_artifact_info = {{
    .abi = {ABI_VERSION},
    .name = "{name}",
    .manifest = tcc_manifest_begin,
    .manifest_end = tcc_manifest_end,
    .variants = variants,
    .n_variants = {len(variants)},
    .section_bytes = {section.size}ull,
    .section_sha256 = {{{section_digest}}},
    .sha256 = {{{digest}}},
    .section = TCC_SECTION,
    .side_name = TCC_SIDE_NAME,
    .assets = TCC_ASSETS,
}};

#define EXPORT __attribute__((visibility("default")))
EXPORT const tcc_api *tcc_artifact_api(void) {{ return tcc_runtime_api(); }}
EXPORT const tcc_api *{name}_api(void) {{ return tcc_runtime_api(); }}
"""


def _digest(variants: Sequence[Variant], section: Section) -> bytes:
    """Returns a hash of the programs, the code and the weights; ranks compare it.

    It depends on neither the name of the file nor its manifest.
    """
    digest = hashlib.sha256(section.sha256)
    for variant in variants:
        for part in (variant.program_bytes, variant.needs, *variant.objects):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _compile(toolchain: Toolchain, folder: Path, objects: int) -> list[str]:
    """Compiles artifact.c, and returns the names of all object files of the artifact."""
    base = runtime_folder()
    compile_flags = (
        "-std=c11", "-O1", "-g0", "-fPIC", "-fvisibility=hidden",
        f"-I{base / 'include'}", f"-I{base / 'src'}", "-I.",
    )  # fmt: skip
    run_tool((*toolchain.command, *compile_flags, "-c", "artifact.c", "-o", "artifact.o"), folder)
    runtime = [str(path) for path in runtime_objects(toolchain)]
    return ["artifact.o", *(f"object{i}.o" for i in range(objects)), *runtime]


def _link(
    toolchain: Toolchain, folder: Path, inputs: Sequence[str], soname: str, section: Section | None
) -> None:
    """Links the shared library model.so; `section` is appended to it."""
    run_tool((*toolchain.command, *_LINK_FLAGS, *inputs, "-o", "model.so"), folder)
    _seal(folder / "model.so")
    set_soname(folder / "model.so", soname)
    if section is not None:
        append_section(folder / "model.so", section)


def _seal(path: Path) -> None:
    """Appends a hash of the file, with which the loader can detect damage."""
    image = path.read_bytes()
    with path.open("ab") as file:
        file.write(SEAL.pack(SEAL_MAGIC, len(image), hashlib.sha256(image).digest()))


def _publish(folder: Path, out: Path, suffix: str, side: bool) -> None:
    """Renames the files to their final names.

    The artifact comes last, so that its other files exist when it appears.
    """
    model = folder / f"model{suffix}"
    model.chmod(0o755 if suffix == ".so" else 0o644)
    if side:
        os.replace(folder / "weights", side_path(out))
    os.replace(folder / "model.h", out.with_suffix(".h"))
    os.replace(model, out)
