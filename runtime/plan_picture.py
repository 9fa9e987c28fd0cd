"""A picture of a plan: ranks as columns, layers as rows, collectives between them.

Plans come as records: the fields of `PlanLayer` and `Crossing` of the planner. Equal sequences of
rows, as of the layers of a transformer, become one sequence with a count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import count
from typing import Any, TypeAlias

# The fields of a row, by name.
Record: TypeAlias = Mapping[str, Any]
# Returns a number of bytes as text.
SizeText: TypeAlias = Callable[[int], str]

_LEFT, _RIGHT, _EDGE, _HEAD, _ROW, _LANE = 330, 250, 20, 112, 50, 22
_WIDEST, _NARROWEST, _GAP = 150, 34, 8
_SHOWN_OPS, _LETTERS = 4, 44
_LIGHT = {
    "page": "#ffffff", "ink": "#1f2328", "mute": "#57606a", "slot": "#eef1f4", "whole": "#7aa6d8",
    "split": "#4fae6a", "partial": "#e2953c", "weight": "#8a63c9", "move": "#c9372c",
}  # fmt: skip
_DARK = {
    "page": "#0d1117", "ink": "#e6edf3", "mute": "#9da7b3", "slot": "#222a33", "whole": "#5b8fcb",
    "split": "#3fa35b", "partial": "#e09a4a", "weight": "#a584e0", "move": "#ff7b6b",
}  # fmt: skip
_LEGEND = (
    ("whole", "whole: every rank has the value"),
    ("split", "split: each rank has one block"),
    ("partial", "partial: the ranks' arrays are added"),
    ("weight", "weights that the rank has"),
    ("move", "collective: ranks exchange bytes"),
)


def plan_svg(
    name: str,
    facts: Record,
    collectives: Sequence[Record],
    rows: Sequence[Record],
    size_text: SizeText,
) -> str:
    """Returns the SVG text of a plan of the model `name`; equal plans give equal text.

    `facts` and `collectives` are those that `tcc plan --json` prints, and `rows` the layers and the
    collectives between them.
    """
    ranks = facts["ranks"]
    drawing = _Drawing(ranks, size_text)
    drawing.head(name, facts, collectives)
    for sequence, times in folded(rows):
        drawing.repeat(sequence, times)
    drawing.legend()
    return drawing.text(f"plan of {name} for {ranks} ranks")


def folded(rows: Sequence[Record]) -> Iterator[tuple[Sequence[Record], int]]:
    """Yields sequences of rows, each with the number of its repetitions.

    At each row, it is the shortest sequence that covers most rows by repetition. Rows that differ
    in the names of nodes alone are equal.
    """
    keys = [{**row, "nodes": len(row.get("nodes", ()))} for row in rows]
    first, plain = 0, 0
    while first < len(rows):
        length, times = max(_repeats(keys, first), key=lambda pair: pair[0] * (pair[1] - 1))
        if times > 1:
            if plain < first:
                yield rows[plain:first], 1
            yield rows[first : first + length], times
            plain = first + length * times
        first += length * times if times > 1 else 1
    if plain < len(rows):
        yield rows[plain:], 1


def _repeats(keys: Sequence[object], first: int) -> Iterable[tuple[int, int]]:
    """Yields lengths of sequences that begin at `first`, each with its number of repetitions."""
    yield 1, 1
    for length in range(1, (len(keys) - first) // 2 + 1):
        sequence = keys[first : first + length]
        for times in count(1):
            begin = first + times * length
            if keys[begin : begin + length] != sequence:
                break
        yield length, times


class _Drawing:
    """A picture that grows downwards; `_y` is the top of what comes next."""

    def __init__(self, ranks: int, size_text: SizeText) -> None:
        self._ranks, self._size = ranks, size_text
        self._cell = max(_NARROWEST, min(_WIDEST, 720 // ranks))
        self._right = _LEFT + ranks * (self._cell + _GAP) + _EDGE
        self._y = _HEAD
        self._parts: list[str] = []

    def text(self, title: str) -> str:
        """Returns the whole picture."""
        width, height = self._right + _RIGHT, self._y + _EDGE
        rules = (
            "".join(_rules(_LIGHT))
            + f"@media(prefers-color-scheme:dark){{{''.join(_rules(_DARK))}}}"
        )
        return "\n".join((
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
            f"<title>{_escaped(title)}</title>",
            f"<style>{rules}</style>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            *self._parts, "</svg>", "",
        ))  # fmt: skip

    def head(self, name: str, sums: Record, collectives: Sequence[Record]) -> None:
        """Adds the title with the `name` of the model, the sums of the plan, and the names of the
        ranks."""
        sent = self._size(sum(item["bytes"] for item in collectives))
        self._say(
            _EDGE,
            34,
            f"{name} on {self._ranks} ranks",
            "ink",
            'font-size="19"',
        )
        self._say(
            _EDGE, 58,
            f"a rank has {self._size(sums['rank_weight_bytes'])} of "
            f"{self._size(sums['weight_bytes'])} weights and hands {sent} to "
            f"{len(collectives)} collectives in a run",
            "mute",
        )  # fmt: skip
        for rank in range(self._ranks):
            name = f"rank {rank}" if self._cell > 2 * _NARROWEST else str(rank)
            self._say(self._middle(rank), _HEAD - 14, name, "ink", 'text-anchor="middle"')

    def repeat(self, rows: Iterable[Record], count: int) -> None:
        """Adds rows, with a frame and a count if they repeat."""
        top = self._y
        self._y += 26 if count > 1 else 0
        for row in rows:
            if "groups" in row:
                self._crossing(row)
            else:
                self._layer(row)
        if count > 1:
            self._y += 8
            width = self._right + _RIGHT - _EDGE
            self._parts.append(
                f'<rect x="{_EDGE // 2}" y="{top}" width="{width}" height="{self._y - top}" rx="6" '
                'class="frame"/>'
            )
            self._say(_EDGE, top + 18, f"{count} times:", "mute")
            self._y += 8

    def _layer(self, layer: Record) -> None:
        ops = ", ".join(layer["ops"][:_SHOWN_OPS]) + ", ..." * (len(layer["ops"]) > _SHOWN_OPS)
        nodes = f"{layer['nodes'][0]} (1 node)"
        if len(layer["nodes"]) > 1:
            nodes = f"{layer['nodes'][0]} to {layer['nodes'][-1]} ({len(layer['nodes'])} nodes)"
        self._say(_EDGE, self._y + 18, ops, "ink")
        self._say(_EDGE, self._y + 35, nodes, "mute", 'font-size="11"')
        kind = layer["kind"]
        blocks = max(layer["blocks"]) + 1
        for rank, block in enumerate(layer["blocks"]):
            self._bar(rank, self._y + 8, 20, kind, 1 / blocks, block / max(1, blocks - 1))
            if layer["bytes"]:
                place, share = rank / max(1, self._ranks - 1), layer["rank_bytes"] / layer["bytes"]
                self._bar(rank, self._y + 31, 7, "weight", share, place)
        self._say(self._right, self._y + 18, ", ".join(layer["shardings"]), "ink")
        if layer["bytes"]:
            weights = f"weights: {self._size(layer['rank_bytes'])} of {self._size(layer['bytes'])}"
            self._say(self._right, self._y + 35, weights, "mute", 'font-size="11"')
        self._y += _ROW

    def _crossing(self, crossing: Record) -> None:
        """Adds a line for each group of ranks; groups that do not overlap share a height."""
        lanes: list[int] = []  # the last rank of each lane
        self._say(_EDGE, self._y + 15, crossing["kind"], "move")
        self._say(self._right, self._y + 15, f"{self._size(crossing['bytes'])} from a rank", "move")
        for group in crossing["groups"]:
            lane = next((n for n, last in enumerate(lanes) if last < group[0]), len(lanes))
            lanes[lane : lane + 1] = [group[-1]]
            y = self._y + 10 + lane * _LANE
            ends = self._middle(group[0]), self._middle(group[-1])
            self._parts.append(f'<path class="line" d="M{ends[0]} {y}H{ends[1]}"/>')
            self._parts += (
                f'<circle class="move" cx="{self._middle(rank)}" cy="{y}" r="5"/>' for rank in group
            )
        self._y += _LANE * max(1, len(lanes))

    def legend(self) -> None:
        """Adds what colours mean."""
        self._y += 14
        for kind, text in _LEGEND:
            self._parts.append(
                f'<rect class="{kind}" x="{_EDGE}" y="{self._y}" width="26" height="14"/>'
            )
            self._say(_EDGE + 36, self._y + 12, text, "ink")
            self._y += 22

    def _bar(self, rank: int, y: int, height: int, kind: str, share: float, offset: float) -> None:
        """Adds a rank's bar, of which a share is filled, behind a fraction of the empty part."""
        x = self._middle(rank) - self._cell // 2
        width = max(2, round(self._cell * share, 2))
        place = round(x + offset * (self._cell - width), 2)
        self._parts += (
            f'<rect class="slot" x="{x}" y="{y}" width="{self._cell}" height="{height}"/>',
            f'<rect class="{kind}" x="{place:g}" y="{y}" width="{width:g}" height="{height}"/>',
        )

    def _middle(self, rank: int) -> int:
        return _LEFT + rank * (self._cell + _GAP) + self._cell // 2

    def _say(self, x: int, y: int, text: str, kind: str, style: str = "") -> None:
        visible = text if len(text) <= _LETTERS or y < _HEAD else f"{text[: _LETTERS - 1]}…"
        self._parts.append(
            f'<text class="{kind}" x="{x}" y="{y}" {style}>{_escaped(visible)}</text>'
        )


def _escaped(text: str) -> str:
    """Returns the text as SVG has it; names come from models, so unprintable ones are spelled."""
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def _rules(colours: dict[str, str]) -> Iterator[str]:
    yield from (f".{name}{{fill:{colour}}}" for name, colour in colours.items())
    yield f".line{{stroke:{colours['move']};stroke-width:2}}"
    yield f".frame{{fill:none;stroke:{colours['mute']}}}"
