"""The poll of a run on its own thread: it runs handlers of signals and checks the time."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any


@dataclass(frozen=True, slots=True)
class Limit:
    """The seconds that a run may take, and when they end (on `time.monotonic`)."""

    seconds: float
    end: float

    def left(self) -> float:
        return max(0.0, self.end - monotonic())


@dataclass(slots=True)
class Watch:
    """The limit of an instance's run, and the exceptions of signal handlers during the run."""

    limit: Limit | None = None
    late: bool = False
    raised: list[BaseException] = field(default_factory=list)


def answers(watch: Watch) -> Generator[int, Any, None]:
    """Answers a run's polls: 1 where a signal's handler raised or the time is over, else 0.

    It is a generator because a pending handler then runs inside the `try`, where the generator
    resumes; in a function the handler would run before the `try`.
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
    """Returns the limit of a run that begins now; None without a timeout.

    Raises ValueError unless the timeout is a number of seconds above 0.
    """
    if timeout is None:
        return None
    seconds = float(timeout)  # type: ignore[arg-type]
    if not seconds > 0:
        raise ValueError(timeout)
    return Limit(seconds, monotonic() + seconds)
