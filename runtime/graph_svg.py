"""A picture of a graph in SVG: layers of boxes, longer bars for longer times, and a legend."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

import networkx
from tcc.runtime.graph_boxes import Arrow, StepBox, boxes
from tcc.runtime.graph_layout import BoxLayout, layout
from tcc.runtime.graph_measures import critical_path
from tcc.runtime.limit_colours import colour
from tcc.runtime.units import bytes_text, duration

_WIDTH, _HEIGHT, _GAP, _LAYER = 248, 50, 28, 84
_MARGIN, _HEAD, _LEGEND_LINE = 24, 92, 20
_LETTERS, _SMALL_LETTERS = 25, 26  # that fit into a box
_CRITICAL, _CRITICAL_WIDTH = "#d9480f", 2.5
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1d2330; }
.small { font-size: 11px; fill: #5b6477; }
.head { font-size: 20px; font-weight: 600; }
.time { font-size: 11px; text-anchor: end; fill: #1d2330; }
.number { font-size: 10px; text-anchor: end; fill: #9aa2b4; }
.edge { fill: none; stroke: #8b93a7; }
.order { stroke-dasharray: 4 4; }
.critical { stroke: #d9480f; }
.box { stroke: #b9c0d0; }
.optional { stroke-dasharray: 5 4; }
.port { fill: #e8ecf5; stroke: #8b93a7; }
.path { stroke: #d9480f; stroke-width: 2.5; }
"""


def svg_text(graph: networkx.DiGraph) -> str:
    """Returns the picture of a graph that `tcc.graph` returned.

    Names are text whatever characters they have; characters that XML forbids are replaced. The
    picture has at most `MOST_BOXES` boxes of steps.
    """
    drawn = boxes(graph)
    places = layout(drawn, _WIDTH + _GAP)
    bends = [x for points in places.bends.values() for _, x in points]
    low = min((*(x - _WIDTH / 2 for x in places.x.values()), *bends), default=0.0) - _MARGIN
    high = max((*(x + _WIDTH / 2 for x in places.x.values()), *bends), default=0.0) + _MARGIN
    legend = list(_legend(drawn))
    head = _HEAD + _LEGEND_LINE * len(legend)
    size = max(high - low, 560.0), head + places.layers * _LAYER + _MARGIN
    shift = -low + max(0.0, size[0] - (high - low)) / 2
    longest = max((data["box"].seconds for _, data in drawn.nodes(data=True)), default=0.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]:.0f}" height="{size[1]:.0f}" '
        f'viewBox="0 0 {size[0]:.0f} {size[1]:.0f}">',
        f"<title>{_text(graph.graph['name'])}</title>",
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        *_header(graph, drawn),
        *legend,
        f'<g transform="translate({shift:.1f},{head})">',
        *_arrows(drawn, places),
        *(
            line
            for node, data in drawn.nodes(data=True)
            for line in _box(data["box"], places.x[node], places.layer[node] * _LAYER, longest)
        ),
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text), {'"': "&quot;"})


def _begin(text: str, letters: int) -> str:
    """Returns a text of at most so many letters, without its end if it is longer."""
    return text if len(text) <= letters else f"{text[: letters - 1]}\u2026"


def _end(text: str, letters: int) -> str:
    """Returns a text of at most so many letters, without its begin if it is longer."""
    return text if len(text) <= letters else f"\u2026{text[1 - letters :]}"


# ---- the head ------------------------------------------------------------------------------------


def _header(graph: networkx.DiGraph, drawn: networkx.DiGraph) -> Iterator[str]:
    steps = [data for _, data in graph.nodes(data=True) if "step" in data]
    step_boxes = [data["box"] for _, data in drawn.nodes(data=True) if data["box"].kind != "port"]
    path = critical_path(graph)
    source = "measured" if any("measured" in data for data in steps) else "predicted"
    count = f"{len(steps):,} steps"
    if any(box.kind == "group" for box in step_boxes):
        count += f" in {len(step_boxes):,} groups"
    lines = [
        f"{graph.graph['target']}: {count}, {duration(path.all_seconds)} {source}",
        f"critical path (in orange): {duration(path.seconds)}, {len(path.nodes):,} steps that wait "
        "for one another",
    ]
    if "peak_bytes" in graph.graph:
        size = bytes_text(graph.graph["peak_bytes"])
        lines[1] += f"; most memory is live in step {graph.graph['peak_step']}: {size}"
    yield f'<text class="head" x="{_MARGIN}" y="34">{_text(graph.graph["name"])}</text>'
    for number, line in enumerate(lines):
        yield f'<text class="small" x="{_MARGIN}" y="{54 + 17 * number}">{_text(line)}</text>'


def _legend(drawn: networkx.DiGraph) -> Iterator[str]:
    """Yields a line for the limits that occur, and a line for the other signs."""
    step_boxes = [data["box"] for _, data in drawn.nodes(data=True) if data["box"].kind != "port"]
    limits = sorted({box.limit for box in step_boxes})
    x, y = _MARGIN, _HEAD - 4
    parts = [f'<text class="small" x="{x}" y="{y}">limited by</text>']
    x += 64
    for limit in limits:
        name = limit or "not known"
        parts.append(
            f'<rect x="{x}" y="{y - 9}" width="11" height="11" fill="{colour(limit)}"/>'
            f'<text class="small" x="{x + 15}" y="{y}">{_text(name)}</text>'
        )
        x += 28 + 7 * len(name)
    yield "".join(parts)
    words = ["number: step", "bar: time beside the longest", "wide arrow: many bytes"]
    arrows: list[Arrow] = [data["arrow"] for *_, data in drawn.edges(data=True)]
    if any(arrow.control for arrow in arrows):
        words.append("dashed arrow: order alone")
    if any(box.optional for box in step_boxes):
        words.append("dashed box: runs only where data require it")
    text = _text("; ".join(words))
    yield f'<text class="small" x="{_MARGIN}" y="{y + _LEGEND_LINE}">{text}</text>'


