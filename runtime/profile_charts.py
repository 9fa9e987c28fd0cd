"""The charts of a profile's page, drawn with Bokeh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from bokeh.embed import components
from bokeh.models import (
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    FixedTicker,
    HoverTool,
    Legend,
    LegendItem,
    NumeralTickFormatter,
    Span,
)
from bokeh.plotting import figure
from bokeh.resources import Resources
from tcc.runtime.limit_colours import colour
from tcc.runtime.profile_page import limit, node
from tcc.runtime.profile_roofs import Roofline
from tcc.runtime.units import duration

if TYPE_CHECKING:
    from tcc.runtime.profile import ModuleProfile

_BARS = 12
_NAME_LENGTH = 44
_TOOLS = "xpan,xwheel_zoom,xbox_zoom,reset"


def library() -> str:
    """Returns the JavaScript of Bokeh that the charts need."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def charts(profile: ModuleProfile, roofs: Roofline) -> tuple[str, dict[str, str]]:
    """Returns (script, divisions): the text of a script, and the HTML of each chart by name.

    The charts are `bars`, `timeline` and `roofline`, and `arena` if its live bytes are known.
    """
    dots = {dot.step.number: dot for dot in roofs.dots}
    limits = {step.number: limit(step, dots.get(step.number)) for step in profile.steps}
    figures = {
        "bars": _bars(profile, limits),
        "timeline": _timeline(profile, limits),
        "roofline": _roofline(roofs, limits),
    }
    if profile.facts.live:
        figures["arena"] = _arena(profile)
    script, divisions = components(figures, wrap_script=False)
    return script, divisions


def _figure(title: str, height: int, tools: str, **settings: Any) -> Any:
    plot = figure(title=title, height=height, tools=tools, sizing_mode="stretch_width", **settings)
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.outline_line_color = None
    plot.title.text_font_size = "15px"
    plot.grid.grid_line_color = "#e7e9ee"
    return plot


def _short(text: str) -> str:
    return text if len(text) <= _NAME_LENGTH else f"{text[: _NAME_LENGTH - 1]}\u2026"


def _names(profile: ModuleProfile) -> list[str]:
    """Returns the node of each step, by number."""
    names = {step.number: node(step) for step in profile.steps}
    return [names[number] for number in range(len(names))]


def _bars(profile: ModuleProfile, limits: Mapping[int, str]) -> Any:
    """Draws the longest steps as bars in the colour of their limit, with the predicted times."""
    steps = profile.steps[:_BARS]
    rows = [f"{step.number}: {_short(node(step))}" for step in steps]
    plot = _figure(
        "Where the time goes: the longest steps (bar: measured, line: predicted)",
        90 + 26 * max(len(steps), 1),
        "",
        y_range=rows[::-1] or ["no step"],
        x_axis_label="microseconds a run",
    )
    legend: dict[str, Any] = {}
    for name in dict.fromkeys(limits[step.number] for step in steps):
        members = [n for n, step in enumerate(steps) if limits[step.number] == name]
        source = ColumnDataSource(
            {
                "row": [rows[n] for n in members],
                "us": [steps[n].seconds * 1e6 for n in members],
                "text": [f" {steps[n].share:.1%}" for n in members],
            }
        )
        bar = plot.hbar(y="row", right="us", height=0.7, color=colour(name), source=source)
        plot.text(
            x="us", y="row", text="text", source=source, text_baseline="middle",
            text_font_size="12px", text_color="#444",
        )  # fmt: skip
        legend[name or "not known"] = bar
    priced = [n for n, step in enumerate(steps) if step.predicted is not None]
    plot.scatter(
        marker="dash",
        x=[(steps[n].predicted or 0.0) * 1e6 for n in priced],
        y=[rows[n] for n in priced],
        angle=np.pi / 2, size=20, line_width=3, line_color="#222",
    )  # fmt: skip
    _legend(plot, legend, "limited by")
    longest = max(
        [step.seconds for step in steps] + [step.predicted or 0 for step in steps] + [1e-9]
    )
    plot.x_range.start, plot.x_range.end = 0, longest * 1.12e6
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0[.]0")
    plot.ygrid.grid_line_color = None
    plot.yaxis.major_label_text_font_size = "12px"
    return plot


