"""Times trials in shuffled rounds, so that drift of the machine affects all of them equally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tcc.runtime.trials import Runner, Trial, TrialFailedError, Turn


@dataclass(frozen=True, slots=True)
class Round:
    """A turn of each trial, and the multiply-adds per second that the machine reached.

    The peak is the lower of those before and after the turns.
    """

    turns: tuple[Turn, ...]
    peak: float


class TurnFailedError(Exception):
    """The trial of index `index` failed in its turn."""

    def __init__(self, index: int, error: TrialFailedError) -> None:
        super().__init__(str(error))
        self.index, self.error = index, error


def timed_rounds(
    runner: Runner,
    trials: Sequence[Trial],
    seconds: float,
    order: Random,
    enough: Callable[[Sequence[Round]], bool],
) -> list[Round]:
    """Returns rounds, in each of which every trial has a turn of about `seconds`.

    `order` shuffles the turns of a round. `enough` returns True when there are enough rounds. The
    first turn of a trial does not count: it loads the trial and fills the caches. Raises
    TurnFailedError if a trial fails.
    """
    for index in range(len(trials)):
        _turn(runner, trials, index, 0.0)
    rounds: list[Round] = []
    before = runner.peak()
    while not enough(rounds):
        turns: dict[int, Turn] = {}
        for index in order.sample(range(len(trials)), len(trials)):
            turns[index] = _turn(runner, trials, index, seconds)
        after = runner.peak()
        rounds.append(Round(tuple(turns[n] for n in range(len(trials))), min(before, after)))
        before = after
    return rounds


def _turn(runner: Runner, trials: Sequence[Trial], index: int, seconds: float) -> Turn:
    try:
        return runner.turn(trials[index], seconds)
    except TrialFailedError as error:
        raise TurnFailedError(index, error) from error
