"""The command line starts several ranks."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile

import pytest
from tcc.cli.ranks import run_ranks
from tcc.errors import UserError
from tcc.runtime.rank_processes import _end_survivors, _Rank


def test_ranks_share_a_secret_that_is_made_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of one job get a new secret in place of the user's "none"; different jobs get different
    secrets."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho $TCC_TOKEN $TCC_RENDEZVOUS\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("TCC_TOKEN", "none")
    jobs = [run_ranks(2, False, []) for _ in range(2)]
    assert [len(set(printed)) for printed in jobs] == [1, 1]
    words = {word for printed in jobs for word in printed[0].split()}
    assert len(words) == 4
    assert all(len(word) >= 20 for word in words)


def test_the_rank_that_a_signal_ended_is_the_one_that_failed() -> None:
    """The report names the killed rank, although the end of a survivor, which only says that its
    peer is dead, is seen first."""
    codes = (
        "raise SystemExit(2)",
        "import os; os.kill(os.getpid(), 9)",
        "import signal; signal.pause()",
    )
    ends: SimpleQueue[tuple[int, bool]] = SimpleQueue()
    with ExitStack() as files:
        ranks = []
        for code in codes:
            out, errors = (files.enter_context(TemporaryFile("w+")) for _ in range(2))
            process = subprocess.Popen([sys.executable, "-c", code])
            ranks.append(_Rank(process, out, errors))
        ranks[1].process.wait()
        ends.put((1, False))
        alive = dict(enumerate(ranks))
        del alive[0]
        assert _end_survivors((0, False), ranks, alive, ends, print) == (1, False)
        assert [rank.process.wait() for rank in ranks] == [2, -signal.SIGKILL, -signal.SIGTERM]


@pytest.mark.parametrize(("end", "code"), [("exit 7", 7), ("kill -9 $$", 70)])
def test_the_error_has_the_exit_code_of_the_rank_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, code: int
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(UserError, match="rank 0 failed") as caught:
        run_ranks(1, False, [])
    assert caught.value.exit_code == code


def test_a_rank_that_cannot_be_started_is_an_error_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(UserError, match="rank 0 cannot be started") as caught:
        run_ranks(1, False, [])
    assert caught.value.exit_code == 2
