"""Records: immutable data with a field for each annotation, compared by their fields."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def record(cls: type[_T]) -> type[_T]:
    """`cls` as a frozen dataclass with slots."""
    return dataclass(frozen=True, slots=True)(cls)
