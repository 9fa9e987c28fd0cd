"""Runs tcc command lines in a folder and returns exit codes and output.

Commands that only compile run in the process of the test, because a new process needs a second to
import the compiler. Commands that load artifacts or start ranks run in a new process.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from tcc import cli

from tests.part import takes_all

COMPILING = ("compile", "plan")


def command(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `tcc WORDS` in `folder`; a new process also gets the environment's `variables`.

    With `--whole`, each command runs in a new process. Raises TimeoutExpired after 200 seconds.
    """
    if words[0] in COMPILING and not takes_all():
        return _here(folder, words)
    return subprocess.run(
        [sys.executable, "-m", "tcc", *words], cwd=folder, text=True, capture_output=True,
        env=os.environ | variables, timeout=200, check=False,
    )  # fmt: skip


def _here(folder: Path, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    with (
        chdir(folder),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as errors,
    ):
        code = cli.execute(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())
