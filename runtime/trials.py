"""Trials: artifacts of one model whose kernels have other schedules, and the protocol of a runner.

A trial is compared with the analytic artifact, in which the compiler chose every schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tcc.runtime.reports import RuntimeFailure

# How a trial fails: its results differ, its process ends, or its process does not answer.
WRONG, CRASHED, HUNG = "wrong", "crashed", "hung"


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """An artifact on disk with the choices that were forced in it.

    `choices` maps digests of sites to texts. `refused` has the sites whose choice does not fit,
    with the reasons. `steps` has the digest of the site of each step of the program; None for a
    step that is no kernel. `price` is the predicted seconds of all steps; 0 if nobody predicts.
    `ops` has the operation in words of each kernel that the analytic artifact lacks. `removed` has
    the sites whose choice has no effect, because other choices remove the site.
    """

    path: Path
    choices: Mapping[str, str]
    refused: Mapping[str, str]
    steps: tuple[str | None, ...]
    price: float = 0.0
    ops: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def site_seconds(self, step_seconds: Sequence[float]) -> dict[str, float]:
        """Returns the seconds of each site, the sum over its steps."""
        seconds: dict[str, float] = {}
        for digest, step in zip(self.steps, step_seconds, strict=True):
            if digest is not None:
                seconds[digest] = seconds.get(digest, 0.0) + step
        return seconds


@dataclass(frozen=True, slots=True)
class Turn:
    """The times of a trial in one turn: the wall seconds of a run, and the seconds of each of its
    steps in a run."""

    seconds: float
    steps: tuple[float, ...]


class TrialFailedError(RuntimeFailure):
    """A trial that has no times; `outcome` is `wrong`, `crashed` or `hung`."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(f"the trial is {outcome}", why=why)
        self.outcome, self.why = outcome, why


class Runner(Protocol):
    """Runs trials in processes of their own."""

    def check(self, trial: Trial) -> None:
        """Compares a run of the trial with one of the analytic artifact.

        The first trial that is checked is the analytic artifact. Raises TrialFailedError if results
        differ, or if the process of the trial crashes or hangs.
        """

    def turn(self, trial: Trial, seconds: float) -> Turn:
        """Runs the trial for about `seconds`.

        Raises TrialFailedError if the process of the trial crashes or hangs.
        """

    def drop(self, trials: Sequence[Trial]) -> None:
        """Unloads trials that get no more turns."""

    def peak(self) -> float:
        """Returns the multiply-adds per second that all cores reach now."""
