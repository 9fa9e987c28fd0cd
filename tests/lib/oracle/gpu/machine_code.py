"""What became of a kernel: facts read from its machine code."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tcc.backends.gpu.machine_code import ptx_target, tool_output
from tcc.backends.gpu.source import CompiledKernel
from tcc.errors import ToolError

# Instructions of matrix units: NVIDIA's machine code, AMD's assembly.
_CUDA_MATRIX = re.compile(r"\b(?:[HIDQO]G?MMA|UTC[HIQO]MMA)\b")
_ROCM_MATRIX = re.compile(r"\bv_(?:mfma|smfmac|wmma|swmmac)(?=_)")
# An instruction behind its address.
_CUDA_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/.*")
# Loads and stores of global memory that move 16 bytes a lane, or whole tiles.
_CUDA_WIDE = re.compile(r"\b(?:(LD|ST)G(?:STS)?\.\S*\b128\b|UTMA(LD|ST)G\b)")
_ROCM_WIDE = re.compile(r"\b(?:global|buffer)_(load|store)_(?:dwordx4|b128)\b")
_LOADS = ("LD", "load")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Registers and private memory are a lane's: 32-bit registers, bytes.

    Private memory is where values go that registers have no room for.  `matrix` counts the
    instructions of matrix units by their family: HGMMA, HMMA, v_mfma, v_wmma, ...  `wide_loads` and
    `wide_stores` count the instructions that move 16 bytes of global memory a lane, or more.
    """

    registers: int
    private: int
    matrix: tuple[tuple[str, int], ...]
    wide_loads: int
    wide_stores: int


def machine_code(kernel: CompiledKernel) -> MachineCode:
    """The facts of a compiled kernel.  Raises ToolError where NVIDIA's tools cannot read it."""
    return machine_codes([kernel])[0]


def machine_codes(kernels: Sequence[CompiledKernel]) -> list[MachineCode]:
    """The facts of each, which takes as long as for one of every architecture.  Raises ToolError
    as `machine_code`."""
    by_target: dict[str, list[CompiledKernel]] = {}
    for kernel in kernels:
        if target := ptx_target(kernel.assembly):
            by_target.setdefault(target, []).append(kernel)
    listings: dict[int, str] = {}
    for target, group in by_target.items():
        parts = _disassembled(target.replace("sm_", "SM"), [_code(k) for k in group])
        listings.update(zip(map(id, group), parts, strict=True))
    return [
        _facts(kernel, listings[id(kernel)], _CUDA_MATRIX, _CUDA_WIDE)
        if id(kernel) in listings
        else _facts(kernel, kernel.assembly, _ROCM_MATRIX, _ROCM_WIDE)
        for kernel in kernels
    ]


def _code(kernel: CompiledKernel) -> bytes:
    """The instructions of a cubin, which is an ELF file: its section `.text.SYMBOL`."""
    image, name = kernel.image, f".text.{kernel.symbol}\0".encode()
    if image[:4] == b"\x7fELF":
        (table,) = struct.unpack_from("<Q", image, 40)
        size, count, names = struct.unpack_from("<HHH", image, 58)
        # Of each header the name, behind three fields the place and the length.
        rows = [struct.unpack_from("<I20xQQ", image, table + size * n) for n in range(count)]
        for label, offset, length in rows:
            if image.startswith(name, rows[names][1] + label):
                return image[offset : offset + length]
    raise ToolError(f"the code of {kernel.symbol} cannot be read", why="its cubin holds none")


def _disassembled(target: str, codes: Sequence[bytes]) -> list[str]:
    """What `nvdisasm` says of each, asked once: loading its tables takes it a third of a second."""
    listing = tool_output(b"".join(codes), "nvdisasm", "--no-dataflow", "--binary", target)
    lines = ((int(found[1], 16), found[0]) for found in _CUDA_LINE.finditer(listing))
    texts = [list[str]() for _ in codes]
    number, end = 0, len(codes[0])
    for offset, line in lines:
        while offset >= end:
            number += 1
            end += len(codes[number])
        texts[number].append(line)
    return ["\n".join(text) for text in texts]


def _facts(
    kernel: CompiledKernel, listing: str, matrix: re.Pattern[str], wide: re.Pattern[str]
) -> MachineCode:
    families = tuple(sorted(Counter(matrix.findall(listing)).items()))
    loads = [found[found.lastindex or 0] in _LOADS for found in wide.finditer(listing)]
    return MachineCode(kernel.registers, kernel.private, families, sum(loads), loads.count(False))
