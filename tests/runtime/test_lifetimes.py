"""Objects of the runtime outlive what they were made of: no order of calls ends in a signal.

All orders run in scripts/runtime_bars, a sample here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lifetimes
import programs
import pytest
from programs import Builder
from tcc.ir.program import (
    Collective,
    CollectiveKind,
    Copy,
    Input,
    IntOp,
    Program,
    Reduction,
    Symmetric,
    Wait,
)
from tcc.ir.types import DTYPES

from tests.processes import finished


def summed() -> Program:
    """y = the sum of all ranks' x: f32[n], in memory that ranks share."""
    b = Builder()
    n, four = b.let(IntOp.DIM, 0, 0), b.const(4)
    size = b.let(IntOp.MUL, n, four)
    b.input("x", "f32", [n], "[n]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [n], "[n]")
    send, receive = b.buffer(Symmetric(b.const(0), size)), b.buffer(Symmetric(size, size))
    b.allocate(y, size)
    b.launch("relu", n, [x, send], [])
    kind, dtype = CollectiveKind.ALL_REDUCE, DTYPES["f32"]
    b.body += [
        Collective(kind, Reduction.SUM, send, receive, (n,), dtype, 0),
        Wait(0, send, receive),
        Copy(y, receive, size),
    ]
    return b.program()


def plain() -> Program:
    """y = relu(x), f32[n]."""
    b = Builder()
    n = b.let(IntOp.DIM, 0, 0)
    b.input("x", "f32", [n], "[n]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [n], "[n]")
    b.allocate(y, b.let(IntOp.MUL, n, b.const(4)))
    b.launch("relu", n, [x, y], [])
    return b.program()


@pytest.fixture(scope="module")
def folder(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lifetimes")
    for name, program in (("summed", summed()), ("plain", plain())):
        programs.link(program, kernels, made / f"{name}.so")
    return made


def orders(folder: Path, library: Path, *arguments: str, **variables: str) -> str:
    variables |= {"TCC_COMM_LIBRARY": str(library)}
    program = Path(lifetimes.__file__)
    done = finished(sys.executable, program, folder, *arguments, env=os.environ | variables)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize("name", lifetimes.PUBLIC)
def test_every_public_name_is_used(name: str) -> None:
    known = lifetimes.USES[name].keys() | {"attributes"}
    assert lifetimes.public_names(lifetimes.PUBLIC[name]) <= known


def test_no_order_of_close_collect_and_use_ends_in_a_signal(
    folder: Path, comm_library: Path
) -> None:
    assert orders(folder, comm_library, "--every", "40").endswith(" 0 of them bad\n")
