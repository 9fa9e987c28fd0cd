"""A profile as a page of HTML in one file: Bokeh draws the charts, Jinja the rest."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx
from tcc.runtime.graph_measures import critical_path, peak_memory, step_seconds
from tcc.runtime.graph_text import step_label
from tcc.runtime.profile_roofs import Dot, Roofline, roofline
from tcc.runtime.reports import MissingLibraryError
from tcc.runtime.units import bytes_text, duration

if TYPE_CHECKING:
    from tcc.runtime.profile import ModuleProfile, StepProfile

_LISTED = 10  # the longest steps of the critical path, and the largest buffers of the peak
_TEMPLATE = Path(__file__).with_name("profile_page.html")


def page_text(profile: ModuleProfile) -> str:
    """Returns the page; raises MissingLibraryError without bokeh and jinja2."""
    drawing, jinja = _module("tcc.runtime.profile_charts"), _module("jinja2")
    roofs = roofline(profile)
    script, divisions = drawing.charts(profile, roofs)
    environment = jinja.Environment(
        autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page: str = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        profile=profile,
        library=drawing.library(),
        script=script,
        charts=divisions,
        tiles=_tiles(profile),
        slowest=profile.steps[0] if profile.steps else None,
        verdict=_verdict(profile, roofs),
        rows=_rows(profile, roofs),
        notes=_notes(profile, roofs),
        path=None if profile.graph is None else _path(profile.graph, profile.seconds),
        peak=None if profile.graph is None else _peak(profile.graph),
    )
    return page


def _module(name: str) -> Any:
    """Returns a module that only pages need, because it needs libraries that may be missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingLibraryError(
            "a page is drawn by bokeh and jinja2", why=str(error),
            hint="pip install 'tcc[profile]', or write a trace (--trace), which needs neither",
        ) from error  # fmt: skip


def _tiles(profile: ModuleProfile) -> list[tuple[str, str, str]]:
    """Returns (title, value, note) of the numbers at the head of the page."""
    times = profile.steps
    predicted = [step.predicted for step in times if step.predicted is not None]
    startup, statistics, bound = profile.startup, profile.statistics, profile.facts.arena_bound
    tiles = [
        ("A run", duration(profile.seconds), f"mean of {profile.quiet_text}"),
        ("Predicted", duration(sum(predicted)), f"{len(predicted)} of {len(times)} steps"),
        ("Between steps", duration(profile.between), "waiting and bookkeeping"),
        ("Stamps cost", profile.overhead_text, "beside runs without stamps"),
        (
            "Arena",
            bytes_text(statistics.arena_bytes),
            "sizes depend on inputs" if bound is None else f"at least {bytes_text(bound)}",
        ),
        ("Weights", bytes_text(statistics.weight_bytes), "mapped once a process"),
    ]
    parts = (("Load", startup.load), ("Weights", startup.weights), ("First run", startup.first_run))
    note = ", ".join(f"{name.lower()} {duration(seconds)}" for name, seconds in parts)
    return [*tiles, ("Start-up", duration(sum(seconds for _, seconds in parts)), note)]


def node(step: StepProfile) -> str:
    """Returns the step's node in the model, or else its own name."""
    return step.fact.location or step.fact.name


def limit(step: StepProfile, dot: Dot | None) -> str:
    """Returns what limits the step by its price, or else by its roof; "" if neither says."""
    if step.fact.limit:
        return step.fact.limit
    return "" if dot is None else {"peak": "compute"}.get(dot.binding, dot.binding)


# A ratio of measured to predicted time that no price explains.
_FAR_ABOVE = 3
_ADVICE = {
    "compute": "arithmetic takes the time",
    "ports": "loads and stores of registers take the time",
    "L2": "reads from the L2 cache take the time",
    "L3": "reads from the L3 cache take the time",
    "memory": "reads from memory take the time",
    "imbalance": "one thread has more tiles than the others",
    "launch": "the start of the threads takes the time",
}


def _verdict(profile: ModuleProfile, roofs: Roofline) -> str:
    if not profile.steps:
        return ""
    step = profile.steps[0]
    dot = next((dot for dot in roofs.dots if dot.step is step), None)
    name = limit(step, dot)
    parts = [f"limited by {name}: {_ADVICE[name]}"] if name in _ADVICE else []
    if dot is not None:
        parts.append(f"it reaches {dot.share:.0%} of its roof")
    if step.predicted:
        ratio = step.seconds / step.predicted
        parts.append(f"{ratio:.2f} times the predicted time")
        if ratio > _FAR_ABOVE:
            parts.append("so far above it that another program may use the machine")
    return "; ".join(parts)


