"""Values that are None where they are unknown."""

from collections.abc import Iterable
from typing import TypeVar

_T = TypeVar("_T")


def all_known(values: Iterable[_T | None]) -> tuple[_T, ...] | None:
    """Returns the values as a tuple, or None where a value is None."""
    items = tuple(values)
    known_items = tuple(value for value in items if value is not None)
    return known_items if len(known_items) == len(items) else None
