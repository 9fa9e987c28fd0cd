"""The process's workers run correctly under ThreadSanitizer, asleep, forked, and shared by two
artifacts."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import programs
import pytest
from tcc.ir.program import Input, ReadInt
from tcc.ir.types import DTYPES
from tcc.runtime import Module
from trials import DELAYS, RUNTIME, aarch64_tools, build_for_aarch64, build_stress

from tests.processes import finished

# Two artifacts each have a launch of two slow tiles, and ask for three workers.
TWO_ARTIFACTS = """
import sys, threading
from pathlib import Path
import numpy as np
from tcc.runtime import load

def workers():
    return len(list(Path("/proc/self/task").iterdir()))

before = workers()
first, second = load(sys.argv[1], threads=3), load(sys.argv[2], threads=3)
x = np.ones((64,), np.float32)
a = first(x)
after_first = workers()
b = second(x)
assert np.array_equal(a, x + np.arange(1, 65)), a
assert np.array_equal(b, x * 2), b
assert after_first == before + 2, (before, after_first)
assert workers() == after_first, workers()
"""


# Prints the masks of blocked signals of the two workers.
BLOCKED_SIGNALS = """
import sys
from pathlib import Path
import numpy as np
from tcc.runtime import load

before = set(Path("/proc/self/task").iterdir())
load(sys.argv[1], threads=3)(np.ones((64,), np.float32))
for task in set(Path("/proc/self/task").iterdir()) - before:
    status = {}
    while "sleeping" not in status.get("State", ""):  # it has begun, and found nothing to do
        lines = (task / "status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
    print(status["SigBlk"])
"""


def run(*command: str | Path | int) -> None:
    result = finished(*command)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr[-3000:]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stress(tmp_path_factory.mktemp("stress"))


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stress(tmp_path_factory.mktemp("delayed"), *DELAYS)


def test_no_data_race_under_thread_sanitizer(tmp_path: Path) -> None:
    binary = build_stress(tmp_path, "-fsanitize=thread")
    run(binary, 3, 900, 4, 0, 0)


@pytest.mark.parametrize(("callers", "threads"), [(1, 2), (1, 5), (4, 3), (2, 64)])
def test_every_unit_runs_once(plain: Path, callers: int, threads: int) -> None:
    run(plain, callers, 6000, threads, 0, 0)


@pytest.mark.parametrize("threads", [3, 5, 16])
def test_every_unit_runs_once_with_delays_at_every_step(delayed: Path, threads: int) -> None:
    run(delayed, 1, 1200, threads, 0, 0)


@pytest.mark.skipif(aarch64_tools() != "", reason=f"needs {aarch64_tools()}")
def test_every_unit_runs_once_on_aarch64(tmp_path: Path) -> None:
    run(*build_for_aarch64(tmp_path)(1, 1000, 4, 0, 0))


def test_sleeping_workers_wake(plain: Path) -> None:
    run(plain, 1, 3000, 3, 0, 5000)


def test_workers_wake_off_the_callers_cpu_and_may_then_run_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCC_SPIN_MICROSECONDS", "100000")  # none sleeps within a launch
    run(build_stress(tmp_path, main="apart.c"))


def test_a_forked_child_makes_workers_of_its_own(plain: Path) -> None:
    run(plain, 2, 900, 3, 1, 0)


def test_workers_leave_fault_signals_to_handlers(mlp_path: Path) -> None:
    environment = {"PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    # longer than both seats take to be filled: else a worker could sleep at once, and the other do
    # both
    environment["TCC_SPIN_MICROSECONDS"] = "200000"
    command = (sys.executable, "-c", BLOCKED_SIGNALS, str(mlp_path))
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    names = ("SEGV", "BUS", "FPE", "ILL", "TRAP", "SYS", "PROF")
    delivered = {signal.Signals[f"SIG{name}"] for name in names}
    never = {signal.SIGKILL, signal.SIGSTOP}
    masks = [int(line, 16) for line in result.stdout.split()]
    assert len(masks) == 2
    for mask in masks:
        signals = {s for s in signal.Signals if not mask >> (s - 1) & 1}
        assert signals - never == delivered


def test_two_artifacts_share_one_pool_of_workers(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    programs.link(program, kernels, tmp_path / "a.so", name="first", weights=[weights])
    programs.link(programs.doubling(), kernels, tmp_path / "b.so", name="second")
    command = (sys.executable, "-c", TWO_ARTIFACTS, str(tmp_path / "a.so"), str(tmp_path / "b.so"))
    environment = {"PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_runs_at_once_share_the_workers_by_their_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCC_NUM_THREADS", "8")
    run(build_stress(tmp_path, main="shares.c"))


@pytest.mark.parametrize("callers", [2, 5])
def test_every_unit_runs_once_while_workers_change_teams(
    delayed: Path, callers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCC_NUM_THREADS", "8")
    run(delayed, callers, 800, 6, 0, 300)


def test_waits_show_who_lost_a_cpu_and_spinning_has_a_budget(tmp_path: Path) -> None:
    program = tmp_path / "stalls"
    source = Path(__file__).with_name("stalls.c")
    run_compiler = ("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{RUNTIME / 'src'}")
    include = f"-I{RUNTIME / 'include'}"
    subprocess.run([*run_compiler, include, source, "-o", program], check=True)
    run(program)


def test_a_launch_has_the_threads_that_its_units_are_worth(linked: Callable[..., Module]) -> None:
    """The caller says how many of 100 tiles are worth a thread, and any number is safe.

    All tiles are one part if two threads would find too little to do.
    """
    b = programs.Builder()
    least, one = b.register(), b.const(1)
    b.input("least", "i64", [one], "[1]")
    b.body.append(ReadInt(least, b.buffer(Input(0)), DTYPES["i64"]))
    n = b.const(100)
    y = b.output("y", "f32", [n], "[100]")
    b.allocate(y, b.const(400))
    b.launch("share", n, [y], least=least)
    module = linked(b, threads=3)
    for number in (51, 100, 101, 1 << 62):
        assert (module(np.array([number])) == 100).all(), number
    for number in (50, 2, 1, 0, -1, -(1 << 63)):
        assert (module(np.array([number])) >= 1).all(), number
