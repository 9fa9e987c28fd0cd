"""Endless runs and slow host functions can be ended."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import programs
import pytest
from op_library import Array, Ending, Ops
from programs import Builder
from sanitized import Sanitized, run_sanitized
from tcc.backends.artifact.encode_program import encode_program
from tcc.ir.program import CallOp, Input, IntOp, Launch, Let, Loop, Program, ReadInt, TensorRef
from tcc.ir.types import DTYPES
from tcc.runtime import abi

from tests.processes import finished

HERE = Path(__file__).parent
F32, I64 = DTYPES["f32"], DTYPES["i64"]
rng = np.random.default_rng


def begun() -> tuple[Builder, int, int, int]:
    """Returns a builder with inputs n and x f32[1024] and the output y; the register of n, and the
    buffers of x and y."""
    b = Builder()
    n, size = b.register(), b.const(1024)
    b.input("n", "i64", [], "[]")
    b.input("x", "f32", [size], "[1024]")
    y = b.output("y", "f32", [size], "[1024]")
    b.allocate(y, b.const(4096))
    count_input, x = b.buffer(Input(0)), b.buffer(Input(1))
    b.body.append(ReadInt(n, count_input, I64, 0))
    return b, n, x, y


def one_launch(least: int) -> Program:
    """Returns a launch of n tiles, of which `least` are worth a thread."""
    b, n, x, y = begun()
    b.launch("relu", n, [x, y], [n], b.const(least))
    return b.program()


def small_launches() -> Program:
    """Returns a loop of n trips with a launch of 1024 tiles, which does not poll itself."""
    b, n, x, y = begun()
    units, counter = b.const(1024), b.register()
    body = (Launch(0, units, (x, y), (n,), b.const(16)),)
    b.body.append(Loop(n, -1, counter, body))
    return b.program()


def empty_trips() -> Program:
    """Returns a launch of 1024 tiles, followed by a loop of n trips without a launch."""
    b, n, x, y = begun()
    b.launch("relu", b.const(1024), [x, y], [n], b.const(16))
    counter, last = b.register(), b.register()
    b.body.append(Loop(n, -1, counter, (Let(last, IntOp.ADD, counter, counter),)))
    return b.program()


def sorting() -> Program:
    b = Builder()
    n = b.let(IntOp.DIM, 0, 0)
    b.input("x", "f32", [n], "[n]")
    x, values = b.buffer(Input(0)), b.output("v", "f32", [n], "[n]")
    indices = b.output("i", "i64", [n], "[n]")
    b.allocate(values, b.let(IntOp.MUL, n, b.const(4)))
    b.allocate(indices, b.let(IntOp.MUL, n, b.const(8)))
    outputs = (TensorRef(values, F32, (n,)), TensorRef(indices, I64, (n,)))
    b.body.append(CallOp("top_k", (TensorRef(x, F32, (n,)),), outputs, (0, 1, 1)))
    return b.program()


PROGRAMS: dict[str, tuple[Callable[[], Program], int]] = {
    "unit": (lambda: one_launch(1), 6),
    "grain": (lambda: one_launch(64), 6),
    "loop": (small_launches, 6),
    "trips": (empty_trips, 6),
    "op": (sorting, 15),
}


def written(name: str, folder: Path) -> Path:
    record = encode_program(PROGRAMS[name][0]())
    path = folder / "record"
    path.write_bytes(struct.pack("<q", len(record)) + record)
    return path


@pytest.fixture(scope="module")
def watched(racing: Sanitized) -> Path:
    """Builds the driver under ThreadSanitizer."""
    return racing.program("cancel", HERE / "cancel.c")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_endless_runs_end_under_thread_sanitizer(
    watched: Path, name: str, threads: int, tmp_path: Path
) -> None:
    record, kernels = written(name, tmp_path), len(programs.KERNEL_NAMES)
    result = finished(watched, record, kernels, threads, PROGRAMS[name][1], name)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stdout + result.stderr[-3000:]


@pytest.mark.parametrize("name", PROGRAMS)
def test_endless_runs_end_under_address_sanitizer(
    sanitized: Sanitized, name: str, tmp_path: Path
) -> None:
    program, kernels = sanitized.program("cancel", HERE / "cancel.c"), len(programs.KERNEL_NAMES)
    words = (str(written(name, tmp_path)), str(kernels), "3", str(PROGRAMS[name][1]), name)
    assert run_sanitized(program, *words) == "ok\n"


# ---- functions of the host -----------------------------------------------------------------------


def cancelled() -> Ending:
    """Returns the ending of a run that was cancelled when it began."""
    return Ending(run=1, last=1)


N = 1 << 18
X = rng(0).standard_normal(N).astype(np.float32)
SQUARE = rng(1).standard_normal((160, 160))
SLOW: dict[str, tuple[str, tuple[Array, ...], tuple[Array, ...], tuple[int, ...], int]] = {
    "sort": ("sort", (X,), (X * 0, np.zeros(N, np.int64)), (0, 1), 0),
    "much of a line": ("top_k", (X,), (X[: N // 2] * 0, np.zeros(N // 2, np.int64)), (0, 1, 1), 0),
    "little of a line": ("top_k", (X,), (X[:8] * 0, np.zeros(8, np.int64)), (0, 1, 1), 0),
    "unique": ("unique_count", (X,), (), (-1, 1), 1),
    "rows": ("unique_count", (X.reshape(-1, 2),), (), (0, 1), 1),
    "boxes": (
        "non_max_suppression_count",
        (np.tile(np.arange(4, dtype=np.float32), (1, N, 1)), X.reshape(1, 1, N), np.array(N)),
        (), (0, 1), 1,
    ),
    "running": ("running", (X,), (X * 0,), (0, 0, 0, 0), 0),
    "columns": ("running", (X.reshape(-1, 2),), (X.reshape(-1, 2) * 0,), (0, 0, 0, 0), 0),
    "scatter": (
        "scatter_elements", (X, np.arange(N), X), (X * 0,), (0, 1), 0,
    ),
    "index range": ("index_range", (np.arange(N),), (), (1, 0, 0, N), 2),
    "lu": ("lu", (SQUARE,), (SQUARE * 0, np.zeros(160, np.int32)), (), 0),
    "cholesky": ("cholesky", (SQUARE @ SQUARE.T,), (SQUARE * 0, np.zeros((), np.int32)), (), 0),
    "qr": ("qr", (SQUARE,), (SQUARE * 0, SQUARE[0] * 0), (), 0),
    "svd": ("svd", (SQUARE,), (SQUARE * 0, SQUARE[0] * 0, SQUARE * 0), (), 0),
    "triangle": ("solve_triangular", (SQUARE, SQUARE), (SQUARE * 0,), (0, 0), 0),
    "non-zero": ("non_zero_count", (np.zeros(8 * N, np.uint8),), (), (), 1),
}  # fmt: skip


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("case", SLOW)
def test_a_function_of_a_cancelled_run_does_not_begin(ops: Ops, case: str, threads: int) -> None:
    name, inputs, outputs, ints, results = SLOW[case]
    results_before = [array.copy() for array in outputs]
    with pytest.raises(ValueError, match="the run was cancelled"):
        ops(name, inputs, results_before, ints, results, threads=threads, ending=cancelled())
    if case != "boxes":  # they take seconds
        ops(
            name,
            inputs,
            results_before,
            ints,
            results,
            threads=threads,
            ending=Ending(run=3, last=1),
        )


@pytest.mark.parametrize("case", SLOW)
def test_a_function_looks_up_in_the_midst_of_a_unit(ops: Ops, case: str) -> None:
    """The whole call is one tile or a few concurrent tiles, and its first poll ends it."""
    cases_seen = []

    def answer(_context: int | None) -> int:
        cases_seen.append(case)
        return 1

    name, inputs, outputs, ints, results = SLOW[case]
    ending = Ending(run=1, poll=abi.POLL(answer), ask_at=1, thread=threading.get_ident())
    results_before = [array.copy() for array in outputs]
    with pytest.raises(ValueError, match="the caller ended the run"):
        ops(name, inputs, results_before, ints, results, threads=0, ending=ending)
    assert cases_seen == [case]
