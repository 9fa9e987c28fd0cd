"""A picture of a site before and after a derivation: stages, and lines from their operands."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

_WIDE, _HIGH, _GAP, _EDGES, _TOP = 380, 44, 14, 110, 64
_KNOWN, _FILLS = "#f6efdc", {"p": "#eef2f7", "s": "#e3f1e8"}


def derivation_svg(site: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """Returns the SVG text of a site's record and a candidate's; equal records give equal text."""
    stage_lists = site["stages"], candidate["stages"]
    width = 2 * (_EDGES + _WIDE) + 3 * _GAP
    height = _TOP + max(map(len, stage_lists)) * (_HIGH + _GAP) + _GAP
    heads = (
        f"{', '.join(site['nodes'])} at {site['sink']}",
        candidate["chain"] or "the same orders",
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (head, item, stages) in enumerate(
        zip(heads, (site, candidate), stage_lists, strict=True)
    ):
        x = _GAP + number * (_EDGES + _WIDE + _GAP)
        parts += [
            _text(x, 22, head, 68, 'font-size="14"'),
            _text(x, 44, _seconds(item), 80, 'fill="#555555"'),
            *_stages(stages, x + _EDGES),
        ]
    return "\n".join((*parts, "</svg>", ""))


def _seconds(item: Mapping[str, Any]) -> str:
    priced = (
        "not priced" if item["seconds"] is None else f"predicted {item['seconds'] * 1e6:.1f} us"
    )
    return f"{priced}, estimated {item['estimate'] * 1e6:.1f} us"


def _stages(stages: Sequence[Mapping[str, Any]], x: int) -> Iterator[str]:
    """Yields a box for each stage, with lines at its left from the stages that it reads."""
    tops = {stage["name"]: _TOP + n * (_HIGH + _GAP) for n, stage in enumerate(stages)}
    for stage in stages:
        top, is_known = tops[stage["name"]], stage["known"]
        fill = _KNOWN if is_known else _FILLS[stage["name"][0]]
        does = stage["does"] + ", ahead of the run" * is_known
        yield (
            f'<rect x="{x}" y="{top}" width="{_WIDE}" height="{_HIGH}" rx="4" '
            f'fill="{fill}" stroke="#444444"/>'
        )
        yield _text(x + 10, top + 18, f"{stage['name']}: {stage['type']}", 56)
        yield _text(x + 10, top + 35, does, 62, 'fill="#555555"')
        for place, name in enumerate(stage["reads"]):
            begin, end = tops[name] + _HIGH // 2 + 4, top + 10 + 8 * (place % 4)
            bend = x - min(_EDGES - 6, 14 + (end - begin) // 6)
            yield (
                f'<path d="M{x} {begin} C{bend} {begin} {bend} {end} {x - 5} {end}" '
                'fill="none" stroke="#777777"/>'
                f'<path d="M{x - 7} {end - 3} l7 3 l-7 3 Z" fill="#777777"/>'
            )


def _text(x: int, y: int, text: str, limit: int, style: str = "") -> str:
    """Returns an SVG text element, cut to `limit` letters."""
    visible = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return f'<text x="{x}" y="{y}" {style}>{escape(visible)}</text>'
