"""A profile as lines for a terminal, and as a record for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tcc.runtime.graph_measures import critical_path, peak_memory
from tcc.runtime.terminal import Table
from tcc.runtime.units import bytes_text, duration

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
        f"{profile.name}: {duration(profile.seconds)} a run, {profile.threads_text}, "
        f"the mean of {profile.quiet_text}; stamps cost: {profile.overhead_text}"
    )
    yield (
        f"start-up: load {duration(startup.load)}, weights {duration(startup.weights)}, "
        f"first run {duration(startup.first_run)}"
    )
    yield f"between steps: {duration(profile.between)}"
    if profile.lost:
        yield f"the ring lost {profile.lost} stamps: the first steps of runs are missing"
    yield summary(profile)
    yield from _graph_lines(profile)
    rows = [("us", "predicted", "share", "step")]
    for step in profile.steps[:_ROWS]:
        predicted = "" if step.predicted is None else f"{step.predicted * 1e6:.1f}"
        node = step.fact.location or step.fact.name
        rows.append((f"{step.seconds * 1e6:.1f}", predicted, f"{step.share:.1%}", node))
    yield Table(rows)
    if len(profile.steps) > _ROWS:
        yield f"{len(profile.steps) - _ROWS} more steps: see the page (-o) or --json"


def _graph_lines(profile: ModuleProfile) -> Iterator[str]:
    """Yields a line for the critical path, and one for the buffers at the peak of memory."""
    if profile.graph is None:
        return
    path, peak = critical_path(profile.graph), peak_memory(profile.graph)
    yield (
        f"critical path: {duration(path.seconds)} of {duration(path.all_seconds)}, "
        f"{len(path.nodes)} steps that wait for one another"
    )
    if peak is not None and peak.bytes:
        names = (
            f"{label or node} ({size / peak.bytes:.0%})" for label, node, size in peak.buffers[:3]
        )
        yield f"most memory: {bytes_text(peak.bytes)} in step {peak.step}: {', '.join(names)}"


def _graph_record(profile: ModuleProfile) -> dict[str, Any]:
    """Returns the critical path and the peak of memory as objects of JSON; None if unknown."""
    graph = profile.graph
    return {
        "critical_path": None if graph is None else asdict(critical_path(graph)),
        "peak_memory": None
        if graph is None or (peak := peak_memory(graph)) is None
        else asdict(peak),
    }


def record(profile: ModuleProfile) -> dict[str, Any]:
    """Returns the profile as an object of JSON; all times are seconds."""
    return {
        "model": profile.name,
        "target": profile.facts.target,
        "threads": profile.threads,
        "busy_threads": profile.busy_threads,
        "runs": len(profile.runs),
        "seconds": profile.seconds,
        "plain_seconds": list(profile.plain_seconds),
        "between": profile.between,
        "overhead": profile.overhead,
        "noise": profile.noise,
        "lost": profile.lost,
        "startup": asdict(profile.startup),
        "memory": asdict(profile.statistics),
        "arena_bound": profile.facts.arena_bound,
        **_graph_record(profile),
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
