"""Figures with the bar that each is to reach, and the programs that measure them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT

RUNTIME, TESTS = ROOT / "runtime", ROOT / "tests" / "runtime"


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured; `met` is None where the machine lacks what the measurement needs."""

    what: str
    value: str
    bar: str
    met: bool | None

    def row(self) -> str:
        verdict = "not here" if self.met is None else "met" if self.met else "MISSED"
        return f"{self.what:<44} {self.value:>28}  {self.bar:<24} {verdict}"


# Measures figures with a folder for what it builds.
Measure = Callable[[Path], Iterable[Figure]]


def at_most(what: str, value: float, bar: float, unit: str = "", note: str = "") -> Figure:
    """A figure that is met at `bar` or below."""
    text = f"{value:.4g}{unit and ' ' + unit}{note and ' ' + note}"
    return Figure(what, text, f"<= {bar:g}{unit and ' ' + unit}", value <= bar)


def at_least(what: str, value: float, bar: float, unit: str = "", note: str = "") -> Figure:
    """A figure that is met at `bar` or above."""
    text = f"{value:.4g}{unit and ' ' + unit}{note and ' ' + note}"
    return Figure(what, text, f">= {bar:g}{unit and ' ' + unit}", value >= bar)


def absent(what: str, bar: str, reason: str) -> Figure:
    """A figure that this machine cannot give."""
    return Figure(what, reason, bar, None)


def say(text: str) -> None:
    """Tells on stderr what is being measured."""
    print(text, file=sys.stderr, flush=True)


def output(*command: str | Path, text: str | None = None, **variables: str) -> str:
    """What a command prints, with these environment variables too; raises CalledProcessError with
    its errors shown where it fails."""
    done = subprocess.run(
        [str(part) for part in command], input=text, stdout=subprocess.PIPE, text=True, check=True,
        env=os.environ | variables,
    )  # fmt: skip
    return done.stdout


def compiled(folder: Path, program: str, sources: Sequence[str], *flags: str) -> Path:
    """The program tests/runtime/PROGRAM.c with these source files of the runtime."""
    files = [str(TESTS / f"{program}.c"), *(str(RUNTIME / "src" / name) for name in sources)]
    includes = (f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}")
    made = folder / program
    output("cc", "-std=gnu11", "-O2", *includes, *flags, *files, "-o", made, "-lpthread", "-ldl")
    return made
