"""Watches a run, which polls it: runs signal handlers and checks the time limit."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any


@dataclass(frozen=True, slots=True)
class Limit:
    """The time limit of a run: how many `seconds` it may take, and when it ends
    (`time.monotonic`)."""

    seconds: float
    end: float

    def left(self) -> float:
        return max(0.0, self.end - monotonic())


@dataclass(slots=True)
class Watch:
    """Collects how an instance's run must end.

    `limit` is its time limit, and `late` is set when it is over. `raised` has the exceptions of
    signal handlers during the run.
    """

    limit: Limit | None = None
    late: bool = False
    raised: list[BaseException] = field(default_factory=list)


def answers(watch: Watch) -> Generator[int, Any, None]:
    """Yields the answer to each poll of a run: 1 ends the run, 0 lets it continue.

    The answer is 1 if a signal handler raised an exception or the time is over. This is a
    generator, because a pending signal handler then runs inside the `try`, where the generator
    resumes. In a function, the handler would run before the `try`.
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
    """Returns the limit of a run that starts now, or None without a timeout.

    Raises ValueError unless the timeout is a number of seconds above 0.
    """
    if timeout is None:
        return None
    seconds = float(timeout)  # type: ignore[arg-type]
    if not seconds > 0:
        raise ValueError(timeout)
    return Limit(seconds, monotonic() + seconds)
