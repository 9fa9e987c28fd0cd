"""Which plan of an artifact is loaded, and the comms that it then refuses, under sanitizers."""

from __future__ import annotations

import struct
from pathlib import Path

import programs
import pytest
from sanitized import Sanitized, run_sanitized
from tcc.backends.artifact.encode_program import encode_program
from tcc.ir.program import Input, Program

HERE = Path(__file__).parent

# One worker compiles the runtime with sanitizers, also where tests are spread over several.
pytestmark = pytest.mark.xdist_group("sanitized-runtime")


def updating(state: int, other: int = 4) -> Program:
    """x[i] += x[i] in place for a state x of `state` floats, and y of `other` floats that no launch
    writes."""
    b = programs.Builder()
    size, count = b.const(state), b.const(other)
    b.input("x", "f32", [size], f"[{state}]")
    x = b.buffer(Input(0))
    b.input("y", "f32", [count], f"[{other}]")
    b.output("x_out", "f32", [size], f"[{state}]", state=0)
    b.launch("add", size, [x, x, x])
    return b.program()


def test_plans_are_chosen_by_the_number_of_ranks(sanitized: Sanitized, tmp_path: Path) -> None:
    program = sanitized.program("choose_ranks", HERE / "ranks.c")
    paths = []
    files = {
        "plain": programs.doubling(),
        "small": updating(8),
        "large": updating(16),
        "other": updating(8, other=5),
    }
    for name, made in files.items():
        record = encode_program(made)
        paths.append(tmp_path / name)
        paths[-1].write_bytes(struct.pack("<q", len(record)) + record)
    assert run_sanitized(program, *map(str, paths)) == "ok\n"
