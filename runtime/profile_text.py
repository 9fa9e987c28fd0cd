"""A profile as lines for a terminal, and as a record for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tcc.runtime.terminal import Table

if TYPE_CHECKING:
    from tcc.runtime.profile import ModuleProfile

_ROWS = 10


def summary(profile: ModuleProfile) -> str:
    """Returns a sentence that names the slowest step, its share and what limits it."""
    if not profile.steps:
        return "the program has no steps"
    step = profile.steps[0]
    node = step.fact.location or step.fact.name
    limit = f", limited by {step.fact.limit}" if step.fact.limit else ""
    return f"slowest: {node}: {step.share:.1%} of the run{limit}"


def lines(profile: ModuleProfile) -> Iterator[str | Table]:
    """Yields the times of a run and of start-up, and the longest steps; times in microseconds."""
    startup = profile.startup
    yield (
        f"{profile.name}: {profile.seconds * 1e3:.3f} ms a run on {profile.threads} threads, "
        f"the mean of {profile.quiet_text}; stamps cost {profile.overhead:+.1%}"
    )
    yield (
        f"start-up: load {startup.load * 1e3:.2f} ms, weights {startup.weights * 1e3:.2f} ms, "
        f"first run {startup.first_run * 1e3:.2f} ms"
    )
    yield f"between steps: {profile.between * 1e3:.3f} ms"
    if profile.lost:
        yield f"the ring lost {profile.lost} stamps: the first steps of runs are missing"
    yield summary(profile)
    rows = [("us", "predicted", "share", "step")]
    for step in profile.steps[:_ROWS]:
        predicted = "" if step.predicted is None else f"{step.predicted * 1e6:.1f}"
        node = step.fact.location or step.fact.name
        rows.append((f"{step.seconds * 1e6:.1f}", predicted, f"{step.share:.1%}", node))
    yield Table(rows)
    if len(profile.steps) > _ROWS:
        yield f"{len(profile.steps) - _ROWS} more steps: see the page (-o) or --json"


def record(profile: ModuleProfile) -> dict[str, Any]:
    """Returns the profile as an object of JSON; all times are seconds."""
    return {
        "model": profile.name,
        "target": profile.facts.target,
        "threads": profile.threads,
        "runs": len(profile.runs),
        "seconds": profile.seconds,
        "plain_seconds": list(profile.plain_seconds),
        "between": profile.between,
        "overhead": profile.overhead,
        "lost": profile.lost,
        "startup": asdict(profile.startup),
        "memory": asdict(profile.statistics),
        "arena_bound": profile.facts.arena_bound,
        "steps": [
            {
                "step": step.number,
                **asdict(step.fact),
                "launches": step.launches,
                "measured": step.seconds,
                "share": step.share,
                "predicted": step.predicted,
                "idle": step.idle,
            }
            for step in sorted(profile.steps, key=lambda step: step.number)
        ],
    }
