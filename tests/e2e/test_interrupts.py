"""Runs without end stop at signals, timeouts, the caller's poll, and the deadline of commands."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc import cli
from tcc.errors import TccError, UserError
from tcc.runtime import Module, abi

from tests.lib.agreement import BOOL, FLOAT, INT64, model_of, value
from tests.processes import started

node = helper.make_node
ENDLESS = np.array(1 << 62)
ENDLESS_INPUTS = ("-i", "x=f32=0", "-i", f"m=i64={1 << 62}")


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles x + m as a loop of m trips."""
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Add", ["a", "one"], ["b"])],
        "body",
        [value("i", INT64, []), value("c", BOOL, []), value("a", FLOAT, [])],
        [value("d", BOOL, []), value("b", FLOAT, [])],
    )
    model = model_of(
        [node("Loop", ["m", "", "x"], ["y"], body=body)],
        [value("x", FLOAT, []), value("m", INT64, [])],
        [value("y", FLOAT, [])],
        {"one": np.array(1, np.float32)},
    )
    path = tmp_path_factory.mktemp("loop") / "counting.so"
    onnx.save(model, path.with_suffix(".onnx"))
    tcc.compile(model, jobs=1).save(path)
    return path


@pytest.fixture
def module(counting: Path) -> Module:
    return tcc.load(counting)


def inputs(trips: Any = ENDLESS) -> dict[str, Any]:
    return {"x": np.array(0, np.float32), "m": np.array(trips)}


class AlarmError(Exception):
    """The exception that this file's signal handler raises."""


@pytest.fixture
def alarm() -> Iterator[None]:
    """Sets a timer that raises AlarmError after a tenth of a second."""

    def ring(*_: Any) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_a_signal_ends_an_endless_loop_with_the_exception_of_its_handler(
    module: Module, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AlarmError):
        module.run(inputs())
    assert module.run(inputs(7))["y"] == 7
    assert capfd.readouterr() == ("", "")


# Seconds within which a run must end on a busy machine; scripts/runtime_bars checks the bar of 50
# ms.
SOON = 3.0


Case = tuple[onnx.ModelProto, dict[str, Any], dict[str, Any], Any]


def long_kernel() -> Case:
    """Returns one matmul that takes seconds, small inputs, and their result."""
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", FLOAT, ["n", 2048])],
        [value("y", FLOAT, ["n", 2048])],
        {"w": np.eye(2048, dtype=np.float32)},
    )
    short = np.arange(4 * 2048, dtype=np.float32).reshape(4, 2048)
    return model, {"x": np.ones((120_000, 2048), np.float32)}, {"x": short}, short


def long_unit() -> Case:
    """Returns a sum of which one tile takes a second, small inputs, and their result."""
    steps = ["Tanh", "Exp"] * 6
    chain = [node(op, [f"x{n}" if n else "x"], [f"x{n + 1}"]) for n, op in enumerate(steps)]
    model = model_of(
        [*chain, node("ReduceSum", [f"x{len(steps)}"], ["y"], keepdims=0)],
        [value("x", FLOAT, ["n"])],
        [value("y", FLOAT, [])],
    )
    short = np.linspace(-1, 1, 999).astype(np.float32)
    reference = short.astype(np.float64)
    for op in steps:
        reference = np.tanh(reference) if op == "Tanh" else np.exp(reference)
    return model, {"x": np.ones(50_000_000, np.float32)}, {"x": short}, reference.sum()


def long_function() -> Case:
    """Returns a sort that takes seconds, small inputs, and their result."""
    model = model_of(
        [node("TopK", ["x", "k"], ["v", "i"])],
        [value("x", FLOAT, ["n"]), value("k", INT64, [1])],
        [value("v", FLOAT, ["k"]), value("i", INT64, ["k"])],
    )
    x = np.random.default_rng(0).standard_normal(20_000_000).astype(np.float32)
    small = {"x": x[:999], "k": np.array([999])}
    return model, {"x": x, "k": np.array([x.size])}, small, -np.sort(-x[:999])


Long = tuple[Module, dict[str, Any], dict[str, Any], Any]


@pytest.fixture(scope="module", params=[long_kernel, long_unit, long_function])
def long(request: pytest.FixtureRequest) -> Long:
    model, *values = request.param()
    much, little, reference = values
    return tcc.compile(model, jobs=1), much, little, reference


def expect_right(module: Module, little: dict[str, Any], want: Any) -> None:
    output = next(iter(module.run(little).values()))
    np.testing.assert_allclose(output, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


def test_a_run_that_takes_longer_than_its_timeout_ends(
    long: Long,
) -> None:
    module, much, little, reference = long
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"the run took longer than 0\.25 seconds") as caught:
        module.run(much, timeout=0.25)
    assert 0.25 < time.monotonic() - began < 0.25 + SOON
    assert isinstance(caught.value, TccError)
    assert isinstance(caught.value, tcc.RunTimeoutError)
    expect_right(module, little, reference)
    named = module.run(little, timeout=60)
    assert len(named) == len(module.outputs)


@pytest.mark.usefixtures("alarm")
def test_a_signal_ends_kernels_and_functions(long: Long, capfd: pytest.CaptureFixture[str]) -> None:
    module, much, little, reference = long
    began = time.monotonic()
    with pytest.raises(AlarmError):
        module(*much.values())
    assert time.monotonic() - began < 0.1 + SOON
    expect_right(module, little, reference)
    assert capfd.readouterr() == ("", "")


