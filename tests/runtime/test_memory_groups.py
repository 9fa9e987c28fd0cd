"""In a control group of 300 MB, a run that does not fit gets a status, and no process is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest
from memory_groups import NoGroup, memory_group

MB = 1_000_000
LIMIT = 300 * MB

# Enters the group, runs a case, and prints how many runs were right and how many had a status.
PROCESS = """
import os, sys, threading
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
import numpy as np
import tcc
from tcc.runtime import load

path, case, megabytes = sys.argv[2], sys.argv[3], int(sys.argv[4])
right, reasons, own = [], [], []

def run(module, megabytes):
    count = np.int64(megabytes * 250_000)
    try:
        right.append(module(count)[0] == np.float32(count))
    except RuntimeError as error:
        reasons.append(str(error))

def make_own():
    own.append(np.ones(100_000_000, np.uint8))

if case == "before":
    make_own()
module = load(path, threads=1)
if case == "grown":
    run(module, 30)
if case in ("after", "grown"):
    make_own()
if case == "callers":
    modules = [load(path, threads=1) for _ in range(8)]
    for _ in range(3):
        ready = threading.Barrier(8)
        def call(module):
            ready.wait()
            run(module, megabytes)
        threads = [threading.Thread(target=call, args=(module,)) for module in modules]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
else:
    run(module, megabytes)
assert all(right), right
for text in reasons:
    assert "out of memory" in text and "asks for" in text and "leaves it" in text, text
print(len(right), len(reasons))
"""


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    try:
        with memory_group(request.param, f"tcc-test-{os.getpid()}", LIMIT) as folder:
            yield folder
    except NoGroup as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def models(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("filling")
    for where in ("arena", "pool"):
        programs.link(programs.filling(where == "pool"), kernels, folder / f"{where}.so")
    return {path.stem: path for path in folder.glob("*.so")}


# (the place of a run's memory, the case, the megabytes of a run, the least and the most right runs)
CASES = [
    ("arena", "alone", 100, 1, 1), ("arena", "before", 60, 1, 1), ("arena", "before", 200, 0, 0),
    ("arena", "after", 200, 0, 0), ("arena", "grown", 200, 1, 1), ("arena", "callers", 60, 3, 12),
    ("pool", "alone", 260, 0, 0), ("pool", "callers", 10, 24, 24), ("pool", "callers", 60, 3, 12),
]  # fmt: skip


@pytest.mark.parametrize(("where", "case", "megabytes", "least", "most"), CASES)
def test_runs_that_do_not_fit_get_a_status(
    group: Path,
    models: dict[str, Path],
    where: str,
    case: str,
    megabytes: int,
    least: int,
    most: int,
) -> None:
    command = (sys.executable, "-c", PROCESS, str(group), str(models[where]), case, str(megabytes))
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    right, refused = map(int, process.stdout.split())
    assert least <= right <= most, process.stdout
    assert right + refused == {"callers": 24, "grown": 2}.get(case, 1)
