"""Immutable dataclasses: frozen ones are compared by their fields, entities by identity.

`dataclass` generates code that Python compiles when tcc starts.  Here the comparison and the hash
of a class are generated at their first use, because one run uses few of them.
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
def frozen(cls: type[_T]) -> type[_T]:
    """Returns `cls` as a frozen dataclass with slots, compared by its fields."""
    result = _with_repr(dataclass(frozen=True, slots=True, eq=False, repr=False)(cls))
    for name in _METHODS:
        if cls.__dict__.get(name) is None:
            setattr(result, name, _at_first_use(result, name))
    return result


@dataclass_transform(frozen_default=True, eq_default=False)
def entity(cls: type[_T]) -> type[_T]:
    """Returns `cls` as a frozen dataclass with slots, compared by identity.

    Its objects may be weakly referenced.
    """
    return _with_repr(
        dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)(cls)
    )


def field_names(item: object) -> tuple[str, ...]:
    """Returns the names of the fields of a frozen object or an entity, in order.

    Other objects have none.
    """
    names: tuple[str, ...] = getattr(type(item), "__match_args__", ())
    return names


def _at_first_use(cls: type[Any], name: str) -> Callable[..., Any]:
    """Returns a method that replaces itself in `cls` by the generated method when called."""

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
