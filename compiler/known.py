"""Values that are None where they are not known."""

from collections.abc import Iterable
from typing import TypeVar

_T = TypeVar("_T")


def all_known(values: Iterable[_T | None]) -> tuple[_T, ...] | None:
    """The values; None where one of them is None."""
    found = tuple(values)
    known = tuple(value for value in found if value is not None)
    return known if len(known) == len(found) else None
