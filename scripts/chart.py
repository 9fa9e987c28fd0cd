"""A bar chart of ratios as SVG: one bar per model, a line at 1, a tick at each goal."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_ROW, _LABEL, _PLOT, _MARGIN, _TOP = 22, 120, 560, 60, 64
_AHEAD, _BEHIND = "#2a7f62", "#b5473c"


@dataclass(frozen=True, slots=True)
class Bar:
    """`ratio` None: not measured; `goal` None: none."""

    label: str
    ratio: float | None
    goal: float | None


def bar_chart(title: str, subtitle: str, bars: Sequence[Bar]) -> str:
    """The SVG text; equal bars give equal text."""
    top = max([1.5, *(value for b in bars for value in (b.ratio, b.goal) if value is not None)])
    scale = _PLOT / top
    width, height = _LABEL + _PLOT + _MARGIN, _TOP + _ROW * len(bars) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="12" y="42" fill="#555555">{escape(subtitle)}</text>',
    ]
    for number, item in enumerate(bars):
        parts += _bar(item, _TOP + number * _ROW, scale)
    one = _LABEL + scale
    parts.append(
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{_TOP - 6}" y2="{height - 12}" stroke="#000000"/>'
    )
    return "\n".join((*parts, "</svg>", ""))


def _bar(item: Bar, y: int, scale: float) -> list[str]:
    middle = y + _ROW // 2 + 1
    parts = [f'<text x="{_LABEL - 8}" y="{middle}" text-anchor="end">{escape(item.label)}</text>']
    end = float(_LABEL)
    if item.ratio is not None:
        end += item.ratio * scale
        fill = _AHEAD if item.ratio >= 1 else _BEHIND
        parts.append(
            f'<rect x="{_LABEL}" y="{y}" width="{item.ratio * scale:.1f}" height="{_ROW - 8}" '
            f'fill="{fill}"/>'
        )
    if item.goal is not None:
        at = _LABEL + item.goal * scale
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y - 2}" y2="{y + _ROW - 6}" '
            'stroke="#333333" stroke-dasharray="3 2"/>'
        )
        end = max(end, at)
    text = "not measured" if item.ratio is None else f"{item.ratio:.2f}"
    return [*parts, f'<text x="{end + 6:.1f}" y="{middle}">{text}</text>']
