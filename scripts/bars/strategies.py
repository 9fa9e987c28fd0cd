"""A figure for the strategies of all samples of the op table: how many compute a wrong result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bars.figures import Figure, say
from tests.distributed.test_strategies import DIVISIBLE, RANKS, judged_strategies


def strategies(folder: Path) -> Iterator[Figure]:
    """Yields how many samples have a strategy that does not compute the op's reference.

    All strategies of each sample run on 2, 3 and 4 ranks in lockstep.  `folder` stays empty.
    """
    count, failures = 0, []
    for case in DIVISIBLE:
        try:
            count += judged_strategies(case)
        except Exception as error:
            failures.append(case)
            say(f"{case}: {error}\n" + "\n".join(getattr(error, "__notes__", ())))
    what = f"{count} strategies of {len(DIVISIBLE)} samples on {', '.join(map(str, RANKS))} ranks"
    yield Figure(what, f"{len(failures)} samples wrong", "0 samples wrong", not failures)
