"""Says in words what a sweep decided, and what is wrong with a lock."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tcc.tune.lock import CHANGED, VERDICTS
from tcc.tune.verdicts import SlowMachine, Verdicts


def verdict_facts(lock: Path, result: Verdicts) -> dict[str, Any]:
    """Returns the path of the lock, the ratio of the whole model, and the number of entries of each
    verdict."""
    counts = {v: sum(entry.verdict == v for entry in result.entries) for v in VERDICTS}
    return {"path": str(lock), "model": result.model, **counts}


def verdict_lines(lock: Path, result: Verdicts) -> Iterator[str]:
    """Yields a line for each choice that changed, and a line with the number of each verdict."""
    for entry in result.entries:
        if entry.gain is not None:
            yield f"  {entry.gain[0]:.3f} times as fast (at least {entry.gain[1]:.3f}): {entry.op}"
    facts = verdict_facts(lock, result)
    if facts[CHANGED] and result.model is None:
        yield "nobody has timed the whole model with these choices"
    counts = ", ".join(f"{facts[name]} {name}" for name in VERDICTS if facts[name])
    speed = "" if result.model is None else f", the model {result.model[0]:.3f} times as fast"
    yield f"{lock}: {counts or 'no kernels'}{speed}"


def check_speed(lock: Path, result: Verdicts) -> None:
    """Raises SlowMachine if too few rounds counted."""
    if result.slow:
        raise SlowMachine(
            "no choice changed",
            where=f"--lock {lock}",
            why="other work slowed the machine down in more than half of the rounds",
            hint="tune again when less runs beside it",
        )


def problem_lines(lock: Path, count: int, problems: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yields a line for each pair (kind, text) of `check.problems`, and a line with the number of
    each kind; `count` is the number of the lock's entries."""
    for kind, text in problems:
        yield f"{kind}: {text}"
    kinds = Counter(kind for kind, _ in problems)
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in ("missing", "stale", "unused"))
    yield f"{lock}: of {count} entries {counts}"
