"""Interns immutable values: equal values are one object, so types can compare by identity."""

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import ref

_T = TypeVar("_T")


class _Entry(ref[Any]):
    """A weak reference to an interned object; holds the object's key."""

    __slots__ = ("key",)
    key: Any


# The interned objects by key.  References are weak: when an object has no other references, it is
# freed, and its entry is removed.
_INTERNED: dict[Any, _Entry] = {}


def _drop(entry: ref[Any]) -> None:
    assert isinstance(entry, _Entry)
    if _INTERNED.get(entry.key) is entry:
        del _INTERNED[entry.key]


def intern(key: tuple[Any, ...], make: Callable[[], _T]) -> _T:
    """Returns the living object that was interned with `key`, or else interns `make()`.

    The first item of `key` names the object's type.
    """
    entry = _INTERNED.get(key)
    if entry is not None:
        alive = entry()
        if alive is not None:
            existing: _T = alive
            return existing
    new_object = make()
    new_entry = _Entry(new_object, _drop)
    new_entry.key = key
    # Another thread may have interned an equal object meanwhile; then its object is returned.
    first = _INTERNED.setdefault(key, new_entry)()
    if first is None:
        _INTERNED[key], first = new_entry, new_object
    result: _T = first
    return result
