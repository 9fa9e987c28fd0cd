"""Reads facts from a kernel's machine code."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tcc.backends.gpu.machine_code import ptx_target, tool_output
from tcc.backends.gpu.source import CompiledKernel
from tcc.errors import ToolError

# Matrix instructions in NVIDIA's machine code and in AMD's assembly.
_CUDA_MATRIX = re.compile(r"\b(?:[HIDQO]G?MMA|UTC[HIQO]MMA)\b")
_ROCM_MATRIX = re.compile(r"\bv_(?:mfma|smfmac|wmma|swmmac)(?=_)")
# An instruction behind its address.
_CUDA_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/.*")
# Loads and stores of global memory that move 16 bytes a lane, or whole tiles.
_CUDA_WIDE = re.compile(r"\b(?:(LD|ST)G(?:STS)?\.\S*\b128\b|UTMA(LD|ST)G\b)")
_ROCM_WIDE = re.compile(r"\b(?:global|buffer)_(load|store)_(?:dwordx4|b128)\b")
_CUDA, _ROCM = (_CUDA_MATRIX, _CUDA_WIDE), (_ROCM_MATRIX, _ROCM_WIDE)
_LOADS = ("LD", "load")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The facts of a kernel; registers are 32-bit registers a lane, private memory is bytes a lane.

    Private memory holds values for which registers have no room. `matrix` counts matrix
    instructions by family: HGMMA, HMMA, v_mfma, v_wmma, ... `wide_loads` and `wide_stores` count
    instructions that move at least 16 bytes of global memory a lane.
    """

    registers: int
    private: int
    matrix: tuple[tuple[str, int], ...]
    wide_loads: int
    wide_stores: int


def machine_code(kernel: CompiledKernel) -> MachineCode:
    """Returns the facts of a compiled kernel; raises ToolError if NVIDIA's tools cannot read it."""
    return machine_codes([kernel])[0]


def machine_codes(kernels: Sequence[CompiledKernel]) -> list[MachineCode]:
    """Returns the facts of each kernel; raises ToolError like `machine_code`.

    The call takes as long as one kernel of each architecture.
    """
    texts = listings(kernels)
    return [
        _facts(kernel, text, *(_CUDA if ptx_target(kernel.assembly) else _ROCM))
        for kernel, text in zip(kernels, texts, strict=True)
    ]


def listings(kernels: Sequence[CompiledKernel]) -> list[str]:
    """Returns each kernel's disassembled machine code; raises ToolError like `machine_code`.

    The listing of AMD's code is its assembly.
    """
    by_target: dict[str, list[CompiledKernel]] = {}
    for kernel in kernels:
        if target := ptx_target(kernel.assembly):
            by_target.setdefault(target, []).append(kernel)
    texts: dict[int, str] = {}
    for target, group in by_target.items():
        parts = _disassembled(target.replace("sm_", "SM"), [_code(k) for k in group])
        texts.update(zip(map(id, group), parts, strict=True))
    return [texts.get(id(kernel), kernel.assembly) for kernel in kernels]


def _code(kernel: CompiledKernel) -> bytes:
    """Returns the instructions of a cubin, an ELF file, from its section `.text.SYMBOL`."""
    image, name = kernel.image, f".text.{kernel.symbol}\0".encode()
    if image[:4] == b"\x7fELF":
        (table,) = struct.unpack_from("<Q", image, 40)
        size, count, names = struct.unpack_from("<HHH", image, 58)
        # A header holds the name; three fields later the place and the length.
        rows = [struct.unpack_from("<I20xQQ", image, table + size * n) for n in range(count)]
        for label, offset, length in rows:
            if image.startswith(name, rows[names][1] + label):
                return image[offset : offset + length]
    raise ToolError(f"the code of {kernel.symbol} cannot be read", why="its cubin holds none")


def _disassembled(target: str, codes: Sequence[bytes]) -> list[str]:
    """Returns `nvdisasm`'s text of each code; one call suffices, as loading takes a third of a
    second."""
    listing = tool_output(b"".join(codes), "nvdisasm", "--no-dataflow", "--binary", target)
    lines = ((int(match[1], 16), match[0]) for match in _CUDA_LINE.finditer(listing))
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
    loads = [match[match.lastindex or 0] in _LOADS for match in wide.finditer(listing)]
    return MachineCode(kernel.registers, kernel.private, families, sum(loads), loads.count(False))
