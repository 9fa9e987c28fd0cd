"""The picture of a site before and after a derivation: stages, and lines from what they read."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

_WIDE, _HIGH, _GAP, _EDGES, _TOP = 380, 44, 14, 110, 64
_KNOWN, _FILLS = "#f6efdc", {"p": "#eef2f7", "s": "#e3f1e8"}


def derivation_svg(site: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """The SVG text of a record of a site and one of its candidates; equal records, equal text."""
    sides = site["stages"], candidate["stages"]
    width = 2 * (_EDGES + _WIDE) + 3 * _GAP
    height = _TOP + max(map(len, sides)) * (_HIGH + _GAP) + _GAP
    heads = (
        f"{', '.join(site['nodes'])} at {site['sink']}",
        candidate["chain"] or "the same orders",
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (head, of, stages) in enumerate(zip(heads, (site, candidate), sides, strict=True)):
        left = _GAP + number * (_EDGES + _WIDE + _GAP)
        parts += [
            _text(left, 22, head, 68, 'font-size="14"'),
            _text(left, 44, _seconds(of), 80, 'fill="#555555"'),
            *_stages(stages, left + _EDGES),
        ]
    return "\n".join((*parts, "</svg>", ""))


def _seconds(item: Mapping[str, Any]) -> str:
    priced = (
        "not priced" if item["seconds"] is None else f"predicted {item['seconds'] * 1e6:.1f} us"
    )
    return f"{priced}, estimated {item['estimate'] * 1e6:.1f} us"


def _stages(stages: Sequence[Mapping[str, Any]], left: int) -> Iterator[str]:
    """A box for each stage, with a line at its left from each that it reads."""
    tops = {stage["name"]: _TOP + n * (_HIGH + _GAP) for n, stage in enumerate(stages)}
    for stage in stages:
        top, known = tops[stage["name"]], stage["known"]
        fill = _KNOWN if known else _FILLS[stage["name"][0]]
        does = stage["does"] + ", ahead of the run" * known
        yield (
            f'<rect x="{left}" y="{top}" width="{_WIDE}" height="{_HIGH}" rx="4" '
            f'fill="{fill}" stroke="#444444"/>'
        )
        yield _text(left + 10, top + 18, f"{stage['name']}: {stage['type']}", 56)
        yield _text(left + 10, top + 35, does, 62, 'fill="#555555"')
        for place, name in enumerate(stage["reads"]):
            begin, end = tops[name] + _HIGH // 2 + 4, top + 10 + 8 * (place % 4)
            bend = left - min(_EDGES - 6, 14 + (end - begin) // 6)
            yield (
                f'<path d="M{left} {begin} C{bend} {begin} {bend} {end} {left - 5} {end}" '
                'fill="none" stroke="#777777"/>'
                f'<path d="M{left - 7} {end - 3} l7 3 l-7 3 Z" fill="#777777"/>'
            )


def _text(x: int, y: int, text: str, most: int, style: str = "") -> str:
    """At most so many letters of a text."""
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    return f'<text x="{x}" y="{y}" {style}>{escape(shown)}</text>'
