"""Stamps of runs: the ring holds the right stamps after launches, loops and functions, on one
thread and on several."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from programs import Builder
from sanitized import Sanitized, run_sanitized
from tcc.backends.artifact.encode_program import encode_program
from tcc.ir.program import CallOp, Input, Launch, Loop, Program, ReadInt, TensorRef
from tcc.ir.types import DTYPES
from tcc.runtime import Module, RuntimeFailure, abi
from tcc.runtime.stamps import RUN, Ring, stamped_runs

from tests.processes import finished

HERE = Path(__file__).parent
F32, I64 = DTYPES["f32"], DTYPES["i64"]


def launches() -> Builder:
    """Returns a program with inputs n and x f32[1024]: a launch of 1024 tiles, and n launches of
    one tile."""
    b = Builder()
    n, size = b.register(), b.const(1024)
    b.input("n", "i64", [], "[]")
    b.input("x", "f32", [size], "[1024]")
    y = b.output("y", "f32", [size], "[1024]")
    b.allocate(y, b.const(4096))
    trips, x = b.buffer(Input(0)), b.buffer(Input(1))
    b.body.append(ReadInt(n, trips, I64, 0))
    one = b.const(1)
    b.launch("relu", size, [x, y], [n])
    body = (Launch(0, one, (x, y), (n,), b.const(16)),)
    b.body.append(Loop(n, -1, b.register(), body))
    return b


def written(program: Program, folder: Path) -> Path:
    record = encode_program(program)
    path = folder / "record"
    path.write_bytes(struct.pack("<q", len(record)) + record)
    return path


@pytest.mark.parametrize("threads", [1, 3])
def test_stamps_under_thread_sanitizer(racing: Sanitized, threads: int, tmp_path: Path) -> None:
    driver, record = (
        racing.program("stamps", HERE / "stamps.c"),
        written(launches().program(), tmp_path),
    )
    result = finished(driver, record, len(programs.KERNEL_NAMES), threads)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stdout + result.stderr[-3000:]


def test_stamps_under_address_sanitizer(sanitized: Sanitized, tmp_path: Path) -> None:
    driver, kernels = sanitized.program("stamps", HERE / "stamps.c"), len(programs.KERNEL_NAMES)
    record = written(launches().program(), tmp_path)
    assert run_sanitized(driver, str(record), str(kernels), "3") == "ok\n"


# ---- from Python ---------------------------------------------------------------------------------


def inputs(trips: int) -> dict[str, Any]:
    return {"n": np.array(trips), "x": np.arange(-512, 512, dtype=np.float32)}


def test_a_run_leaves_its_executions(linked: Callable[..., Module]) -> None:
    module = linked(launches(), threads=2)
    run = Ring(module, 0).run(inputs(5))
    assert run.lost == 0
    assert run.stamps["step"][-1] == RUN
    assert sorted(set(run.parts["execution"].tolist())) == [1, 2, 3, 4, 5, 6]
    assert set(run.parts["step"][run.parts["execution"] > 1].tolist()) == {1}
    run_stamp = run.stamps[-1]
    assert (run.parts["begin"] >= run_stamp["begin"]).all()
    assert (run.parts["end"] <= run_stamp["end"]).all()


def test_the_oldest_are_lost_and_counted(linked: Callable[..., Module]) -> None:
    """On one thread each launch leaves one stamp, so that their number is known."""
    module = linked(launches(), threads=1)
    run = Ring(module, 0).run(inputs(20_000))
    assert run.lost == 20_000 + 2 - abi.LEAST_STAMPS
    assert len(run.stamps) == abi.LEAST_STAMPS
    assert run.parts["execution"].tolist() == list(range(run.lost + 1, 20_002))


def test_a_ring_grows_until_it_holds_a_run(linked: Callable[..., Module]) -> None:
    runs, plain = stamped_runs(linked(launches(), threads=1), inputs(20_000), 2, None)
    assert [run.lost for run in runs] == [0, 0]
    assert len(plain) == 2
    assert [len(run.stamps) for run in runs] == [20_002, 20_002]


def test_results_are_those_of_runs_without_stamps(linked: Callable[..., Module]) -> None:
    module = linked(launches(), threads=2)
    before = module.run(inputs(3))["y"]
    Ring(module, 0).run(inputs(3))
    np.testing.assert_array_equal(module.run(inputs(3))["y"], before)


def test_functions_have_a_stamp_on_the_calling_thread(linked: Callable[..., Module]) -> None:
    b = Builder()
    size = b.const(8)
    b.input("x", "f32", [size], "[8]")
    y = b.output("y", "f32", [size], "[8]")
    b.allocate(y, b.const(32))
    x = b.buffer(Input(0))
    b.launch("relu", size, [x, y])
    b.body.append(CallOp("fill_halo", (), (TensorRef(y, F32, (size,)),), (0, 0, 0)))
    b.launch("relu", size, [x, y])
    run = Ring(linked(b, threads=1), 0).run({"x": np.ones(8, np.float32)})
    assert run.stamps["step"].tolist() == [0, 1, 2, RUN]
    assert len(set(run.stamps["thread"].tolist())) == 1


def test_an_artifact_without_stamps_is_refused(linked: Callable[..., Module]) -> None:
    module = linked(launches())
    module._api.instance_set_stamps = type(module._api.instance_set_stamps)()
    with pytest.raises(RuntimeFailure, match="the artifact has no profile"):
        Ring(module, 0).run(inputs(1))
