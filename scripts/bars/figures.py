"""Measured figures with the limits that they must meet (bars), and helpers to measure them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT

RUNTIME, TESTS = ROOT / "runtime", ROOT / "tests" / "runtime"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, and the limit that it must meet (`bar`).

    `met` says if the value meets the limit. It is None if the machine lacks something that the
    measurement needs.
    """

    what: str
    value: str
    bar: str
    met: bool | None

    def row(self) -> str:
        verdict = "not here" if self.met is None else "met" if self.met else "MISSED"
        return f"{self.what:<44} {self.value:>28}  {self.bar:<24} {verdict}"


# A function that measures figures; its argument is a folder for files that it builds.
Measure = Callable[[Path], Iterable[Figure]]


def at_most(what: str, value: float, bar: float, unit_name: str = "", note: str = "") -> Figure:
    """Returns a figure whose limit is met if the value is at most `bar`."""
    text = f"{value:.4g}{unit_name and ' ' + unit_name}{note and ' ' + note}"
    return Figure(what, text, f"<= {bar:g}{unit_name and ' ' + unit_name}", value <= bar)


def at_least(what: str, value: float, bar: float, unit_name: str = "", note: str = "") -> Figure:
    """Returns a figure whose limit is met if the value is at least `bar`."""
    text = f"{value:.4g}{unit_name and ' ' + unit_name}{note and ' ' + note}"
    return Figure(what, text, f">= {bar:g}{unit_name and ' ' + unit_name}", value >= bar)


def absent(what: str, bar: str, reason: str) -> Figure:
    """Returns a figure that this machine cannot measure."""
    return Figure(what, reason, bar, None)


def unpack_runtime(commit: str, folder: Path) -> Path | None:
    """Writes the folder `runtime` of a commit into `folder` and returns its path.

    Returns None if the checkout lacks the commit.
    """
    archive = subprocess.run(
        ("git", "archive", commit, "runtime"), cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "runtime"


def say(text: str) -> None:
    """Prints on stderr what is being measured."""
    print(text, file=sys.stderr, flush=True)


def output(*command: str | Path, text: str | None = None, **variables: str) -> str:
    """Returns the output of a command, run with additional environment variables.

    Raises CalledProcessError if the command fails; its error output goes to stderr.
    """
    process = subprocess.run(
        [str(part) for part in command], input=text, stdout=subprocess.PIPE, text=True, check=True,
        env=os.environ | variables,
    )  # fmt: skip
    return process.stdout


def compiled(folder: Path, program: str, sources: Sequence[str], *flags: str) -> Path:
    """Compiles the program tests/runtime/PROGRAM.c with these source files of the runtime."""
    files = [str(TESTS / f"{program}.c"), *(str(RUNTIME / "src" / name) for name in sources)]
    includes = (f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}")
    binary = folder / program
    output("cc", "-std=gnu11", "-O2", *includes, *flags, *files, "-o", binary, "-lpthread", "-ldl")
    return binary
