"""Reads from a kernel's machine code how many registers and how much private memory it uses."""

import importlib.util
import re
import subprocess
from pathlib import Path

from tcc.errors import ToolError
from tcc.temporary import temporary_folder

# The architecture that a PTX text names.
_CUDA_TARGET = re.compile(r"^\.target (sm_\w+)", re.MULTILINE)


def ptx_target(assembly: str) -> str:
    """Returns the architecture of PTX, with its letter (as in sm_90a), or "" for other assembly."""
    match = _CUDA_TARGET.search(assembly)
    return match[1] if match else ""


def rocm_usage(assembly: str) -> tuple[int, int]:
    """Returns (registers, private bytes) of a lane, as AMD's assembly states them."""
    registers = _number(r"^ +\.vgpr_count: +(\d+)", assembly)
    return registers, _number(r"^ +\.private_segment_fixed_size: +(\d+)", assembly)


def cuda_usage(image: bytes) -> tuple[int, int]:
    """Returns (registers, private bytes) of a lane, as a cubin states them.

    Raises ToolError if NVIDIA's tools cannot read it.
    """
    usage = tool_output(image, "cuobjdump", "--dump-resource-usage")
    private = _number(r"\bSTACK:(\d+)", usage) + _number(r"\bLOCAL:(\d+)", usage)
    return _number(r"\bREG:(\d+)", usage), private


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise ToolError("a listing of machine code cannot be read", why=f"no match of {pattern!r}")
    return int(match[1])


def nvidia_tool(name: str) -> Path:
    """Returns the path of one of NVIDIA's tools, which come with Triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise ToolError(
            f"{name} is missing", why="it comes with Triton", hint="pip install 'tcc[gpu]'"
        )
    return Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name


def run_nvidia(tool: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs one of NVIDIA's tools in a folder."""
    command = [str(nvidia_tool(tool)), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def tool_output(data: bytes, tool: str, *options: str) -> str:
    """Returns a tool's output for a file with `data`; raises ToolError if the tool fails."""
    with temporary_folder() as folder:
        (folder / "kernel").write_bytes(data)
        process = run_nvidia(tool, folder, *options, "kernel")
    if process.returncode:
        raise ToolError(
            f"{tool} cannot read a kernel", why=(process.stderr or process.stdout)[-500:]
        )
    return process.stdout
