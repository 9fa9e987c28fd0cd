"""Budgets: the table, its texts, and errors that name what to raise."""

from __future__ import annotations

import errno
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import fields
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import tcc
from onnx import parser
from tcc.backends.idle_pool import RESTING
from tcc.backends.workers import WorkerFailedError, WorkerPool, _with_budget, _Worker
from tcc.budgets import BUDGETS, MEANINGS, Budgets, budgets_help, read_budgets, within
from tcc.cli import execute
from tcc.errors import ToolError, UserError
from tcc.frontends import load_model
from tcc.memory import taken
from tcc.options import read_options

HEAD = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>'
CHAIN = parser.parse_model(
    HEAD + "g (float[2] x) => (float[2] y) { a = Neg (x) b = Neg (a) y = local.f (b) }"
    '<domain: "local", opset_import: ["" : 21]> f (p) => (q) { r = Neg (p) q = Neg (r) }'
)
HUNGRY = """
import os
import signal
import time
from tcc.backends.workers import serve

def answer(request):
    if request == "slow":
        time.sleep(60)
    if request == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if isinstance(request, tuple):
        held = bytearray(request[1])
        time.sleep(60)
    return len(bytearray(request)) if isinstance(request, int) else request, ""

def main():
    serve(answer)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "hungry_worker.py").write_text(HUNGRY)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "hungry_worker"


def test_texts_and_mappings_agree() -> None:
    texts = read_options({"budgets": ("nodes=100K", "kernel_bytes=2GiB")}, python=False)
    python = read_options({"budgets": {"nodes": 100 << 10, "kernel_bytes": "2G"}})
    assert texts.budgets == python.budgets == Budgets(nodes=102400, kernel_bytes=1 << 31)
    assert read_options({}).budgets == BUDGETS


@pytest.mark.parametrize("text", ["nodes", "nodes=", "nodes=0", "nodes=-1", "nodes=1Q", "what=1"])
def test_an_invalid_budget_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="bad option"):
        read_options({"budgets": (text,)}, python=False)


def test_the_help_of_compile_lists_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["compile", "--help"]) == 0
    text = "".join(capsys.readouterr().out.split())
    assert "".join(budgets_help().split()) in text
    assert all(f"{f.name}={f.default}" in text for f in fields(Budgets) if f.name != "bytes")
    assert "bytes=threequartersofwhatthereis" in text


@pytest.mark.parametrize(
    ("name", "least"), [("nodes", 5), ("nesting", 2)], ids=["nodes", "nesting"]
)
def test_an_import_over_budget_says_how_to_raise_it(name: str, least: int) -> None:
    load_model(CHAIN, budgets=read_budgets({name: least}))
    with pytest.raises(UserError) as error:
        load_model(CHAIN, budgets=read_budgets({name: least - 1}))
    assert f"budget of {least - 1} " in error.value.what
    assert error.value.hint.endswith(f"--budget {name}={2 * (least - 1)}")


def test_a_long_import_is_over_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: 10.0 * next(clock))
    load_model(CHAIN, budgets=Budgets(import_seconds=100))
    with pytest.raises(UserError, match="20 seconds"):
        load_model(CHAIN, budgets=Budgets(import_seconds=20))


def test_a_worker_that_takes_too_long_ends(worker: str) -> None:
    pool = WorkerPool(worker, 1, budgets=Budgets(kernel_seconds=1))
    with pytest.raises(WorkerFailedError, match="--budget kernel_seconds=2"):
        pool.answers([pool.submit("slow")])
    pool.abandon()


def test_a_worker_may_have_any_time(worker: str) -> None:
    pool = WorkerPool(worker, 1, budgets=Budgets(kernel_seconds=1 << 80))
    assert pool.answers([pool.submit("quick")]) == ["quick"]
    pool.abandon()


def test_a_worker_gets_no_more_memory_than_its_budget(worker: str) -> None:
    pool = WorkerPool(worker, 1, budgets=Budgets(kernel_bytes=1 << 30))
    assert pool.answers([pool.submit(1 << 20)]) == [1 << 20]
    with pytest.raises(WorkerFailedError, match="--budget kernel_bytes=2147483648"):
        pool.answers([pool.submit(1 << 30)])
    pool.abandon()


def test_an_error_of_a_worker_with_a_small_budget_is_reported() -> None:
    process, complaints = MagicMock(), MagicMock()
    worker = _Worker(process, complaints, Budgets(kernel_bytes=1 << 20))
    assert _with_budget(worker, "this is no kernel") == "this is no kernel"
    for over in (_with_budget(worker, "killed", ended=True), _with_budget(worker, "out of memory")):
        assert isinstance(over, UserError)
        assert "kernel_bytes" in over.hint


@pytest.mark.parametrize(
    "budget",
    ["bytes=1", "bytes=100M", "kernel_bytes=1", "kernel_bytes=5M", "kernel_bytes=10M"],
)
def test_a_compile_that_a_small_budget_ends_names_the_budget(budget: str, tmp_path: Path) -> None:
    """The test uses a new process, because libraries of this process hold memory that they can
    reuse."""
    name, _, size = budget.partition("=")
    (tmp_path / "m.onnx").write_bytes(CHAIN.SerializeToString())
    process = subprocess.run(
        [sys.executable, "-m", "tcc", "compile", "m.onnx", "--jobs", "1", "--budget", budget],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert process.returncode == 2, process.stderr
    most = int(size.rstrip("M")) << (20 if "M" in size else 0)
    assert f"error: the model is over the budget of {most} {MEANINGS[name]}\n" in process.stderr
    assert f"--budget {name}=" in process.stderr
    assert "Traceback" not in process.stderr
    assert "because: " in process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 1 TiB"),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ToolError("cc failed", why="cc1: out of memory allocating 65536 bytes"),
    ],
)
def test_a_memory_error_names_the_budget(error: Exception) -> None:
    budgets = Budgets(bytes=1 << 32)
    with pytest.raises(UserError, match="budget of 4294967296 bytes") as refusal:
        within(budgets, partial(fail, error))
    assert refusal.value.why
    with pytest.raises(KeyError):
        within(budgets, partial(fail, KeyError("memory")))


def fail(error: Exception) -> None:
    raise error


def test_a_limit_that_is_the_users_is_no_budget() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 33, before[1]))
    try:
        with pytest.raises(UserError, match="there is not enough memory"):
            within(BUDGETS, partial(fail, MemoryError()))
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_a_thread_that_cannot_be_started_is_no_traceback(
    worker: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", start)
    pool = WorkerPool(worker, 1)
    with pytest.raises(WorkerFailedError) as error:
        pool.answers([pool.submit("quick")])
    assert error.value.over is not None
    assert "can't start new thread" in error.value.over.why
    pool.abandon()
    assert capfd.readouterr().err == ""


def test_a_compile_has_its_budget_and_leaves_no_limits() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA), threading.active_count()
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    limit = partial(resource.getrlimit, resource.RLIMIT_DATA)
    assert within(Budgets(bytes=1 << 33), limit, whole=True)[0] == 1 << 33
    assert within(Budgets(bytes=1 << 33), limit)[0] > 1 << 33
    assert (resource.getrlimit(resource.RLIMIT_DATA), threading.active_count()) == before
    assert handlers == [signal.getsignal(number) for number in signal.valid_signals()]


def test_the_default_budget_is_three_quarters_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tcc.budgets.memory_here", lambda: 120 << 20)
    assert BUDGETS.memory() == 90 << 20
    assert BUDGETS.memory(60 << 20) == 45 << 20
    assert Budgets(bytes=80 << 20).memory() == 80 << 20
    assert Budgets(bytes=1 << 40).memory() == 120 << 20
    with pytest.raises(UserError, match=f"budget of {90 << 20} bytes") as error:
        within(BUDGETS, list, whole=True)
    assert "needs more memory" in error.value.hint


def test_memory_of_all_processes_counts_together(worker: str) -> None:
    """No single process exceeds the budget."""
    RESTING.end()  # processes of earlier compiles count too
    most = 450 << 20
    pool = WorkerPool(worker, 2)
    numbers = [pool.submit(("held", 250 << 20)) for _ in range(2)]
    with pytest.raises(UserError, match=f"budget of {most} bytes") as error:
        within(Budgets(bytes=most), partial(pool.answers, numbers))
    assert int(error.value.why.split()[-2]) > most
    pool.abandon()
    pool = WorkerPool(worker, 1)
    assert within(Budgets(bytes=most), partial(pool.answers, [pool.submit(250 << 20)]))
    pool.abandon()


def test_a_compile_ends_in_time_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endless work stands for a pass that is stuck."""
    monkeypatch.setattr("tcc.driver.optimise", lambda *_: stuck())
    threads = threading.active_count()
    with pytest.raises(UserError, match="budget of 1 seconds of the whole compile") as error:
        tcc.compile(CHAIN, budgets={"seconds": 1})
    assert error.value.hint.endswith("--budget seconds=2")
    assert error.value.exit_code == 2
    assert threading.active_count() <= threads


def stuck() -> None:
    """Loops for half a minute, so that a test that does not end it fails instead of hanging."""
    for _ in range(1 << 30):
        pass


@pytest.mark.parametrize("command", ["compile", "verify", "bench"])
def test_commands_that_compile_keep_the_budget_of_memory(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tcc.budgets.memory_here", lambda: taken() + (4 << 20))
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(CHAIN.SerializeToString())
    assert execute([command, "m.onnx"]) == 2
    assert MEANINGS["bytes"] in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_worker_that_the_system_ends_lacked_memory(worker: str) -> None:
    pool = WorkerPool(worker, 1)
    with pytest.raises(WorkerFailedError, match="bytes of memory of all processes") as error:
        pool.answers([pool.submit("killed")])
    assert error.value.over is not None
    pool.abandon()