def test_a_signal_whose_handler_returns_ends_nothing(module: Module) -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        while not rung:
            assert module.run(inputs(2_000_000))["y"] == 2_000_000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon"])
def test_an_invalid_timeout_is_refused_with_a_sentence(module: Module, timeout: Any) -> None:
    with pytest.raises(UserError, match="that is no time for a run"):
        module.run(inputs(1), timeout=timeout)


def test_a_timeout_counts_in_other_threads_too_and_for_its_run_alone(module: Module) -> None:
    def late() -> None:
        with pytest.raises(TimeoutError):
            module.run(inputs(), timeout=0.1)
        finished.append(1)

    finished: list[int] = []
    threads = [threading.Thread(target=late) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert module.run(inputs(300_000))["y"] == 300_000
    for thread in threads:
        thread.join()
    assert finished == [1] * 3


def test_short_loops_poll_nothing_and_long_ones_the_callers_function(module: Module) -> None:
    contexts: list[int | None] = []

    def poll(context: int | None) -> int:
        contexts.append(context)
        return len(contexts) == 3

    instance, function = module._idle[0], abi.POLL(poll)
    api = module._api
    assert api.instance_set_poll(None, function, None) != 0
    assert api.instance_set_poll(instance, function, 77) == 0
    module.run(inputs(10))
    assert contexts == []
    with pytest.raises(KeyboardInterrupt):
        module.run(inputs())
    assert contexts == [77] * 3
    assert api.last_error() == b"the caller ended the run"
    assert api.instance_set_poll(instance, ctypes.cast(None, abi.POLL), None) == 0
    assert module.run(inputs(100_000))["y"] == 100_000
    assert contexts == [77] * 3


def test_other_threads_are_not_disturbed(module: Module) -> None:
    outputs: list[Any] = []
    threads = [
        threading.Thread(target=lambda: outputs.append(module.run(inputs(300_000))["y"]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == [300_000] * 2


@contextmanager
def command(*words: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts `tcc WORDS` on a run without end."""
    with started(
        [sys.executable, "-m", "tcc", *words, *ENDLESS_INPUTS],
        stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(folder)},
    ) as process:  # fmt: skip
        yield process


def test_a_process_has_a_deadline(counting: Path, tmp_path: Path) -> None:
    words = ["run", str(counting), "--output", "results", "--timeout", "1"]
    with command(*words, folder=tmp_path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "error: the command took too long\n  at: --timeout 1\n" in said
    assert list(tmp_path.iterdir()) == []
    assert not Path("results").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "counting.onnx"],
        ["bench", "counting.so"],
        ["verify", "counting.onnx", "counting.so"],
        ["inspect", "counting.so", "--measure"],
    ],
    ids=" ".join,
)
def test_commands_have_a_deadline(words: list[str], counting: Path, tmp_path: Path) -> None:
    """Each command runs in a new process, because the thread of an endless run ends with its
    process."""
    paths = [str(counting.parent / w) if w.startswith("counting") else w for w in words]
    with command(*paths, "--timeout", "1", folder=tmp_path) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "error: the command took too long\n  at: --timeout 1\n" in said
    assert list(tmp_path.iterdir()) == []


def test_a_command_within_its_deadline_is_not_disturbed(counting: Path) -> None:
    before = signal.getsignal(signal.SIGALRM)
    words = ["run", str(counting), "-i", "x=f32=0", "-i", "m=i64=5", "--timeout", "86400"]
    assert cli.execute(words) == 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command(counting: Path, sent: signal.Signals) -> None:
    with command("run", str(counting), folder=counting.parent) as process:
        task = Path(f"/proc/{process.pid}/task")
        while process.poll() is None and len(list(task.iterdir())) < 2:
            threading.Event().wait(0.01)  # until the run has its thread
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (130, "interrupted")


def children_of(process: int) -> list[int]:
    """Returns the ids of the processes that the main thread of a process started."""
    return [
        int(text) for text in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def test_ranks_end_with_a_launcher_that_is_killed(counting: Path) -> None:
    """The launcher is killed while each of its two ranks executes a run."""
    with command("run", str(counting), "--nproc", "2", folder=counting.parent) as process:
        ranks: list[int] = []
        while process.poll() is None and not (
            len(ranks) == 2 and all(len(os.listdir(f"/proc/{rank}/task")) > 1 for rank in ranks)
        ):
            threading.Event().wait(0.01)  # until their runs have threads
            ranks = children_of(process.pid)
        ends = [os.pidfd_open(rank) for rank in ranks]
        process.kill()
        process.communicate(timeout=60)
        for end in ends:
            waiting = select.poll()
            waiting.register(end, select.POLLIN)
            assert waiting.poll(60_000), "a rank lives on"
            os.close(end)
        assert len(ends) == 2


def test_results_larger_than_memory_are_a_sentence(counting: Path) -> None:
    model = model_of(
        [node("OneHot", ["x", "depth", "v"], ["y"])],
        [value("x", INT64, ["n"]), value("depth", INT64, [])],
        [value("y", FLOAT, ["n", "d"])],
        {"v": np.array([0, 1], np.float32)},
    )
    module = tcc.compile(model, jobs=1)
    feeds = {"x": np.zeros(300_000, np.int64), "depth": np.array(999_999_999)}
    with pytest.raises(UserError, match="not enough memory for the arrays of the run") as caught:
        module.run(feeds)
    assert "out of memory (1199999998800000 bytes for one array" in caught.value.why
    assert module.run({**feeds, "depth": np.array(4)})["y"].shape == (300_000, 4)
