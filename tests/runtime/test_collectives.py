"""Collectives of hand-made programs: ranks that fail tell the others."""

from __future__ import annotations

from pathlib import Path

import programs
from programs import Builder
from tcc.ir.program import (
    Check,
    Collective,
    CollectiveKind,
    Input,
    Program,
    ReadInt,
    Reduction,
    Relation,
    Wait,
)
from tcc.ir.types import DTYPES

from tests.ranks import run_ranks


def checked() -> Program:
    """y = the sum of all ranks' x, f32[4], if k is at least 1, which a run learns in its midst."""
    b = Builder()
    four, one, size, k = b.const(4), b.const(1), b.const(16), b.register()
    b.input("x", "f32", [four], "[4]")
    b.input("k", "i64", [], "[]")
    y = b.output("y", "f32", [four], "[4]")
    b.allocate(y, size)
    x, given = b.buffer(Input(0)), b.buffer(Input(1))
    total = Collective(CollectiveKind.ALL_REDUCE, Reduction.SUM, x, y, four, DTYPES["f32"], 0)
    b.body += [
        ReadInt(k, given, DTYPES["i64"], 0),
        Check(Relation.LE, one, k, "k is too small"),
        total,
        Wait(0, x, y),
    ]
    return b.program()


SCRIPT = """
import sys, time
import numpy as np
from tcc.runtime import comm as comms, load

with comms.open() as comm:
    module = load(sys.argv[1], comm=comm)
    x = np.ones(4, np.float32)
    assert module(x, np.array(1)).tolist() == [2, 2, 2, 2]
    # arrays that are refused leave the comm as it is
    try:
        module(np.ones(5, np.float32), np.array(1))
    except RuntimeError as error:
        assert "x" in str(error), error
    assert module(x, np.array(1)).tolist() == [2, 2, 2, 2]
    for k in (1 - comm.rank, 1):
        try:
            module(x, np.array(k))
        except RuntimeError as error:
            print(error)
"""


def test_a_run_that_fails_ends_the_runs_of_other_ranks(
    kernels: bytes, comm_library: Path, tmp_path: Path
) -> None:
    programs.link(checked(), kernels, tmp_path / "checked.so")
    first, second = run_ranks(2, SCRIPT, comm_library, tmp_path / "checked.so")
    said = "a run of rank 1 failed: k is too small (1, 0)"
    assert first.count(said) == 2  # in the run, and in all later ones
    assert second.startswith("k is too small (1, 0)")
    assert second.count(said) == 1
