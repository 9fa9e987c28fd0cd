"""Texts of alternatives: plain data as constructor calls, read back by a parser.

Knobs(panel=4, k_block=128)    fields that have their default value are left out
(0, 2, 3, 1)                   a storage order
join                           a word

data   = none | true | false | number | word | "JSON string" | tuple | object
tuple  = ( data, ... )
object = Name(field=data, ...)
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from math import inf, nan
from types import MappingProxyType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from tcc.frozen import field_names

_TOKEN = re.compile(
    r'\s*(?:("(?:[^"\\]|\\.)*")|([A-Za-z_][\w.+-]*)|(-?(?:inf|\d[\w.+-]*))|([(),=]))'
)
_WORD = re.compile(r"[A-Za-z_][\w.+-]*")
_WORDS = MappingProxyType({"none": None, "true": True, "false": False, "inf": inf, "nan": nan})
_DEEPEST, _LONGEST = 32, 1 << 16
_T = TypeVar("_T")


def text_of(item: Any) -> str:
    """Returns the text of None, a number, a string, a tuple or a frozen object of these.

    Raises TypeError for other data.
    """
    match item:
        case None:
            return "none"
        case bool():
            return str(item).lower()
        case int() | float():
            return repr(item)
        case str():
            is_word = _WORD.fullmatch(item) and item not in _WORDS
            return item if is_word else json.dumps(item)
        case tuple():
            return f"({', '.join(map(text_of, item))})"
        case _ if field_names(item):
            changed = (f for f in fields(item) if getattr(item, f.name) != _default(f))
            parts = (f"{f.name}={text_of(getattr(item, f.name))}" for f in changed)
            return f"{type(item).__name__}({', '.join(parts)})"
    raise TypeError(f"an alternative of type {type(item).__name__} has no text")


def _default(field: Field[Any]) -> Any:
    return MISSING if field.default_factory is not MISSING else field.default


def read_data(text: str, *classes: type[Any]) -> Any:
    """Returns the data of a text, whose objects may be of `classes`.

    Raises ValueError for a text that the grammar above does not allow.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"the text has more than {_LONGEST} characters")
    tokens = [*_tokens(text), ""]
    parser = _Parser(tokens, {cls.__name__: cls for cls in classes})
    item = parser.data(0)
    if parser.next != "":
        raise ValueError(f"{parser.next!r} follows the end of the alternative")
    return item


def _tokens(text: str) -> Iterator[str]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text[position : position + 20]!r} is no part of an alternative")
        yield match.group().strip()
        position = match.end()


def read_object(text: str, kind: type[_T], *parts: type[Any]) -> _T:
    """Returns the object of class `kind` that a text names; its parts may be of `parts`.

    Raises ValueError for a text of anything else, and for a field of another type than the class
    declares.
    """
    item = read_data(text, kind, *parts)
    if not _conforms(item, kind):
        raise ValueError(f"it is no text of {kind.__name__}, or a field has another type")
    return cast("_T", item)


def is_object_text(text: str, kind: type[Any]) -> bool:
    """Returns True for the text of an object of class `kind`."""
    return text.startswith(f"{kind.__name__}(")


def _conforms(item: Any, kind: Any) -> bool:
    """Returns True if `item` is of the annotated type `kind`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(_conforms(item, option) for option in arguments)
    if origin is tuple:
        if not isinstance(item, tuple):
            return False
        if arguments[-1] is Ellipsis:
            return all(_conforms(part, arguments[0]) for part in item)
        return len(item) == len(arguments) and all(map(_conforms, item, arguments))
    if type(item) is not kind:  # a bool is no int here
        return False
    hints = get_type_hints(kind) if field_names(item) else {}
    return all(_conforms(getattr(item, name), hint) for name, hint in hints.items())


class _Parser:
    """A recursive-descent parser of `tokens`, of which the last is an empty string."""

    def __init__(self, tokens: list[str], classes: dict[str, type[Any]]) -> None:
        self._tokens, self._classes = tokens, classes
        self._place = 0

    @property
    def next(self) -> str:
        return self._tokens[self._place]

    def _taken(self, expected: str = "") -> str:
        token = self.next
        if not token or (expected and token != expected):
            raise ValueError(f"{expected or 'more'!r} is missing before {token or 'the end'!r}")
        self._place += 1
        return token

    def data(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} parentheses are open")
        token = self._taken("(" if self.next == "(" else "")
        if token == "(":
            return self._listed(lambda: self.data(depth + 1))
        if token.startswith('"'):
            return json.loads(token)
        if _WORD.fullmatch(token):
            if self.next == "(":
                return self._object(token, depth)
            return _WORDS.get(token, token)
        return _number(token)

    def _listed(self, part: Callable[[], _T]) -> tuple[_T, ...]:
        """Returns the parts up to the next closing parenthesis; commas separate them."""
        parts = []
        while self.next != ")":
            parts.append(part())
            if self.next != ")":
                self._taken(",")
        self._taken(")")
        return tuple(parts)

    def _object(self, name: str, depth: int) -> Any:
        self._taken("(")
        if name not in self._classes:
            raise ValueError(f"{name} is no alternative of this site")
        values: dict[str, Any] = {}
        names = {f.name for f in fields(self._classes[name])}

        def read() -> None:
            field = self._taken()
            if field not in names or field in values:
                raise ValueError(f"{name} has no field {field!r}, or has it twice")
            self._taken("=")
            values[field] = self.data(depth + 1)

        self._listed(read)
        try:
            return self._classes[name](**values)
        except TypeError as error:
            raise ValueError(f"{name} lacks a field: {error}") from error


def _number(token: str) -> int | float:
    if len(token) > 40:
        raise ValueError("a number has more than 40 characters")
    try:
        return int(token)
    except ValueError:
        return float(token)