# ---- boxes ---------------------------------------------------------------------------------------


def _box(box: StepBox, x: float, top: float, longest: float) -> Iterator[str]:
    side = x - _WIDTH / 2
    yield "<g>"
    title = "\n".join((f"{box.scope}/{box.name}".strip("/"), *box.details))
    yield f"<title>{_text(title)}</title>"
    if box.kind == "port":
        yield (
            f'<rect class="port" x="{side + 34:.1f}" y="{top + 8:.0f}" width="{_WIDTH - 68}" '
            f'height="30" rx="15"/>'
            f'<text x="{x:.1f}" y="{top + 28:.0f}" text-anchor="middle">'
            f"{_text(_begin(box.name, 24))}</text></g>"
        )
        return
    share = box.seconds / longest if longest else 0.0
    classes = "box" + " path" * box.critical + " optional" * box.optional
    yield (
        f'<rect class="{classes}" x="{side:.1f}" y="{top:.0f}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" rx="5" fill="{_heat(share)}"/>'
        f'<rect x="{side:.1f}" y="{top + _HEIGHT - 7:.1f}" width="{max(_WIDTH * share, 2):.1f}" '
        f'height="6" fill="{colour(box.limit)}"/>'
        f'<text x="{side + 8:.1f}" y="{top + 18:.0f}">{_text(_begin(box.name, _LETTERS))}</text>'
        f'<text class="small" x="{side + 8:.1f}" y="{top + 34:.0f}">'
        f"{_text(_end(box.scope, _SMALL_LETTERS))}</text>"
        f'<text class="number" x="{side + _WIDTH - 8:.1f}" y="{top + 17:.0f}">{box.steps}</text>'
        f'<text class="time" x="{side + _WIDTH - 8:.1f}" y="{top + 34:.0f}">'
        f"{duration(box.seconds) if box.seconds else ''}</text>"
    )
    if box.peak:
        yield (
            f'<text class="time" x="{side + _WIDTH - 4:.1f}" y="{top - 4:.0f}" '
            f'style="fill:{_CRITICAL}">most memory</text>'
        )
    yield "</g>"


def _heat(share: float) -> str:
    """Returns white for no time, and a light orange for the longest."""
    low, high = (255, 255, 255), (255, 221, 184)
    mixed = (round(a + (b - a) * min(share, 1.0)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


# ---- arrows --------------------------------------------------------------------------------------


def _arrows(drawn: networkx.DiGraph, places: BoxLayout) -> Iterator[str]:
    notes: dict[Any, list[str]] = {}
    for source, target, data in sorted(
        drawn.edges(data=True), key=lambda edge: edge[2]["arrow"].critical
    ):
        arrow: Arrow = data["arrow"]
        if (source, target) in places.long:
            notes.setdefault(target, []).append(drawn.nodes[source]["box"].name)
            continue
        points = [
            (places.x[source], places.layer[source] * _LAYER + _bottom(drawn, source)),
            *((x, layer * _LAYER + _HEIGHT / 2) for layer, x in places.bends[source, target]),
            (places.x[target], places.layer[target] * _LAYER + _top(drawn, target)),
        ]
        classes = "edge" + " critical" * arrow.critical + " order" * arrow.control
        width = 1.0 if not arrow.bytes else min(1.0 + max(0.0, math.log10(arrow.bytes) - 3), 6.0)
        width = max(width, _CRITICAL_WIDTH) if arrow.critical else width
        yield (
            f'<path class="{classes}" stroke-width="{width:.1f}" d="{_curve(points)}">'
            f"<title>{_text(_arrow_text(arrow))}</title></path>"
        )
    for target, names in notes.items():
        x, y = places.x[target] - _WIDTH / 2, places.layer[target] * _LAYER - 4
        text = _begin("from " + ", ".join(names), 40)
        yield (
            f'<text class="small" x="{x:.1f}" y="{y:.0f}">{_text(text)}'
            f"<title>{_text(', '.join(names))}</title></text>"
        )


def _bottom(drawn: networkx.DiGraph, node: Any) -> int:
    return 38 if drawn.nodes[node]["box"].kind == "port" else _HEIGHT


def _top(drawn: networkx.DiGraph, node: Any) -> int:
    return 8 if drawn.nodes[node]["box"].kind == "port" else 0


def _arrow_text(arrow: Arrow) -> str:
    size = f" ({bytes_text(arrow.bytes)})" if arrow.bytes else ""
    return (", ".join(arrow.names[:8]) or "order") + size


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Returns a path that leaves and enters each point straight down."""
    (x, y), *later_points = points
    parts = [f"M{x:.1f},{y:.1f}"]
    for next_x, next_y in later_points:
        middle = (y + next_y) / 2
        parts.append(f"C{x:.1f},{middle:.1f} {next_x:.1f},{middle:.1f} {next_x:.1f},{next_y:.1f}")
        x, y = next_x, next_y
    return " ".join(parts)
