"""Tests that environment variables do not change the bytes of compiled kernels."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tcc.backends.gpu.source import CompiledKernel, kernel_source
from tcc.backends.idle_pool import RESTING
from tcc.target import GPUS

from tests.lib.interpreter.running import NEEDS_TRITON, compile_kernels
from tests.lib.oracle.tile.parse import parse_kernel

from .blocks import TEXTS

pytestmark = NEEDS_TRITON

# Triton's own list of variables, with the default of each.
LIST = """
import json
from triton import knobs
found = {}
for group in vars(knobs).values():
    if isinstance(group, knobs.base_knobs):
        for knob in group.knob_descriptors.values():
            found[knob.key] = getattr(knob, "default", None) is True
print(json.dumps(found))
"""
# Other variables that Triton's libraries read; their names are strings in the files.
BEGINNINGS = r"TRITON|MLIR|LLVM|AMDGCN|NVPTX|DISABLE|ENABLE|ALLOW|PTXAS|USE"
NAME = re.compile(rf"\0((?:{BEGINNINGS})_[A-Z0-9_]+)(?=\0)".encode())


def constants(path: Path) -> bytes:
    """Returns the read-only data of an ELF file: loaded sections, neither writable nor
    executable."""
    data = path.read_bytes()
    (at,) = struct.unpack_from("<Q", data, 40)
    width, count = struct.unpack_from("<HH", data, 58)
    rows = (struct.unpack_from("<IIQQQQ", data, at + n * width) for n in range(count))
    kept = [
        (offset, size) for _, kind, flags, _, offset, size in rows if (kind, flags & 7) == (1, 2)
    ]
    return b"".join(data[offset : offset + size] for offset, size in kept)


def variables() -> dict[str, str]:
    """Returns all variables, each with a value that differs from its default."""
    listed = subprocess.run(
        [sys.executable, "-c", LIST], capture_output=True, text=True, check=True
    )
    spec = importlib.util.find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    code = b"".join(map(constants, sorted(Path(spec.origin).parent.rglob("*.so"))))
    found = dict.fromkeys((name.decode() for name in NAME.findall(code)), "1")
    found |= {name: "0" if on else "1" for name, on in json.loads(listed.stdout).items()}
    found |= {"PTXAS_OPTIONS": "--opt-level 1", "TRITON_PTXAS_PATH": "/bin/false"}
    found |= {"TRITON_OVERRIDE_ARCH": "sm75", "TRITON_DEFAULT_FP_FUSION": "1"}
    return {name: value for name, value in found.items() if name != "CC"}


def compiled() -> list[CompiledKernel]:
    names = ("softmax", "half_matmul")
    sources = [
        kernel_source(parse_kernel(TEXTS[n]), n, warps=4, stages=2, dot="ieee") for n in names
    ]
    profiles = [GPUS[a] for a in ("cuda:sm_80", "cuda:sm_90", "rocm:gfx942", "rocm:gfx1100")]
    RESTING.end()  # The processes in the pool have another environment.
    return [kernel for row in compile_kernels(sources, profiles, 1) for kernel in row]


def test_no_variable_changes_code(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, others = compiled(), variables()
    assert {"AMDGCN_USE_BUFFER_OPS", "DISABLE_PTXAS_OPT", "DISABLE_LLVM_OPT"} < set(others)
    assert len(others) > 60
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    assert compiled() == usual
    RESTING.end()
