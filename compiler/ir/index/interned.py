"""One object for each value of the immutable types whose equality is identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")
# Never emptied: a process meets few distinct expressions, and a lookup must be cheap.
_INTERNED: dict[Any, Any] = {}


def intern(key: tuple[Any, ...], make: Callable[[], _T]) -> _T:
    """What `make` gave for this key the first time; the key's head names the type."""
    found = _INTERNED.get(key)
    if found is None:
        found = _INTERNED[key] = make()
    result: _T = found
    return result
