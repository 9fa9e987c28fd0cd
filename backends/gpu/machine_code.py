"""What became of a kernel: facts read from its machine code."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tcc.backends.gpu.source import CompiledKernel
from tcc.errors import ToolError

# Instructions of matrix units: NVIDIA's machine code, AMD's assembly.
_CUDA_MATRIX = re.compile(r"\b(?:[HIDQO]G?MMA|UTC[HIQO]MMA)\b")
_ROCM_MATRIX = re.compile(r"\bv_(?:mfma|smfmac|wmma|swmmac)(?=_)")
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
    if kernel.arch.startswith("gfx"):
        return _facts(kernel, kernel.assembly, _ROCM_MATRIX, _ROCM_WIDE)
    listing = _of_cubin("nvdisasm", "-c", kernel.image)
    return _facts(kernel, listing, _CUDA_MATRIX, _CUDA_WIDE)


def rocm_usage(assembly: str) -> tuple[int, int]:
    """Registers and private memory that AMD's assembly states."""
    registers = _number(r"^ +\.vgpr_count: +(\d+)", assembly)
    return registers, _number(r"^ +\.private_segment_fixed_size: +(\d+)", assembly)


def cuda_usage(image: bytes) -> tuple[int, int]:
    """Registers and private memory that a cubin states.  Raises ToolError as `machine_code`."""
    usage = _of_cubin("cuobjdump", "--dump-resource-usage", image)
    private = _number(r"\bSTACK:(\d+)", usage) + _number(r"\bLOCAL:(\d+)", usage)
    return _number(r"\bREG:(\d+)", usage), private


def _of_cubin(tool: str, option: str, image: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        return _output(tool, option, path)


def _facts(
    kernel: CompiledKernel, listing: str, matrix: re.Pattern[str], wide: re.Pattern[str]
) -> MachineCode:
    families = tuple(sorted(Counter(matrix.findall(listing)).items()))
    loads = [found[found.lastindex or 0] in _LOADS for found in wide.finditer(listing)]
    return MachineCode(kernel.registers, kernel.private, families, sum(loads), loads.count(False))


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ToolError("a listing of machine code cannot be read", why=f"no match of {pattern!r}")
    return int(found[1])


def _output(tool: str, option: str, path: Path) -> str:
    """What one of the tools that come with Triton prints."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise ToolError(f"{tool} is missing", why="it comes with Triton, which is not installed")
    program = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / tool
    done = subprocess.run([program, option, path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"{tool} cannot read a kernel", why=(done.stderr or done.stdout)[-500:])
    return done.stdout
