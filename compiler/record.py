"""Immutable data, a field for each annotation: records are compared by their fields, entities are
themselves alone."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def record(cls: type[_T]) -> type[_T]:
    """`cls` as a frozen dataclass with slots."""
    return dataclass(frozen=True, slots=True)(cls)


@dataclass_transform(frozen_default=True, eq_default=False)
def entity(cls: type[_T]) -> type[_T]:
    """`cls` as a frozen dataclass with slots, whose objects are compared by identity and may
    be weakly referenced."""
    return dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)(cls)


def field_names(item: object) -> tuple[str, ...]:
    """The names of the fields of a record or an entity, in their order; none of anything else."""
    names: tuple[str, ...] = getattr(type(item), "__match_args__", ())
    return names
