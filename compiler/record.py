"""Immutable data, a field for each annotation: records are compared by their fields, entities are
themselves alone.

What `dataclass` writes for a class is code that Python compiles as tcc starts.  A comparison and a
hash are written at their first use here: few of them are used in one run.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, TypeVar, dataclass_transform

_T = TypeVar("_T")
_METHODS = MappingProxyType({
    "__eq__": "lambda self, other: ({self}) == ({other}) if other.__class__ is self.__class__ "
    "else NotImplemented",
    "__hash__": "lambda self: hash(({self}))",
})  # fmt: skip


@dataclass_transform(frozen_default=True)
def record(cls: type[_T]) -> type[_T]:
    """`cls` as a frozen dataclass with slots."""
    frozen = _with_repr(dataclass(frozen=True, slots=True, eq=False, repr=False)(cls))
    for name in _METHODS:
        if cls.__dict__.get(name) is None:
            setattr(frozen, name, _at_first_use(frozen, name))
    return frozen


@dataclass_transform(frozen_default=True, eq_default=False)
def entity(cls: type[_T]) -> type[_T]:
    """`cls` as a frozen dataclass with slots, whose objects are compared by identity and may
    be weakly referenced."""
    frozen = dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)(cls)
    return _with_repr(frozen)


def field_names(item: object) -> tuple[str, ...]:
    """The names of the fields of a record or an entity, in their order; none of anything else."""
    names: tuple[str, ...] = getattr(type(item), "__match_args__", ())
    return names


def _at_first_use(cls: type[Any], name: str) -> Callable[..., Any]:
    """A method that takes its own place in `cls` when it is called."""

    def method(*args: object) -> Any:
        names = [field.name for field in fields(cls) if field.compare]
        operands = {side: "".join(f"{side}.{n}, " for n in names) for side in ("self", "other")}
        function = eval(_METHODS[name].format_map(operands))
        setattr(cls, name, function)
        return function(*args)

    return method


def _with_repr(cls: type[_T]) -> type[_T]:
    if "__repr__" not in cls.__dict__:
        cls.__repr__ = _text  # type: ignore[method-assign]
    return cls


def _text(item: Any) -> str:
    parts = (f"{f.name}={getattr(item, f.name)!r}" for f in fields(item) if f.repr)
    return f"{type(item).__qualname__}({', '.join(parts)})"
