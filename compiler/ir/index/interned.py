"""One object for each value of the immutable types whose equality is identity."""

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import ref

_T = TypeVar("_T")


class _Entry(ref[Any]):
    """A weak reference to an object that knows its key."""

    __slots__ = ("key",)
    key: Any


# An object goes when nobody holds it, and its entry with it.
_INTERNED: dict[Any, _Entry] = {}


def _drop(entry: ref[Any]) -> None:
    assert isinstance(entry, _Entry)
    if _INTERNED.get(entry.key) is entry:
        del _INTERNED[entry.key]


def intern(key: tuple[Any, ...], make: Callable[[], _T]) -> _T:
    """What `make` gave for this key while anybody holds it; the key's head names the type."""
    entry = _INTERNED.get(key)
    if entry is not None:
        found = entry()
        if found is not None:
            kept: _T = found
            return kept
    made = make()
    own = _Entry(made, _drop)
    own.key = key
    # Another thread may have made it meanwhile: the first one counts.
    first = _INTERNED.setdefault(key, own)()
    if first is None:
        _INTERNED[key], first = own, made
    result: _T = first
    return result
