"""Draws a bar chart of ratios as SVG: one bar per model, a line at 1, a tick at each goal."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil
from textwrap import wrap

_ROW, _PLOT, _LEAST_LABEL, _LEAST_MARGIN, _EDGE = 22, 560, 120, 60, 12
_LINE = 20  # height of a line of the heading in pixels
# The average width of a letter as a share of the font size, in names and sentences in lower case.
# This is Verdana's, which is the widest of the common sans-serif fonts.
_LETTER = 0.62
_AHEAD, _BEHIND = "#2a7f62", "#b5473c"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of length `ratio` with a tick at `goal`.

    `ratio` is None if it was not measured, and `goal` is None if the bar has no goal.
    """

    label: str
    ratio: float | None
    goal: float | None


def bar_chart(title: str, subtitle: str, bars: Sequence[Bar]) -> str:
    """Returns the SVG text; equal bars give equal text."""
    top = max([1.5, *(value for b in bars for value in (b.ratio, b.goal) if value is not None)])
    scale = _PLOT / top
    plot_left = max([_LEAST_LABEL, *(_width(b.label, 12) + _EDGE + 8 for b in bars)])
    margin = max([_LEAST_MARGIN, *(_end(b, scale) + _width(_text(b), 12) - _PLOT for b in bars)])
    width = plot_left + _PLOT + ceil(margin)
    lines = [*_lines(title, 15, width), *_lines(subtitle, 12, width, ' fill="#555555"')]
    begin = _LINE * (len(lines) + 1) + 4
    height = begin + _ROW * len(bars) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(line.format(y=2 + _LINE * number) for number, line in enumerate(lines, 1)),
    ]
    for number, item in enumerate(bars):
        parts += _bar(item, plot_left, begin + number * _ROW, scale)
    unit_x = plot_left + scale
    parts.append(
        f'<line x1="{unit_x:.1f}" x2="{unit_x:.1f}" y1="{begin - 6}" y2="{height - 12}" '
        'stroke="#000000"/>'
    )
    return "\n".join((*parts, "</svg>", ""))


def _width(text: str, size: int) -> int:
    """Returns how many pixels a text takes at most in letters of `size`."""
    return ceil(len(text) * size * _LETTER)


def _lines(text: str, size: int, width: int, style: str = "") -> list[str]:
    """Returns the text in lines that fit the picture.

    Each line has a placeholder `{y}` for its vertical position.
    """
    letters = int((width - 2 * _EDGE) / (size * _LETTER))
    escaped_lines = (
        escape(line).replace("{", "{{").replace("}", "}}") for line in wrap(text, letters)
    )
    return [
        f'<text x="{_EDGE}" y="{{y}}" font-size="{size}"{style}>{line}</text>'
        for line in escaped_lines
    ]


def _text(item: Bar) -> str:
    return "not measured" if item.ratio is None else f"{item.ratio:.2f}"


def _end(item: Bar, scale: float) -> float:
    """Returns the distance in pixels from the start of the bar to the number printed after it."""
    return max(item.ratio or 0.0, item.goal or 0.0) * scale + 6


def _bar(item: Bar, plot_left: int, y: int, scale: float) -> list[str]:
    middle = y + _ROW // 2 + 1
    parts = [
        f'<text x="{plot_left - 8}" y="{middle}" text-anchor="end">{escape(item.label)}</text>'
    ]
    if item.ratio is not None:
        fill = _AHEAD if item.ratio >= 1 else _BEHIND
        parts.append(
            f'<rect x="{plot_left}" y="{y}" width="{item.ratio * scale:.1f}" height="{_ROW - 8}" '
            f'fill="{fill}"/>'
        )
    if item.goal is not None:
        x = plot_left + item.goal * scale
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2}" y2="{y + _ROW - 6}" '
            'stroke="#333333" stroke-dasharray="3 2"/>'
        )
    x = plot_left + _end(item, scale)
    return [*parts, f'<text x="{x:.1f}" y="{middle}">{_text(item)}</text>']
