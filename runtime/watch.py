"""What a run asks now and then on its own thread: handlers of signals, and its time."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any


@dataclass(frozen=True, slots=True)
class Limit:
    """The time that a run may take, and when it is over (`time.monotonic`)."""

    seconds: float
    end: float

    def left(self) -> float:
        return max(0.0, self.end - monotonic())


@dataclass(slots=True)
class Watch:
    """Of an instance: the limit of its run, and what a handler of a signal raised during it."""

    limit: Limit | None = None
    late: bool = False
    raised: list[BaseException] = field(default_factory=list)


def answers(watch: Watch) -> Generator[int, Any, None]:
    """What a run polls: 1 where a handler of a signal raised, or the time is over.

    Handlers run where a generator goes on, inside its `try`; in a function they would run before.
    """
    stop = 0
    while True:
        try:
            yield stop
            watch.late = watch.limit is not None and not watch.limit.left()
            stop = int(watch.late)
        except GeneratorExit:
            return
        except BaseException as failure:
            watch.raised.append(failure)
            stop = 1


def limit_of(timeout: object) -> Limit | None:
    """The limit of a run that begins now; None without one.

    Raises ValueError for what is no number of seconds above 0.
    """
    if timeout is None:
        return None
    seconds = float(timeout)  # type: ignore[arg-type]
    if not seconds > 0:
        raise ValueError(timeout)
    return Limit(seconds, monotonic() + seconds)
