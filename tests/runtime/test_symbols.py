"""A profiler that attaches to the process finds the symbols of kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from programs import KERNEL_NAMES

LOADED = """
import ctypes, os, sys
from pathlib import Path
from tcc.runtime import load

load(sys.argv[1])
load(sys.argv[1])
path = Path(f"/tmp/perf-{os.getpid()}.map")
print(path.read_text() if path.exists() else "", end="")
path.unlink(missing_ok=True)
print("---")
print(Path("/proc/self/maps").read_text(), end="")
"""


def loaded(path: Path, **environment: str) -> tuple[list[str], list[str]]:
    """Returns lines of the profilers' map, and lines of the process's mappings."""
    environment |= {"PYTHONPATH": ":".join(sys.path)}
    command = (sys.executable, "-c", LOADED, str(path))
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    names, maps = result.stdout.split("---\n")
    return names.splitlines(), maps.splitlines()


def test_functions_are_named_where_their_code_is(mlp_path: Path) -> None:
    lines, maps = loaded(mlp_path, TCC_PERF_MAP="1")
    code = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in maps
        if line.split()[1] == "r-xp" and len(line.split()) == 5  # without a file
    ]
    addresses = {}
    for line in lines:
        start, size, name, model = line.split()
        assert model == "[mini]"
        assert any(
            low <= int(start, 16) < int(start, 16) + int(size, 16) <= high for low, high in code
        ), line
        addresses[name] = int(start, 16)
    assert set(KERNEL_NAMES) <= set(addresses)
    assert "tcc_model_get" in addresses
    assert len(lines) == len(set(lines))


def test_nothing_is_written_unasked(mlp_path: Path) -> None:
    assert loaded(mlp_path)[0] == []
    assert loaded(mlp_path, TCC_PERF_MAP="0")[0] == []


def test_an_artifact_calls_no_getenv(mlp_path: Path) -> None:
    """Programs with raised privileges ignore the environment."""
    command = ("nm", "-D", "--undefined-only", mlp_path)
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    functions = {name.partition("@")[0] for name in names}
    assert "secure_getenv" in functions
    assert "getenv" not in functions
