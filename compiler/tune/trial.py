"""A trial: an artifact in which many kernels have other schedules at once, and how it is run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tcc.errors import TccError
from tcc.frozen import entity, frozen


@frozen
class KernelCandidate:
    """A choice of a kernel: its text, and its predicted seconds."""

    text: str
    price: float


class Space(Protocol):
    """The candidates of one kernel."""

    def near(self, text: str) -> Sequence[KernelCandidate]:
        """Returns the candidates that differ from the candidate `text` in one knob or dimension."""


@entity
class TunedKernel:
    """A kernel of the model: the digest of its site, its operation in words, the text of its
    analytic choice, and its candidates."""

    site: str
    op: str
    analytic: str
    space: Space


@entity
class Trial:
    """An artifact on disk with the choices that were forced in it.

    `choices` maps digests of sites to texts. `refused` has the sites whose choice does not fit,
    with the reasons. `steps` has the digest of the site of each step of the program; None for a
    step that is no kernel.
    """

    path: Path
    choices: Mapping[str, str]
    refused: Mapping[str, str]
    steps: tuple[str | None, ...]

    def site_seconds(self, step_seconds: Sequence[float]) -> dict[str, float]:
        """Returns the seconds of each site, the sum over its steps."""
        seconds: dict[str, float] = {}
        for digest, step in zip(self.steps, step_seconds, strict=True):
            if digest is not None:
                seconds[digest] = seconds.get(digest, 0.0) + step
        return seconds


@frozen
class Turn:
    """The times of a trial in one turn: the wall seconds of a run, and the seconds of each of its
    steps in a run."""

    seconds: float
    steps: tuple[float, ...]


class TrialFailedError(TccError):
    """A trial that has no times; `outcome` is `wrong`, `crashed` or `hung`."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__("a trial failed", why=why)
        self.outcome = outcome


class Runner(Protocol):
    """Runs trials in processes of their own."""

    def check(self, trial: Trial) -> None:
        """Compares a run of the trial with one of the analytic artifact.

        Raises TrialFailedError if results differ, or if the process of the trial crashes or hangs.
        """

    def turn(self, trial: Trial, seconds: float) -> Turn:
        """Runs the trial for about `seconds`.

        Raises TrialFailedError if the process of the trial crashes or hangs.
        """

    def drop(self, trials: Sequence[Trial]) -> None:
        """Unloads trials that get no more turns."""

    def peak(self) -> float:
        """Returns the multiply-adds per second that all cores reach now."""