def _rows(profile: ModuleProfile, roofs: Roofline) -> list[list[tuple[Any, str]]]:
    """Returns the cells of the table, the longest step first: (value to sort by, text)."""
    dots = {dot.step.number: dot for dot in roofs.dots}
    rows = []
    for step in profile.steps:
        dot, fact = dots.get(step.number), step.fact
        gigaflops = None if dot is None else dot.rate / 1e9
        work = [None if n is None else n * step.launches / 1e6 for n in (fact.flops, fact.bytes)]
        ratio = step.seconds / step.predicted if step.predicted else None
        rows.append(
            [
                (step.number, str(step.number)),
                (node(step), node(step)),
                (fact.name, fact.name),
                _time_cell(step.seconds),
                _cell(step.share * 100, "{:.1f} %"),
                _time_cell(step.predicted),
                _cell(ratio, "{:.2f}"),
                (step.launches, str(step.launches)),
                *(_cell(amount, "{:.2f}") for amount in work),
                _cell(gigaflops, "{:.1f}"),
                _cell(None if dot is None else dot.share * 100, "{:.0f} %"),
                (limit(step, dot), limit(step, dot)),
                _cell(max(step.idle, 0) * 100, "{:.0f} %"),
            ]
        )
    return rows


def _time_cell(seconds: float | None) -> tuple[Any, str]:
    """Returns a cell of microseconds: two digits behind the point below 10."""
    if seconds is None:
        return _cell(None, "")
    return _cell(seconds * 1e6, "{:.1f}" if seconds >= 1e-5 else "{:.2f}")


def _cell(value: float | None, form: str) -> tuple[Any, str]:
    return (-1, "") if value is None else (round(value, 6), form.format(value))


def _path(graph: networkx.DiGraph, seconds: float) -> dict[str, Any]:
    """Returns the texts about the critical path: its time, its longest steps, and what it means."""
    path = critical_path(graph)
    parallel = max(path.all_seconds - path.seconds, 0.0)
    on_path = sorted(path.nodes, key=lambda node: -step_seconds(graph, node))
    rows = [
        (
            graph.nodes[node].get("step", ""),
            step_label(graph.nodes[node]),
            duration(step_seconds(graph, node)),
            f"{step_seconds(graph, node) / seconds:.1%}" if seconds else "",
        )
        for node in on_path[:_LISTED]
    ]
    return {
        "seconds": duration(path.seconds),
        "count": len(path.nodes),
        "total": duration(path.all_seconds),
        "beside": duration(parallel),
        "share": parallel / path.all_seconds if path.all_seconds else 0.0,
        "rows": rows,
        "more": len(on_path) - len(rows),
    }


def _peak(graph: networkx.DiGraph) -> dict[str, Any] | None:
    """Returns the texts about the peak of memory: its step, and the largest live buffers."""
    peak = peak_memory(graph)
    if peak is None:
        return None
    rows = [
        (
            label or node,
            ", ".join(step_label(graph.nodes[step]) for step in graph.predecessors(node)),
            bytes_text(size),
            size / peak.bytes if peak.bytes else 0.0,
            f"{graph.nodes[node]['first']} to {graph.nodes[node]['last']}",
        )
        for label, node, size in peak.buffers[:_LISTED]
    ]
    return {
        "step": peak.step,
        "name": step_label(graph.nodes[f"s{peak.step}"]),
        "bytes": bytes_text(peak.bytes),
        "rows": rows,
        "more": len(peak.buffers) - len(rows),
    }


def _notes(profile: ModuleProfile, roofs: Roofline) -> list[str]:
    notes = []
    if profile.lost:
        notes.append(
            f"The ring for stamps lost {profile.lost} stamps: the first steps of the runs are "
            "missing. Profile with more room."
        )
    if roofs.raised:
        notes.append(
            f"Steps were faster than the machine's description ({profile.facts.machine}) allows, "
            f"so these roofs are raised to them: {', '.join(roofs.raised)}."
        )
    if abs(profile.overhead) > 0.1:
        notes.append("Runs varied by more than a tenth: other programs use the machine.")
    if profile.graph is None:
        notes.append(
            "The artifact has no graph, so the critical path is not known: compile the model again."
        )
    if not profile.facts.live:
        notes.append("Inputs decide sizes, so the arena over the steps is not known beforehand.")
    return notes
