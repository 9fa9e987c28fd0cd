"""Reads JSON files that are not trusted: machines, clusters and plans.

Functions such as `count` check a value of a file.  They raise ValueError with a sentence that names
the value by its `place` in the file.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tcc.errors import UserError, file_errors

_MOST_BYTES, _MOST_DEPTH, _MOST_DIGITS, _MOST_LETTERS = 64 << 20, 64, 30, 256

T = TypeVar("T")


def read_json(
    path: Path,
    parse: Callable[[Any], T],
    place: str,
    unreadable: str,
    wrong: str,
    hint: str,
    limit: int = _MOST_BYTES,
) -> T:
    """Returns the result of `parse`, which gets the value in a file.

    Raises UserError, with `place` and `hint`: `unreadable` if the file cannot be read, and `wrong`
    if it has more than `limit` bytes or is too deep, if it is not JSON, or if `parse` raises
    ValueError.
    """
    with file_errors(unreadable, place, hint), path.open("rb") as file:
        data = file.read(limit + 1)
    try:
        if len(data) > limit:
            raise ValueError(f"it has more than {limit} bytes")
        return parse(_value(data))
    except (ValueError, RecursionError) as error:
        why = str(error) if type(error) is ValueError else "it is not JSON"
        raise UserError(wrong, where=place, why=why, hint=hint) from error


def number(value: Any, place: str, lowest: float, highest: float) -> float:
    """Returns a number of a file, which must be from `lowest` to `highest`."""
    if type(value) not in (int, float):
        raise ValueError(f"{place} is not a number")
    if not lowest <= value <= highest:
        raise ValueError(f"{place} is not a number from {lowest:g} to {highest:g}")
    return float(value)


def count(value: Any, place: str, highest: int, lowest: int = 1) -> int:
    """Returns a whole number of a file, which must be from `lowest` to `highest`."""
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"{place} is not a count from {lowest} to {highest}")
    return value


def name(value: Any, place: str) -> str:
    """Returns a text of a file of 1 to 256 printable characters."""
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_LETTERS or not value.isprintable():
        raise ValueError(f"{place} is not a name")
    return value


def rows(table: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """Returns the objects in the list `key` of an object, by their places."""
    items = table.get(key)
    if not isinstance(items, list):
        raise ValueError(f"{key} is not a list")
    return {f"{key}[{n}]": fields_of(item, f"{key}[{n}]") for n, item in enumerate(items)}


def fields_of(value: Any, place: str) -> dict[str, Any]:
    """Returns an object of a file."""
    if not isinstance(value, dict):
        raise ValueError(f"{place} is not an object")
    return value


def _value(data: bytes) -> Any:
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
