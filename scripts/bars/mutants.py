"""Limits for programs of artifacts with changed words: how many of them end the process."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from environment import ROOT
from tcc.artifact import read_program

from bars.figures import Figure, at_most, say

sys.path.insert(0, str(ROOT / "tests" / "runtime"))
from mutants import MODELS, build_runner, compiled
from mutants import mutants as changed
from mutants import run as run_changed

_PROGRAMS = 10_000


def mutants(folder: Path) -> Iterator[Figure]:
    """Yields how many of ten thousand programs with randomly changed words end with a signal.

    Each program runs in its own process, with protected pages behind its arrays. The figure also
    says how many programs ran to their end: if it were none, the loader would refuse all.
    """
    runner = build_runner(folder)
    per_model, signals, ran = -(-_PROGRAMS // len(MODELS)), 0, 0
    for seed, name in zip(count(), MODELS, strict=False):
        say(f"{per_model} programs of {name}")
        artifact = compiled(name, folder)
        programs = changed(read_program(artifact), per_model, random.Random(seed))
        outcome = run_changed(runner, artifact, programs)
        signals, ran = signals + len(outcome.signals), ran + outcome.ran
    note = f"({ran} ran)"
    yield at_most(f"signals of {per_model * len(MODELS)} changed programs", signals, 0, note=note)
