"""Modules respect the process around them: signals, forks, and limits by caller and environment."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from programs import expected_mlp
from tcc.runtime import Module, load
from tcc.runtime.calls import Results
from tcc.runtime.images import _IMAGES

from tests.processes import end_after


def test_a_forked_child_runs_with_threads_of_its_own(mlp_path: Path) -> None:
    module = load(mlp_path, threads=2)
    x = np.ones(64, np.float32)
    assert np.array_equal(module(x), expected_mlp(x))
    child = os.fork()
    if child == 0:
        end_after(20)
        good = all(np.array_equal(module(x), expected_mlp(x)) for _ in range(50))
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(module(x), expected_mlp(x))


def _holding(*locks: Any) -> tuple[threading.Thread, threading.Event]:
    """Starts a thread that holds the locks until the event."""
    is_held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            is_held.set()
            end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    return thread, end


def test_a_forked_child_does_not_wait_for_threads_it_lacks(mlp_path: Path) -> None:
    module = load(mlp_path, threads=1)
    x = np.ones(64, np.float32)
    thread, end = _holding(module._lock)
    child = os.fork()
    if child == 0:
        end_after(20)
        is_equal = np.array_equal(module(x), expected_mlp(x))
        os._exit(0 if is_equal else 1)
    end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    thread, end = _holding(_IMAGES.lock)
    threading.Timer(0.2, end.set).start()  # the fork waits until the lock is free
    child = os.fork()
    if child == 0:
        end_after(20)
        os._exit(0 if np.array_equal(load(mlp_path, threads=1)(x), expected_mlp(x)) else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def _interrupted(*_: object) -> int:
    raise KeyboardInterrupt


def test_an_interrupt_as_an_output_is_made_ends_the_call(
    mlp: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(mlp._results, "memory", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            mlp([1.0, 1.0])
    assert mlp(np.ones(2, np.float32)).tolist() == [2, 3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_ctypes_swallows_ends_the_call(
    mlp: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Results, "_allocate", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        mlp([1.0, 1.0])


def test_the_default_number_of_threads(mlp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TCC_NUM_THREADS", raising=False)
    assert load(mlp_path).statistics().threads == len(os.sched_getaffinity(0))
    monkeypatch.setenv("TCC_NUM_THREADS", "3")
    assert load(mlp_path).statistics().threads == 3
    assert load(mlp_path, threads=1).statistics().threads == 1


@pytest.mark.parametrize("text", ["abc", "4x", "-1", " 4", "+4", "1.5"])
def test_an_invalid_default_number_of_threads_is_refused(
    mlp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TCC_NUM_THREADS", text)
    pattern = re.escape(f"TCC_NUM_THREADS is '{text}': expected a number of threads")
    with pytest.raises(RuntimeError, match=pattern):
        load(mlp_path)
    for empty in ("", "0"):
        monkeypatch.setenv("TCC_NUM_THREADS", empty)
        assert load(mlp_path).statistics().threads == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("text", ["abc", "20us", "-1", " 4", "+4", "1.5"])
def test_an_invalid_time_to_spin_is_refused(
    mlp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TCC_SPIN_MICROSECONDS", text)
    pattern = re.escape(f"TCC_SPIN_MICROSECONDS is '{text}': expected a number of microseconds")
    with pytest.raises(RuntimeError, match=pattern):
        load(mlp_path)
    for number in ("", "0", "2000"):
        monkeypatch.setenv("TCC_SPIN_MICROSECONDS", number)
        load(mlp_path)


@pytest.mark.parametrize("threads", [-1, 257, 1 << 32, 1.5, "2"])
def test_an_invalid_number_of_threads_is_refused(mlp_path: Path, threads: Any) -> None:
    with pytest.raises(RuntimeError, match="threads"):
        load(mlp_path, threads=threads)


@pytest.mark.parametrize("text", [" -1", "+5", "-1", "0", "1KB", "1e9", "9" * 30, "17000000T"])
def test_an_invalid_size_of_memory_is_refused(
    mlp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TCC_MEMORY", text)
    with pytest.raises(RuntimeError, match="expected bytes, as in 512M or 4G"):
        load(mlp_path)


WEIGHTS_AS_LOADED = """
import sys
from pathlib import Path
import numpy as np
from tcc.runtime import load

module = load(sys.argv[1], threads=1)
assert module(np.ones(3, np.float32)).tolist() == [2, 3, 4]
for line in Path("/proc/self/maps").read_text().splitlines():
    low, high = (int(end, 16) for end in line.split()[0].split("-"))
    if line.endswith(Path(sys.argv[1]).name) and high - low >= 8 << 20:
        print("mapped")
"""


def test_weights_are_not_copied_where_memory_is_short(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    path = tmp_path / "large.so"
    programs.link(program, kernels, path, weights=[weights.ljust(8 << 20, b"\0")])
    environment = {"PYTHONPATH": ":".join(sys.path), "TCC_MEMORY": "15M"}
    command = (sys.executable, "-c", WEIGHTS_AS_LOADED, str(path))
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "mapped\n"
