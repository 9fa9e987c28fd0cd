"""Which plan of an artifact is loaded, and the comms that it then refuses, under sanitizers."""

from __future__ import annotations

import struct
from pathlib import Path

import programs
import pytest
from sanitized import Sanitized, run_sanitized
from tcc.backends.artifact.encode_program import encode_program

HERE = Path(__file__).parent

# One worker compiles the runtime with sanitizers, also where tests are spread over several.
pytestmark = pytest.mark.xdist_group("sanitized-runtime")


def test_plans_are_chosen_by_the_number_of_ranks(sanitized: Sanitized, tmp_path: Path) -> None:
    program = sanitized.program("choose_ranks", HERE / "ranks.c")
    paths = []
    files = {
        "plain": programs.doubling(),
        "small": programs.updating(8),
        "large": programs.updating(16),
        "other": programs.updating(8, other=5),
    }
    for name, made in files.items():
        record = encode_program(made)
        paths.append(tmp_path / name)
        paths[-1].write_bytes(struct.pack("<q", len(record)) + record)
    assert run_sanitized(program, *map(str, paths)) == "ok\n"
