"""Regular expressions of RE2's syntax as automata over the bytes of UTF-8.

    "[a-c]+x?"    state 0 -a..c-> 1,  1 -a..c-> 1,  1 -x-> 2;  1 and 2 accept

An automaton reads each byte once, so no text takes longer than its length.  What cannot be told by
the bytes read so far (`\\b`, back references, lines by `(?m)`) is refused, and so are patterns that
need more states or work than the budgets below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from tcc.ir.op import Array
from tcc.ops.regex_parse import (
    BEGIN,
    END,
    LAST_CODE,
    Choice,
    Chars,
    Mark,
    Node,
    Ranges,
    Repeat,
    Row,
    parse_pattern,
)

_MOST_NODES = 20_000
_MOST_STATES = 4096
_MOST_WORK = 4_000_000


@dataclass(frozen=True, slots=True)
class Automaton:
    """`classes` u8[256] groups bytes; `moves` i32[states, groups] leads on, -1 nowhere; `accepts`
    u8[states].  State 0 is the first."""

    classes: Array
    moves: Array
    accepts: Array


@lru_cache(maxsize=64)
def compile_pattern(pattern: str) -> Automaton:
    """The automaton that accepts exactly the texts that `pattern` matches as a whole.

    Raises ValueError, with what and where, for a pattern that is malformed, refused or too large.
    """
    net = _Net()
    first, last = net.build(parse_pattern(pattern))
    return _determine(net, first, last)


def matches(automaton: Automaton, text: bytes) -> bool:
    """Whether the automaton accepts `text`."""
    state = 0
    for byte in text:
        state = int(automaton.moves[state, automaton.classes[byte]])
        if state < 0:
            return False
    return bool(automaton.accepts[state])


# ---- nets: automata that may be in several places ----------------------------------------------------


@dataclass(slots=True)
class _Net:
    """Places joined by bytes (`steps`), freely (`free`), or at one end of the text (`marks`)."""

    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    marks: list[list[tuple[str, int]]] = field(default_factory=list)

    def place(self) -> int:
        if len(self.steps) == _MOST_NODES:
            raise ValueError(f"the pattern needs more than {_MOST_NODES} places")
        self.steps.append([])
        self.free.append([])
        self.marks.append([])
        return len(self.steps) - 1

    def build(self, node: Node) -> tuple[int, int]:
        """First and last place of a part."""
        match node:
            case Chars(ranges):
                return self._chars(ranges)
            case Mark(kind):
                first, last = self.place(), self.place()
                self.marks[first].append((kind, last))
                return first, last
            case Row(parts):
                first = last = self.place()
                for part in parts:
                    start, end = self.build(part)
                    self.free[last].append(start)
                    last = end
                return first, last
            case Choice(parts):
                first, last = self.place(), self.place()
                for part in parts:
                    start, end = self.build(part)
                    self.free[first].append(start)
                    self.free[end].append(last)
                return first, last
            case Repeat(part, least, most):
                return self._repeat(part, least, most)

    def _repeat(self, part: Node, least: int, most: int | None) -> tuple[int, int]:
        first = last = self.place()
        for _ in range(least):
            start, end = self.build(part)
            self.free[last].append(start)
            last = end
        if most is None:
            start, end = self.build(part)
            again, behind = self.place(), self.place()
            self.free[last].append(again)
            self.free[again] += (start, behind)
            self.free[end].append(again)
            return first, behind
        behind = self.place()
        for _ in range(most - least):
            start, end = self.build(part)
            self.free[last] += (start, behind)
            last = end
        self.free[last].append(behind)
        return first, behind

    def _chars(self, ranges: Ranges) -> tuple[int, int]:
        first, last = self.place(), self.place()
        for low, high in ranges:
            for bytes_ in _byte_ranges(low, high):
                at = first
                for low_byte, high_byte in bytes_[:-1]:
                    behind = self.place()
                    self.steps[at].append((low_byte, high_byte, behind))
                    at = behind
                self.steps[at].append((*bytes_[-1], last))
        return first, last


def _byte_ranges(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The UTF-8 forms of code points low to high, as sequences of ranges of bytes."""
    for start, end in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, LAST_CODE)):
        a, b = max(low, start), min(high, end)
        if a <= b:
            yield from _of_length(a, b)


def _of_length(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """As `_byte_ranges`, where both ends take as many bytes."""
    first, last = chr(low).encode(), chr(high).encode()
    for tail in range(1, len(first)):
        # Cut so that everything behind the lead is either one value or the whole range.
        mask = (1 << (6 * tail)) - 1
        if low & ~mask != high & ~mask:
            if low & mask:
                yield from _of_length(low, low | mask)
                yield from _of_length((low | mask) + 1, high)
                return
            if high & mask != mask:
                yield from _of_length(low, (high & ~mask) - 1)
                yield from _of_length(high & ~mask, high)
                return
    yield tuple(zip(first, last, strict=True))


# ---- automata that are in one place ------------------------------------------------------------------


class _Work:
    def __init__(self) -> None:
        self.left = _MOST_WORK

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise ValueError("the pattern takes too long to become an automaton")


def _determine(net: _Net, first: int, last: int) -> Automaton:
    work = _Work()
    classes, samples = _byte_classes(net)
    begin = _closure(net, {first}, (BEGIN,), work)
    numbers = {begin: 0}
    order, moves, accepts = [begin], [], []
    for places in order:  # grows while it is walked
        ends = (BEGIN, END) if places is begin else (END,)
        accepts.append(last in _closure(net, set(places), ends, work))
        row = []
        for byte in samples:
            reached = set()
            for place in places:
                work.spend(1 + len(net.steps[place]))
                reached |= {to for low, high, to in net.steps[place] if low <= byte <= high}
            if not reached:
                row.append(-1)
                continue
            target = _closure(net, reached, (), work)
            if target not in numbers:
                if len(numbers) == _MOST_STATES:
                    raise ValueError(f"the pattern needs more than {_MOST_STATES} states")
                numbers[target] = len(numbers)
                order.append(target)
            row.append(numbers[target])
        moves.append(row)
    table = np.array(moves, np.int32).reshape(len(moves), len(samples))
    return Automaton(classes, table, np.array(accepts, np.uint8))


def _closure(net: _Net, places: set[int], marks: tuple[str, ...], work: _Work) -> frozenset[int]:
    """All places that are reached without a byte."""
    found, waiting = set(places), list(places)
    while waiting:
        place = waiting.pop()
        ahead = [*net.free[place], *(to for kind, to in net.marks[place] if kind in marks)]
        work.spend(1 + len(ahead))
        new = [to for to in ahead if to not in found]
        found.update(new)
        waiting += new
    return frozenset(found)


def _byte_classes(net: _Net) -> tuple[Array, list[int]]:
    """Bytes that no step tells apart are one class; and a byte of each."""
    cuts = {0}
    for steps in net.steps:
        for low, high, _ in steps:
            cuts |= {low, high + 1}
    starts = sorted(c for c in cuts if c < 256)
    classes = np.searchsorted(starts, np.arange(256), side="right") - 1
    return classes.astype(np.uint8), starts
