"""The table of ATen operators: what an overload becomes, by its name or its operator's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tcc.frontends import (
    torch_bessel,
    torch_contract,
    torch_create,
    torch_indexing,
    torch_linalg,
    torch_movement,
    torch_normalization,
    torch_pointwise,
    torch_polynomials,
    torch_reduce,
    torch_resize,
    torch_scalar_functions,
    torch_scatter,
    torch_special,
    torch_window,
    torch_zeta,
)
from tcc.frontends.torch_context import Converter

_FAMILIES = (
    torch_bessel,
    torch_contract,
    torch_create,
    torch_indexing,
    torch_linalg,
    torch_movement,
    torch_normalization,
    torch_pointwise,
    torch_polynomials,
    torch_reduce,
    torch_resize,
    torch_scalar_functions,
    torch_scatter,
    torch_special,
    torch_window,
    torch_zeta,
)


def _join() -> Mapping[str, Converter]:
    table: dict[str, Converter] = {}
    for family in _FAMILIES:
        for name, converter in family.CONVERTERS.items():
            assert name not in table, name
            table[name] = converter
    return MappingProxyType(table)


CONVERTERS = _join()


def converter_of(target: Any) -> Converter | None:
    """The converter of an overload, None where there is none.

    An overload's own entry (`max.dim`) comes before its operator's (`max`).  Names are ATen's;
    those of other libraries have the library before them.
    """
    name = str(target).removeprefix("aten.")
    return None if name.endswith((".out", "_out")) else _found(name)


def _found(name: str) -> Converter | None:
    own = CONVERTERS.get(name)
    return own if own is not None else CONVERTERS.get(name.rpartition(".")[0])


def by_name(name: str) -> Converter:
    """The converter under a name that the table has."""
    found = _found(name)
    assert found is not None, name
    return found
