"""If a rank of a plan is killed, the other ranks end too, and say so.

scripts/plan_bars --only kills repeats this twenty times for each launcher, with a time limit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import onnx
import pytest
from tcc.driver import compile_model
from tcc.options import read_options

from tests.jobs import MARK, is_loaded, long_model, rank_processes, wait_for_ends
from tests.processes import started

RANKS, SECONDS = 3, 60


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deaths")
    onnx.save(long_model(rows=30_000, width=384), folder / "long.onnx")
    options = read_options({"ranks": RANKS, "jobs": 1})
    compile_model(folder / "long.onnx", options, folder / "long.so")
    return folder / "long.so"


def test_every_rank_ends_and_says_a_sentence_when_one_is_killed(
    comm_library: Path, artifact: Path
) -> None:
    mark = str(uuid.uuid4())
    words = [sys.executable, "-m", "tcc", "run", str(artifact), "--nproc", str(RANKS)]
    variables = os.environ | {"TCC_COMM_LIBRARY": str(comm_library), MARK: mark}
    with started(words, env=variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        ranks: dict[int, int] = {}
        while len(ranks) < RANKS or not all(is_loaded(p, artifact) for p in ranks.values()):
            assert process.poll() is None, process.communicate()
            ranks = rank_processes(mark)
        os.kill(ranks[1], signal.SIGKILL)
        assert not wait_for_ends([*ranks.values()], SECONDS)
        printed, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, printed) == (70, "")
    assert "error: rank 1 failed, and the others were ended" in said
    assert "SIGKILL" in said
    for survivor in (0, 2):
        sentences = [line for line in said.splitlines() if line.startswith(f"rank {survivor}: ")]
        assert sentences, said
        assert any("rank 1" in line for line in sentences), said
