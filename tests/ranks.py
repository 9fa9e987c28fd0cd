"""Processes that are the ranks of one job, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path


def start_ranks(
    size: int, script: str, library: Path, *arguments: object, **variables: str
) -> list[subprocess.Popen[str]]:
    """Starts `size` Pythons that run `script` with these arguments."""
    job = {
        "TCC_COMM_LIBRARY": str(library), "TCC_SIZE": str(size), "TCC_NUM_THREADS": "1",
        "TCC_RENDEZVOUS": f"test-{uuid.uuid4()}",
    }  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            env=os.environ | job | {"TCC_RANK": str(rank)} | variables,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip


def run_ranks(
    size: int, script: str, library: Path, *arguments: object, **variables: str
) -> list[str]:
    """What the ranks print, in their order; fails with the errors of those that fail."""
    ranks = start_ranks(size, script, library, *arguments, **variables)
    ended = [process.communicate(timeout=100) for process in ranks]
    assert not any(process.returncode for process in ranks), ended
    return [out for out, _ in ended]
