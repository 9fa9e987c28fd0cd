"""Tokens of the IR texts, and a cursor over them that reports places.

Words may contain dots (`s0.1`, `layer.0`); `%name` and `%"any text"` are one token; a `;` starts a
location that lasts to the end of the line. Other line breaks have no meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tcc.errors import UserError

_T = TypeVar("_T")
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(
    rf"""
    (?P<space>\s+)
  | (?P<location>;[^\n]*)
  | (?P<value>%(?:[A-Za-z0-9_/][A-Za-z0-9_./\#]*|{_STRING}))
  | (?P<digest>@[0-9a-f]+)
  | (?P<string>{_STRING})
  | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w))
  | (?P<word>[A-Za-z_]\w*(?:\.\w+)*)
  | (?P<mark>//|\.\.|<=|>=|==|!=|[-+*/%<>=:,|?()\[\]{{}}])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token; `kind` is a group of the grammar above or `end`, `text` is decoded (without
    quotes)."""

    kind: str
    text: str
    at: int


class Cursor:
    """A position in the tokens of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self.position = 0

    def peek(self, ahead: int = 0) -> Token:
        at = self.position + ahead
        return self._tokens[at] if at < len(self._tokens) else self._tokens[-1]

    def next(self) -> Token:
        token = self.peek()
        self.position += 1
        return token

    def at(self, *texts: str) -> bool:
        """Returns true if the next token is one of these marks or words."""
        token = self.peek()
        return token.kind in ("mark", "word") and token.text in texts

    def take(self, text: str) -> bool:
        """Steps over the mark or word `text` if it is next; returns true then."""
        is_present = self.at(text)
        self.position += is_present
        return is_present

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.error(f"'{text}' is due")

    def kind(self, *kinds: str) -> str:
        """Returns the text of the next token, which must be of one of these kinds."""
        if self.peek().kind not in kinds:
            raise self.error(f"a {' or '.join(kinds)} is due")
        return self.next().text

    def integer(self) -> int:
        sign = -1 if self.take("-") else 1
        if not self.peek().text.isdigit():
            raise self.error("an integer is due")
        return sign * int(self.kind("number"))

    def items(self, end: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        """Parses items with commas between them, up to and including the mark `end`."""
        parsed_items: list[_T] = []
        while not self.take(end):
            if parsed_items:
                self.expect(",")
            parsed_items.append(item())
        return tuple(parsed_items)

    def some(self, item: Callable[[], _T]) -> tuple[_T, ...]:
        """Parses one or more items with commas between them."""
        items = [item()]
        while self.take(","):
            items.append(item())
        return tuple(items)

    def error(self, what: str, token: Token | None = None) -> UserError:
        """Returns a `UserError` at `token`, by default the next token."""
        token = token or self.peek()
        actual = "the end" if token.kind == "end" else f"'{token.text}'"
        return UserError(what, where=place(self._text, token.at), why=f"found {actual}")


def place(text: str, at: int) -> str:
    """Returns a position as `line 3, column 7`; both count from one."""
    line = text.count("\n", 0, at) + 1
    return f"line {line}, column {at - (text.rfind(chr(10), 0, at) + 1) + 1}"


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UserError("this is no token", where=place(text, at), why=f"found {text[at]!r}")
        kind = str(match.lastgroup)
        if kind != "space":
            tokens.append(Token(kind, _decoded(kind, match.group(), text, at), at))
        at = match.end()
    return [*tokens, Token("end", "", at)]


def _decoded(kind: str, raw: str, text: str, at: int) -> str:
    if kind in ("value", "digest"):
        raw = raw[1:]
    elif kind == "location":
        raw = raw[1:].strip()
    elif kind != "string":
        return raw
    if not raw.startswith('"'):
        return raw
    try:
        return str(json.loads(raw))
    except ValueError as error:
        raise UserError("this is no string", where=place(text, at), why=str(error)) from error
