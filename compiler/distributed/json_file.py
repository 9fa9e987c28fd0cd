"""Reads plans and clusters from JSON files, which are not trusted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tcc.errors import UserError

_MOST_BYTES, _MOST_DEPTH, _MOST_DIGITS = 64 << 20, 64, 18

T = TypeVar("T")


def read_json(
    path: Path, parse: Callable[[Any], T], place: str, unreadable: str, wrong: str, hint: str
) -> T:
    """Returns the result of `parse`, which gets the value in a file.

    Raises UserError, with `place` and `hint`: `unreadable` if the file cannot be read, and `wrong`
    if it is too large or too deep, if it is not JSON, or if `parse` raises ValueError.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(unreadable, where=place, why=why, hint=hint) from error
    try:
        return parse(_value(data))
    except (ValueError, RecursionError) as error:
        why = str(error) if type(error) is ValueError else "it is not JSON"
        raise UserError(wrong, where=place, why=why, hint=hint) from error


def _value(data: bytes) -> Any:
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    if _depth(data) > _MOST_DEPTH:
        raise ValueError(f"its lists are nested deeper than {_MOST_DEPTH}")
    return json.loads(data, parse_int=_whole_number, parse_constant=_no_number)


def _depth(data: bytes) -> int:
    """Returns the depth of brackets, those in texts too."""
    depth = deepest = 0
    for byte in data:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _whole_number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number has more than {_MOST_DIGITS} digits")
    return int(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")
