"""Compiles regular expressions of RE2's syntax to automata over the bytes of UTF-8.

    "[a-c]+x?"    state 0 -a..c-> 1,  1 -a..c-> 1,  1 -x-> 2;  1 and 2 accept

An automaton reads each byte once, so matching takes time linear in the text. Back references,
lookaround and `(?m)` are refused. So are patterns that need more states or work than the budgets
below.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from tcc.frozen import frozen
from tcc.ir.op import Array
from tcc.ops.data.regex_parse import (
    BEGIN,
    BOUNDARY,
    END,
    INSIDE,
    LAST_CODE,
    WORD,
    Chars,
    Choice,
    Concatenation,
    Mark,
    Node,
    Ranges,
    Repeat,
    parse_pattern,
)
from tcc.zipped import zip_equal

_MOST_NODES = 20_000
_MOST_STATES = 4096
_MOST_WORK = 4_000_000
_BOUNDS = (BOUNDARY, INSIDE)


@frozen
class Automaton:
    """A deterministic automaton; state 0 is the start.

    `classes` u8[256] maps a byte to its class. `moves` i32[states, classes] has the next state, or
    -1 if the text does not match. `accepts` u8[states] is 1 for states that accept.
    """

    classes: Array
    moves: Array
    accepts: Array


@lru_cache(64)
def compile_pattern(pattern: str) -> Automaton:
    """Returns the automaton that accepts exactly the texts that `pattern` matches as a whole.

    Raises ValueError, with problem and position, for a pattern that is malformed, refused or too
    large.
    """
    net = _Net()
    last = net.place()
    return _determine(net, net.build(parse_pattern(pattern), last), last)


def matches(automaton: Automaton, text: bytes) -> bool:
    """True if the automaton accepts `text`."""
    state = 0
    for byte in text:
        state = int(automaton.moves[state, automaton.classes[byte]])
        if state < 0:
            return False
    return bool(automaton.accepts[state])


# The code points whose UTF-8 form has one, two, three or four bytes, without the surrogates.
_LENGTHS = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, LAST_CODE))


# ---- nondeterministic automata -------------------------------------------------------------------


@dataclass(slots=True)
class _Net:
    """A nondeterministic automaton (NFA); its states are called places.

    `steps` has for each place a list of (lowest byte, highest byte, next place). `free` has the
    places that are reached without reading a byte. `marks` has a list of (kind of assertion, next
    place): the next place is reached without a byte where the assertion holds.
    """

    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    marks: list[list[tuple[str, int]]] = field(default_factory=list)

    def place(self, free: Sequence[int] = (), marks: Sequence[tuple[str, int]] = ()) -> int:
        if len(self.steps) == _MOST_NODES:
            raise ValueError(f"the pattern needs more than {_MOST_NODES} places")
        self.steps.append([])
        self.free.append([*free])
        self.marks.append([*marks])
        return len(self.steps) - 1

    def build(self, node: Node, after: int) -> int:
        """Adds the places of a part of the pattern, behind which `after` comes; returns its first
        place."""
        match node:
            case Chars(ranges):
                return self._chars(ranges, after)
            case Mark(kind):
                return self.place(marks=[(kind, after)])
            case Concatenation(parts):
                for part in reversed(parts):
                    after = self.build(part, after)
                return after
            case Choice(parts):
                return self.place([self.build(part, after) for part in parts])
            case Repeat(part, minimum, maximum):
                first = after
                if maximum is None:
                    first = self.place([after])
                    self.free[first].append(self.build(part, first))
                for _ in range((maximum or minimum) - minimum):
                    first = self.place([self.build(part, first), after])
                for _ in range(minimum):
                    first = self.build(part, first)
                return first

    def _chars(self, ranges: Ranges, after: int) -> int:
        first = self.place()
        for low, high in ranges:
            for *head, last in _byte_ranges(low, high):
                at = first
                for low_byte, high_byte in head:
                    behind = self.place()
                    self.steps[at].append((low_byte, high_byte, behind))
                    at = behind
                self.steps[at].append((*last, after))
        return first


def _byte_ranges(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yields the UTF-8 forms of the code points from `low` to `high`.

    Each form is a sequence of byte ranges: (lowest, highest) for each byte.
    """
    for start, end in _LENGTHS:
        a, b = max(low, start), min(high, end)
        if a <= b:
            yield from _of_length(a, b)


