"""Limits for the runtime's C code under sanitizers and valgrind, measured by the tests that run it
there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from environment import ROOT
from junit import counted

from bars.figures import Figure, absent, say

RUNTIME_TESTS = ("tests/runtime", "tests/e2e/test_c_client.py", "tests/e2e/test_artifacts.py")


def sanitizers(folder: Path) -> Iterator[Figure]:
    """Yields two figures: how many tests of the runtime fail under sanitizers and valgrind.

    The tests' programs are built with ASan, UBSan or TSan; an AVX2 artifact of a C program runs
    under valgrind.
    """
    yield _tested("under ASan, UBSan and TSan", folder, *RUNTIME_TESTS, "-k", "not valgrind")
    if shutil.which("valgrind") is None:
        yield absent("under valgrind", "0 failed", "no valgrind")
        return
    yield _tested("under valgrind", folder, *RUNTIME_TESTS, "-k", "valgrind")


def _tested(what: str, folder: Path, *arguments: str) -> Figure:
    say(f"pytest {' '.join(arguments)}")
    report = folder / "tests.xml"
    command = (sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup")
    subprocess.run(
        (*command, "--junitxml", str(report), *arguments),
        cwd=ROOT, stdout=sys.stderr, check=False,
    )  # fmt: skip
    passed, failed, _ = counted(report)
    return Figure(what, f"{passed} passed, {failed} failed", "0 failed", passed > 0 and not failed)
