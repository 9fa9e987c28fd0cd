"""Methods that keep their results."""

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Callable[..., Any])


def cached_method(method: _T) -> _T:
    """Makes a method compute its result once for each set of arguments, which must be hashable.

    Each object keeps its own results: `functools.cache` would keep the objects themselves alive.
    The class must not have slots.
    """
    # A type checker sees the decorated method, whose calls it can check, and not the property.
    return cached_property(lambda item: cache(partial(method, item)))  # type: ignore[return-value]