def _of_length(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yields the UTF-8 forms of the code points from `low` to `high`, all of the same length.

    A form is a sequence of byte ranges, as in `_byte_ranges`.
    """
    first, last = chr(low).encode(), chr(high).encode()
    for tail in range(1, len(first)):
        # The range is split so that each byte after the first has one value or takes all values.
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
    yield tuple(zip_equal(first, last))


# ---- deterministic automata: the subset construction ---------------------------------------------


@frozen
class _State:
    """A state of the deterministic automaton: the set of places that the net may be in.

    `word` is True if the previous character belongs to a word, `first` if no byte has been read.
    """

    places: frozenset[int]
    word: bool
    first: bool


class _Builder:
    """Numbers the deterministic states in the order in which they are reached."""

    def __init__(self, net: _Net) -> None:
        self.net, self.left = net, _MOST_WORK
        self.bounded = any(kind in _BOUNDS for marks in net.marks for kind, _ in marks)
        self.numbers: dict[_State, int] = {}
        self.order: list[_State] = []

    def number(self, state: _State) -> int:
        index = self.numbers.setdefault(state, len(self.order))
        if index == len(self.order):
            if index == _MOST_STATES:
                raise ValueError(f"the pattern needs more than {_MOST_STATES} states")
            self.order.append(state)
        return index

    def _spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise ValueError("the pattern takes too long to become an automaton")

    def closure(self, places: Set[int], marks: tuple[str, ...] = ()) -> frozenset[int]:
        """Returns the epsilon closure of `places`: all places reached from them without a byte.

        The closure includes `places`. Assertions of the kinds in `marks`, such as a word boundary,
        count as true.
        """
        reached, waiting = set(places), list(places)
        while waiting:
            place = waiting.pop()
            marked = (to for kind, to in self.net.marks[place] if kind in marks)
            ahead = [*self.net.free[place], *marked]
            self._spend(1 + len(ahead))
            new = [to for to in ahead if to not in reached]
            reached.update(new)
            waiting += new
        return frozenset(reached)

    def ready(self, state: _State, word: bool, *marks: str) -> frozenset[int]:
        """Returns the places of `state` and those that true assertions lead to.

        `word` says if the next character belongs to a word, which decides the assertions of word
        boundaries. Assertions of the kinds in `marks` are true as well.
        """
        bound = BOUNDARY if word != state.word else INSIDE
        kinds = (*marks, *((BEGIN,) if state.first else ()), *((bound,) if self.bounded else ()))
        return self.closure(state.places, kinds) if kinds else state.places

    def row(self, state: _State, samples: list[int]) -> list[int]:
        ready = [self.ready(state, word) for word in ((False, True) if self.bounded else (False,))]
        targets = []
        for byte in samples:
            word = self.bounded and _in_word(byte)
            reached: set[int] = set()
            for place in ready[word]:
                steps = self.net.steps[place]
                self._spend(1 + len(steps))
                reached |= {to for low, high, to in steps if low <= byte <= high}
            places = self.closure(reached)
            targets.append(self.number(_State(places, word, False)) if places else -1)
        return targets


def _determine(net: _Net, first: int, last: int) -> Automaton:
    builder = _Builder(net)
    classes, samples = _byte_classes(net, builder.bounded)
    builder.number(_State(builder.closure({first}), False, True))
    moves, accepts = [], []
    for state in builder.order:  # `row` appends new states during the loop
        accepts.append(last in builder.ready(state, False, END))
        moves.append(builder.row(state, samples))
    table = np.array(moves, np.int32).reshape(len(moves), len(samples))
    return Automaton(classes, table, np.array(accepts, np.uint8))


def _in_word(byte: int) -> bool:
    return any(low <= byte <= high for low, high in WORD)


def _byte_classes(net: _Net, bounded: bool) -> tuple[Array, list[int]]:
    """Returns (classes, samples): the class of each byte, and a byte of each class.

    Bytes of one class are in the same byte ranges of `net`, so an automaton needs one transition
    for the class. If `bounded`, the class also decides whether a byte belongs to a word.
    """
    cuts = {0, *(boundary for low, high in WORD if bounded for boundary in (low, high + 1))}
    for steps in net.steps:
        for low, high, _ in steps:
            cuts |= {low, high + 1}
    starts = sorted(c for c in cuts if c < 256)
    classes = np.searchsorted(starts, np.arange(256), side="right") - 1
    return classes.astype(np.uint8), starts
