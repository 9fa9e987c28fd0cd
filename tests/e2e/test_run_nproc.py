"""`tcc run --nproc` starts the ranks of a model with collectives, as processes of one command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tcc.driver import compile_model
from tcc.options import read_options

from .test_collectives import every_kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the model and each rank's input."""
    path = tmp_path_factory.mktemp("ranks")
    compile_model(every_kind(), read_options({"jobs": 1}), path / "kinds.so")
    for rank in range(2):
        np.save(path / f"x{rank}.npy", np.full((2, 3), rank + 1, np.float32))
    np.save(path / "wrong1.npy", np.zeros((2, 5), np.float32))
    np.save(path / "wrong0.npy", np.zeros((2, 3), np.float32))
    return path


def tcc_run(folder: Path, library: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tcc", "run", "kinds.so", *words], cwd=folder, text=True,
        env=os.environ | {"TCC_COMM_LIBRARY": str(library)}, capture_output=True, timeout=100,
        check=False,
    )  # fmt: skip


def test_ranks_have_inputs_and_outputs_of_their_own(comm_library: Path, folder: Path) -> None:
    words = ("--nproc", "2", "--pin", "--input", "x=@x{rank}.npy", "--output", "out{rank}")
    ended = tcc_run(folder, comm_library, *words)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("rank 0: total")
    assert "\nrank 1: total" in ended.stdout
    for rank in range(2):
        total = np.load(folder / f"out{rank}" / "total.npy")
        np.testing.assert_array_equal(total, np.full((2, 3), 4 + rank))
    ended = tcc_run(folder, comm_library, *words, "--json", "--threads", "1")
    assert [set(names) for names in json.loads(ended.stdout)] == [
        {"total", "rows", "columns", "exchanged"}
    ] * 2


def test_the_first_rank_that_fails_ends_the_others(comm_library: Path, folder: Path) -> None:
    words = ("--nproc", "2", "--input", "x=@wrong{rank}.npy")
    ended = tcc_run(folder, comm_library, *words)
    assert ended.returncode == 2
    # the rank that ends first names the rank with the wrong input
    assert re.search(r"rank 1: error: |rank 0: error: .*rank 1 failed: ", ended.stderr)
    assert re.search(r"error: rank [01] failed, and the others were ended", ended.stderr)
    assert "input" in ended.stderr
    assert "its exit code is 2" in ended.stderr
    assert ended.stdout == ""


def test_one_process_says_how_ranks_are_started(comm_library: Path, folder: Path) -> None:
    ended = tcc_run(folder, comm_library, "--input", "x=@x0.npy")
    assert ended.returncode == 2
    assert "the model has collectives, and its ranks do not meet" in ended.stderr
    assert "--nproc" in ended.stderr
