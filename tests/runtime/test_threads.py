"""The process's workers: under ThreadSanitizer, asleep, forked, and shared by two artifacts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import programs
import pytest
from tcc.backends.toolchain import runtime_folder

USES = ("threads.c", "workers.c", "limits.c", "status.c")

# Two artifacts with a launch of two units that each take a while; three workers are asked for.
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


def build(folder: Path, *flags: str) -> Path:
    base = runtime_folder()
    sources = [str(Path(__file__).with_name("stress.c"))]
    sources += [str(base / "src" / name) for name in USES]
    includes = (f"-I{base / 'include'}", f"-I{base / 'src'}")
    command = ("cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", *flags, *includes)
    subprocess.run(
        (*command, *sources, "-o", "stress", "-lpthread", "-ldl"), cwd=folder, check=True
    )
    return folder / "stress"


def run(binary: Path, *arguments: int) -> None:
    result = subprocess.run(
        (str(binary), *map(str, arguments)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr[-3000:]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stress"))


def test_no_data_race_under_thread_sanitizer(tmp_path: Path) -> None:
    binary = build(tmp_path, "-fsanitize=thread")
    run(binary, 3, 300, 4, 0, 0)


@pytest.mark.parametrize(("callers", "threads"), [(1, 2), (1, 5), (4, 3), (2, 64)])
def test_every_unit_runs_once(plain: Path, callers: int, threads: int) -> None:
    run(plain, callers, 2000, threads, 0, 0)


def test_sleeping_workers_wake(plain: Path) -> None:
    run(plain, 1, 1000, 3, 0, 5000)


def test_a_forked_child_makes_workers_of_its_own(plain: Path) -> None:
    run(plain, 2, 300, 3, 1, 0)


def test_two_artifacts_share_one_pool_of_workers(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    programs.link(program, kernels, tmp_path / "a.so", name="first", weights=[weights])
    programs.link(programs.doubling(), kernels, tmp_path / "b.so", name="second")
    command = (sys.executable, "-c", TWO_ARTIFACTS, str(tmp_path / "a.so"), str(tmp_path / "b.so"))
    environment = {"PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
