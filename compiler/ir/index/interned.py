"""Interning: one object for each value of the immutable types whose equality is identity."""

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import ref

_T = TypeVar("_T")


class _Entry(ref[Any]):
    """A weak reference to an object, with the object's key."""

    __slots__ = ("key",)
    key: Any


# An object dies when nobody references it, and its entry with it.
_INTERNED: dict[Any, _Entry] = {}


def _drop(entry: ref[Any]) -> None:
    assert isinstance(entry, _Entry)
    if _INTERNED.get(entry.key) is entry:
        del _INTERNED[entry.key]


def intern(key: tuple[Any, ...], make: Callable[[], _T]) -> _T:
    """Returns the object that `make` once returned for this key, while it is alive; else a new one.
    The key's first part names the type."""
    entry = _INTERNED.get(key)
    if entry is not None:
        alive = entry()
        if alive is not None:
            existing: _T = alive
            return existing
    new_object = make()
    new_entry = _Entry(new_object, _drop)
    new_entry.key = key
    # Another thread may have interned an equal object meanwhile: the first one counts.
    first = _INTERNED.setdefault(key, new_entry)()
    if first is None:
        _INTERNED[key], first = new_entry, new_object
    result: _T = first
    return result
