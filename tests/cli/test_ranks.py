"""Ranks that the command line starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tcc.cli.ranks import run_ranks


def test_ranks_share_a_secret_that_is_made_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the user's choice of none; jobs have different ones."""
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
