"""Values that are None where they are not known."""

from collections.abc import Iterable
from typing import TypeVar

_T = TypeVar("_T")


def all_known(values: Iterable[_T | None]) -> tuple[_T, ...] | None:
    """The values; None where one of them is None."""
    items = tuple(values)
    known_items = tuple(value for value in items if value is not None)
    return known_items if len(known_items) == len(items) else None
