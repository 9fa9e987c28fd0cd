"""Parses regular expressions of RE2's syntax to a tree of character sets, choices and repeats.

Lazy and greedy repeats mean the same, because a pattern matches a text as a whole.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from string import (
    ascii_letters,
    ascii_lowercase,
    ascii_uppercase,
    digits,
    hexdigits,
    punctuation,
    whitespace,
)
from typing import TypeAlias

from tcc.frozen import frozen

LAST_CODE = sys.maxunicode
BEGIN, END, BOUNDARY, INSIDE = "begin", "end", "boundary", "inside"
_MOST_REPEATS = 1000
_DEEPEST = 50
_LONGEST = 10_000

Ranges: TypeAlias = tuple[tuple[int, int], ...]


@frozen
class Chars:
    """Matches a character of a set.

    `ranges` has the set as ascending ranges (first, last) of code points with gaps between them.
    """

    ranges: Ranges


@frozen
class Mark:
    """Matches the empty text at certain positions.

    `kind` says where: at the `BEGIN` or `END` of the text, at a `BOUNDARY` of a word, or `INSIDE`,
    which is everywhere else.
    """

    kind: str


@frozen
class Concatenation:
    parts: tuple[Node, ...]


@frozen
class Choice:
    parts: tuple[Node, ...]


@frozen
class Repeat:
    """Matches `part` repeated `minimum` to `maximum` times; None means that there is no maximum."""

    part: Node
    minimum: int
    maximum: int | None


Node: TypeAlias = Chars | Mark | Concatenation | Choice | Repeat

_ALL: Ranges = ((0, LAST_CODE),)
_OCTAL = tuple("01234567")
_BOUNDS = re.compile(r"\{(\d{1,5})(?:(,)(\d{0,5}))?\}", re.A)
_CONTROLS = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Returns ranges of the same characters in ascending order, with gaps between them."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _of(*characters: str) -> Ranges:
    return joined_ranges((code, code) for code in map(ord, "".join(characters)))


WORD = _of(ascii_letters, digits, "_")
_SETS = {"d": _of(digits), "w": WORD, "s": _of("\t\n\f\r ")}
_POSIX: dict[str, Ranges] = {
    "alnum": _of(ascii_letters, digits),
    "alpha": _of(ascii_letters),
    "ascii": ((0, 127),),
    "blank": _of("\t "),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _of(digits),
    "graph": ((33, 126),),
    "lower": _of(ascii_lowercase),
    "print": ((32, 126),),
    "punct": _of(punctuation),
    "space": _of(whitespace),
    "upper": _of(ascii_uppercase),
    "word": WORD,
    "xdigit": _of(hexdigits),
}


def parse_pattern(pattern: str) -> Node:
    """Returns the tree of a pattern; raises ValueError with the problem and its position."""
    if len(pattern) > _LONGEST:
        raise ValueError(f"the pattern is longer than {_LONGEST} characters")
    reader = _Reader(pattern)
    node = reader.choice(0)
    if reader.at < len(pattern):
        raise reader.error("')' closes nothing")
    return node


def _without(ranges: Ranges) -> Ranges:
    """Returns the ranges of all other characters."""
    complement, start = [], 0
    for low, high in joined_ranges(ranges):
        if start < low:
            complement.append((start, low - 1))
        start = high + 1
    return (*complement, *(((start, LAST_CODE),) if start <= LAST_CODE else ()))


@cache
def _case_partners() -> dict[int, tuple[int, ...]]:
    """Maps each character that has other cases to all characters that differ from it in case only.

    The character itself is among them.
    """
    groups: dict[str, list[int]] = {}
    for code in range(LAST_CODE + 1):
        folded = chr(code).casefold()
        if len(folded) == 1 and (folded != chr(code) or chr(code).upper() != chr(code)):
            groups.setdefault(folded, []).append(code)
    return {c: tuple(group) for group in groups.values() for c in group if len(group) > 1}


@cache
def _categories() -> tuple[tuple[str, int, int], ...]:
    """Returns ranges of characters of one general category of Unicode.

    An item is (the category's two letters, first character, last character). All ranges are
    computed together and cached, because a pass over Unicode takes long.
    """
    runs, first = [], 0
    names = groupby(map(unicodedata.category, map(chr, range(LAST_CODE + 1))))
    for name, characters in names:
        after = first + sum(1 for _ in characters)
        runs.append((name, first, after - 1))
        first = after
    return tuple(runs)


@cache
def _category(name: str) -> Ranges:
    """Returns the characters of a general category of Unicode, named by its one or two letters."""
    return joined_ranges(
        (low, high) for letters, low, high in _categories() if letters.startswith(name)
    )


class _Reader:
    """Reads a pattern from left to right; `flags` apply at the current position.

    `i` ignores case, and `s` lets a dot match line ends.
    """

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.flags: frozenset[str] = frozenset()

    def error(self, what: str) -> ValueError:
        return ValueError(f"{what} (character {self.at} of the pattern {self.text[:80]!r})")

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self, text: str) -> bool:
        matches = self.text.startswith(text, self.at)
        self.at += len(text) if matches else 0
        return matches

    def next(self) -> str:
        if self.at >= len(self.text):
            raise self.error("the pattern ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def until(self, end: str) -> str:
        stop = self.text.find(end, self.at)
        if stop < 0:
            raise self.error(f"{end!r} is missing")
        text, self.at = self.text[self.at : stop], stop + len(end)
        return text

    # ---- choices, concatenations and groups ------------------------------------------------------

    def choice(self, depth: int) -> Node:
        if depth > _DEEPEST:
            raise self.error(f"groups nest more than {_DEEPEST} deep")
        flags = self.flags
        parts = [self.row(depth)]
        while self.take("|"):
            parts.append(self.row(depth))
        self.flags = flags
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def row(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            if self.take("\\Q"):
                quoted, end, _ = self.text[self.at :].partition("\\E")
                self.at += len(quoted + end)
                parts += [self._set(((ord(c), ord(c)),)) for c in quoted]
                continue
            part = self.item(depth)
            if part is not None:
                parts.append(self.repeated(part))
        return Concatenation(tuple(parts))

    def repeated(self, part: Node) -> Node:
        count = 0
        while True:
            bounds = self._bounds()
            if bounds is None:
                return part
            minimum, maximum = bounds
            count += 1
            if max(minimum, maximum or 0) > _MOST_REPEATS or count > 4:
                raise self.error(f"more than {_MOST_REPEATS} repeats")
            if maximum is not None and maximum < minimum:
                raise self.error(f"repeats from {minimum} to {maximum}")
            self.take("?")
            part = Repeat(part, minimum, maximum)

    def _bounds(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(mark):
                return bounds
        match = _BOUNDS.match(self.text, self.at)
        if match is None:
            return None  # in RE2, a brace that starts no repeat matches itself
        self.at = match.end()
        low, comma, high = match.groups()
        return int(low), (int(high) if high else None) if comma else int(low)

    def item(self, depth: int) -> Node | None:
        char = self.next()
        match char:
            case "(":
                return self._group(depth)
            case "[":
                return self._set(self._class())
            case ".":
                return Chars(_ALL if "s" in self.flags else _without(((10, 10),)))
            case "^":
                return Mark(BEGIN)
            case "$":
                return Mark(END)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self.error(f"'{char}' repeats nothing")
        return self._set(((ord(char), ord(char)),))

    def _group(self, depth: int) -> Node | None:
        if not self.take("?"):
            return self._inside(depth)
        if self.take("P<") or self.take("<"):
            if self.peek() in ("=", "!"):
                raise self.error("looking around is not supported")
            if not self.until(">").isidentifier():
                raise self.error("a group has no proper name")
            return self._inside(depth)
        outer, on = self.flags, True
        while True:
            char = self.next()
            match char:
                case ")":
                    return None  # the flags apply up to the end of the enclosing group
                case ":":
                    node = self._inside(depth)
                    self.flags = outer
                    return node
                case "-":
                    on = False
                case "i" | "s" | "U":
                    self.flags = self.flags | {char} if on else self.flags - {char}
                case _:
                    raise self.error(f"'(?{char}' is not supported")

    def _inside(self, depth: int) -> Node:
        node = self.choice(depth + 1)
        if not self.take(")"):
            raise self.error("a group is not closed")
        return node

    # ---- characters and sets of characters -------------------------------------------------------

    def _set(self, ranges: Ranges) -> Chars:
        if "i" not in self.flags:
            return Chars(joined_ranges(ranges))
        partners = _case_partners()
        more = [
            (other, other)
            for low, high in ranges
            for code in (range(low, high + 1) if high - low < len(partners) else partners)
            if low <= code <= high
            for other in partners.get(code, ())
        ]
        return Chars(joined_ranges((*ranges, *more)))

    def _escape(self) -> Node:
        char = self.peek()
        kind = {"A": BEGIN, "z": END, "b": BOUNDARY, "B": INSIDE}.get(char)
        if kind is not None:
            self.at += 1
            return Mark(kind)
        return self._set(self._escaped())

    def _escaped(self) -> Ranges:
        """Returns the characters of an escape, whose backslash has been read."""
        char = self.next()
        if char.lower() in _SETS:
            characters = _SETS[char.lower()]
            return _without(characters) if char.isupper() else characters
        if char in ("p", "P"):
            return self._unicode(char == "P")
        if char == "x":
            code = self._hex()
        elif char in _CONTROLS:
            code = _CONTROLS[char]
        elif char in _OCTAL and (char == "0" or self.peek() in _OCTAL):
            code = int(char + "".join(self.next() for _ in range(2) if self.peek() in _OCTAL), 8)
        elif char.isascii() and (char.isalnum()):
            raise self.error(f"'\\{char}' is not supported")
        else:
            code = ord(char)
        return ((code, code),)

    def _hex(self) -> int:
        number = self.until("}") if self.take("{") else self.next() + self.next()
        try:
            code = int(number, 16)
        except ValueError:
            raise self.error(f"{number[:20]!r} is no hexadecimal number") from None
        if not 0 <= code <= LAST_CODE:
            raise self.error("there is no such character")
        return code

    def _unicode(self, negated: bool) -> Ranges:
        name = self.until("}") if self.take("{") else self.next()
        if name.startswith("^"):
            name, negated = name[1:], not negated
        characters = _ALL if name == "Any" else _category(name) if 1 <= len(name) <= 2 else ()
        if not characters:
            raise self.error(f"the class of characters {name[:20]!r} is not supported")
        return _without(characters) if negated else characters

    def _class(self) -> Ranges:
        """Returns the characters of a bracket expression, whose opening bracket has been read."""
        negated = self.take("^")
        items: list[tuple[int, int]] = []
        first = True
        while first or self.peek() != "]":
            first = False
            if self.take("[:"):
                items += self._posix()
                continue
            low = self._class_item()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                items.append(self._range(low, self._class_item()))
            else:
                items += low
        self.at += 1
        # The other cases of letters are added before the negation, so that (?i)[^a] excludes A.
        ranges = self._set(tuple(items)).ranges
        return _without(ranges) if negated else ranges

    def _range(self, low: Ranges, high: Ranges) -> tuple[int, int]:
        """Returns the code points (first, last) of a range; raises ValueError if it is
        malformed."""
        (start, first), (last, end) = low[0], high[0]
        if len(low) > 1 or len(high) > 1 or start != first or last != end or last < start:
            raise self.error("a range of characters is no range")
        return start, end

    def _class_item(self) -> Ranges:
        char = self.next()
        return self._escaped() if char == "\\" else ((ord(char), ord(char)),)

    def _posix(self) -> Ranges:
        name = self.until(":]")
        characters = _POSIX.get(name.removeprefix("^"))
        if characters is None:
            raise self.error(f"the class of characters [:{name[:20]}:] is not supported")
        return _without(characters) if name.startswith("^") else characters
