"""Assembles snippets of AMD assembly with Triton's LLVM, and runs them in the emulator."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from .amd.code import Kernel
from .amd.run import run
from .amd.waves import ARCHS
from .device import Launch
from .memory import GlobalMemory

Array = np.ndarray[Any, np.dtype[Any]]
_EXECUTABLE = 4
_WIDE = {"gfx1100": "s_load_b256", "gfx942": "s_load_dwordx8"}
_WORDS = {4: "dword", 8: "dwordx2", 16: "dwordx4"}
# The first registers of three operands and of the result, which is the fourth.
REGISTERS = (8, 16, 24, 32)


@cache
def assembled(text: str, arch: str) -> bytes:
    """Returns the machine code of lines of assembly."""
    from triton.backends.amd.compiler import assemble_amdgcn

    image = bytes(assemble_amdgcn(f".text\n{text}\n", arch, ""))
    (sections,) = struct.unpack_from("<Q", image, 40)
    (count,) = struct.unpack_from("<H", image, 60)
    for n in range(count):
        row = struct.unpack_from("<IIQQQQIIQQ", image, sections + 64 * n)
        if row[2] & _EXECUTABLE and row[5]:
            return image[row[4] : row[4] + row[5]]
    raise AssertionError("no code")


def execute(
    arch: str, text: str, arrays: Sequence[Array], waves: int = 1, shared: int = 0,
    seed: int | None = None,
) -> None:  # fmt: skip
    """Runs one workgroup; s[0:1] points to the arrays' addresses, v0 is the number of a lane."""
    code = assembled(text, arch)
    lanes = ARCHS[arch].lanes
    parameters = struct.pack(f"<{len(arrays)}Q", *(a.ctypes.data for a in arrays))
    parameters = parameters.ljust(64, b"\0")
    kernel = Kernel(arch, "k", code, 0, 0, len(parameters), (), 15, 1024)
    memory = GlobalMemory([(a.ctypes.data, a.nbytes) for a in arrays])
    run(kernel, Launch(1, waves * lanes, shared, parameters, memory), seed)


def body(arch: str, code: str, widths: Sequence[int]) -> str:
    """Returns assembly that loads operands, runs `code` and stores the result.

    `widths` are bytes per lane; the last belongs to the result.
    """
    lines = [f"{_WIDE[arch]} s[4:11], s[0:1], 0x0", "s_waitcnt lgkmcnt(0)"]
    for n, width in enumerate(widths):
        lines.append(f"v_lshlrev_b32_e32 v{n + 1}, {width.bit_length() - 1}, v0")
    *operands, _ = range(len(widths))
    for n in operands:
        lines.append(f"global_load_{_WORDS[widths[n]]} {span(n, widths[n])}, v{n + 1}, "
                     f"s[{4 + 2 * n}:{5 + 2 * n}]")  # fmt: skip
    last = len(widths) - 1
    lines += ["s_waitcnt vmcnt(0)", code]
    result = f"v[32:{31 + widths[-1] // 4}]" if widths[-1] > 4 else "v32"
    lines.append(
        f"global_store_{_WORDS[widths[-1]]} v{last + 1}, {result}, s[{4 + 2 * last}:{5 + 2 * last}]"
    )
    return "\n".join([*lines, "s_endpgm"])


def span(n: int, width: int) -> str:
    first = REGISTERS[n]
    return f"v{first}" if width == 4 else f"v[{first}:{first + width // 4 - 1}]"


def lanes(arch: str, code: str, *operands: Array, made: Any = np.uint32) -> Array:
    """Returns v32 (and v33) of every lane after `code` has run on v8, v16 and v24."""
    out = np.zeros(ARCHS[arch].lanes, made)
    buffers = [np.ascontiguousarray(a) for a in operands]
    widths = [a.itemsize * (a.shape[1] if a.ndim > 1 else 1) for a in buffers] + [out.itemsize]
    execute(arch, body(arch, code, widths), [*buffers, out])
    return out