def _legend(plot: Any, glyphs: Mapping[str, Any], title: str) -> None:
    items = [LegendItem(label=name, renderers=[glyph]) for name, glyph in glyphs.items()]
    if items:
        plot.add_layout(Legend(items=items, title=title, title_text_font_style="normal"), "right")


def _hover(
    glyphs: Sequence[Any], names: Sequence[str], rows: Sequence[tuple[str, str]]
) -> HoverTool:
    """Returns a tool that shows the node of the column `step` above `rows`."""
    node_text = CustomJSHover(args={"names": list(names)}, code="return names[value]")
    return HoverTool(
        renderers=list(glyphs),
        tooltips=[("node", "@step{custom}"), ("step", "@step"), *rows],
        formatters={"@step": node_text},
    )


def _timeline(profile: ModuleProfile, limits: Mapping[int, str]) -> Any:
    """Draws the pieces of the typical run, a row for each thread, in the colour of their limit."""
    stamped_run = profile.typical
    parts, caller, origin = (
        stamped_run.parts,
        stamped_run.stamps["thread"][-1],
        stamped_run.stamps["begin"][-1],
    )
    threads = [caller, *(t for t in np.unique(parts["thread"]) if t != caller)]
    labels = [f"thread {n}" if n else "caller" for n in range(len(threads))]
    rows = {thread: label for thread, label in zip(threads, labels, strict=True)}
    plot = _figure(
        f"Timeline of a run of {duration(stamped_run.seconds)}: drag to pan, scroll to zoom",
        130 + 44 * len(threads),
        _TOOLS,
        y_range=labels[::-1],
        x_axis_label="microseconds from the begin of the run",
        active_scroll="xwheel_zoom",
    )
    source = ColumnDataSource(
        {
            "left": ((parts["begin"] - origin) / 1e3).astype("f4"),
            "right": ((parts["end"] - origin) / 1e3).astype("f4"),
            "us": ((parts["end"] - parts["begin"]) / 1e3).astype("f4"),
            "row": [rows[thread] for thread in parts["thread"]],
            "step": parts["step"],
            "colour": [colour(limits[int(step)]) for step in parts["step"]],
            "alpha": np.where(parts["execution"] % 2, 1, 0.7).astype("f4"),  # neighbours differ
        }
    )
    pieces = plot.hbar(
        y="row", left="left", right="right", height=0.8, source=source,
        fill_color="colour", fill_alpha="alpha", line_color="white",
        line_width=0.5, hover_fill_color="#222222",
    )  # fmt: skip
    plot.add_tools(_hover([pieces], _names(profile), [("us", "@us{0.00}"), ("thread", "@row")]))
    plot.x_range.start, plot.x_range.end = 0, stamped_run.seconds * 1e6
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0[.]0")
    plot.ygrid.grid_line_color = None
    return plot


def _roofline(roofs: Roofline, limits: Mapping[int, str]) -> Any:
    """Draws the roofs of all levels, and a dot for each step, as large as its share of the run."""
    plot = _figure(
        "Roofline: dots are steps, as large as their share of the run",
        430,
        "pan,wheel_zoom,box_zoom,reset",
        x_axis_type="log",
        y_axis_type="log",
        x_axis_label="operations a byte",
        y_axis_label="Gflop a second",
    )
    spread = [dot.intensity for dot in roofs.dots] or [1.0]
    low, high = min(spread) / 4, max(spread) * 8
    lowest = min([dot.rate for dot in roofs.dots] or [roofs.peak]) / 4
    for roof in roofs.roofs:
        ridge = roofs.peak / roof.bytes_per_second
        start = max(low, lowest / roof.bytes_per_second)
        if start < ridge:
            plot.line(
                [start, ridge],
                [start * roof.bytes_per_second / 1e9, roofs.peak / 1e9],
                line_width=2,
                color=colour(roof.name),
                legend_label=f"{roof.name}: {roof.bytes_per_second / 1e9:.0f} GB/s",
            )
    first_ridge = roofs.peak / max(roof.bytes_per_second for roof in roofs.roofs)
    plot.line(
        [min(first_ridge, high), max(high, first_ridge * 2)],
        [roofs.peak / 1e9] * 2,
        line_width=2,
        color=colour("compute"),
        legend_label=f"compute: {roofs.peak / 1e9:.0f} Gflop/s",
    )
    dots = sorted(roofs.dots, key=lambda dot: -dot.step.seconds)
    source = ColumnDataSource(
        {
            "x": [dot.intensity for dot in dots],
            "y": [dot.rate / 1e9 for dot in dots],
            "size": [6 + 60 * np.sqrt(min(dot.step.share, 1) / 4) for dot in dots],
            "colour": [colour(limits[dot.step.number]) for dot in dots],
            "step": [dot.step.number for dot in dots],
            "us": [dot.step.seconds * 1e6 for dot in dots],
            "share": [dot.share * 100 for dot in dots],
            "roof": [dot.binding for dot in dots],
        }
    )
    glyph = plot.scatter(
        x="x", y="y", size="size", fill_color="colour", fill_alpha=0.65, line_color="#333",
        line_width=0.7, source=source,
    )  # fmt: skip
    names = {dot.step.number: node(dot.step) for dot in dots}
    listed = [names.get(n, "") for n in range(max(names, default=-1) + 1)]
    rows = [("us", "@us{0.0}"), ("Gflop/s", "@y{0.0}"), ("of its roof", "@share{0}% (@roof)")]
    plot.add_tools(_hover([glyph], listed, rows))
    plot.legend.location = "bottom_right"
    plot.legend.background_fill_alpha = 0.8
    plot.legend.label_text_font_size = "11px"
    plot.xaxis.ticker, plot.yaxis.ticker = (
        FixedTicker(ticks=_round_numbers(*ends))
        for ends in ((low, high), (lowest / 1e9, roofs.peak / 1e9))
    )
    plain = CustomJSTickFormatter(code="return tick >= 1 ? tick.toFixed(0) : String(tick)")
    plot.xaxis.formatter = plot.yaxis.formatter = plain
    return plot


def _round_numbers(low: float, high: float) -> list[float]:
    """Returns powers of ten around the range, and 2 and 5 times these in a range below 1,000."""
    digits = (1, 2, 5) if high < 1000 * low else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    # a power below 1 is a quotient, because 10.0 ** -2 * 5 is not 0.05
    return [
        digit * 10**power if power >= 0 else digit / 10**-power
        for power in range(first, last + 1)
        for digit in digits
    ]


def _arena(profile: ModuleProfile) -> Any:
    """Draws the live bytes of the arena in each step, beside its size and its lower bound."""
    live = np.asarray(profile.facts.live) / 2**20
    size = profile.statistics.arena_bytes / 2**20
    bound = (profile.facts.arena_bound or 0) / 2**20
    plot = _figure(
        "Memory: live bytes of the arena in each step",
        430,
        _TOOLS,
        x_axis_label="step",
        y_axis_label="MiB",
    )
    source = ColumnDataSource({"step": np.arange(len(live)), "live": live.astype("f4")})
    bars = plot.vbar(x="step", top="live", width=0.9, color="#97bbf5", source=source)
    plot.add_tools(_hover([bars], _names(profile), [("MiB", "@live{0.00}")]))
    lines = {}
    for name, value, dash, shade in (
        (f"arena: {size:.2f} MiB", size, "solid", "#222222"),
        (f"lower bound: {bound:.2f} MiB", bound, "dashed", "#ff725c"),
    ):
        plot.add_layout(Span(location=value, dimension="width", line_dash=dash, line_color=shade))
        lines[name] = plot.line([0, 0], [value, value], line_dash=dash, color=shade)
    _legend_inside(plot, lines)
    plot.y_range.start, plot.y_range.end = 0, max(size, bound, 1e-6) * 1.15
    plot.yaxis.formatter = NumeralTickFormatter(format="0.[00]")
    return plot


def _legend_inside(plot: Any, glyphs: Mapping[str, Any]) -> None:
    items = [LegendItem(label=name, renderers=[glyph]) for name, glyph in glyphs.items()]
    plot.add_layout(Legend(items=items, location="top_right", background_fill_alpha=0.8))
