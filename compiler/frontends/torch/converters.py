"""The table of ATen operators: what an overload becomes, by its name or its operator's."""

from __future__ import annotations

from collections.abc import Mapping

from tcc.frontends.emit import joined
from tcc.frontends.torch.context import Converter
from tcc.frontends.torch.convert import (
    contract,
    create,
    indexing,
    linalg,
    movement,
    normalization,
    pointwise,
    recurrent,
    reduce,
    resize,
    scalar_functions,
    scatter,
    special,
    window,
)

CONVERTERS: Mapping[str, Converter] = joined((
    contract, create, indexing, linalg, movement, normalization, pointwise, recurrent, reduce,
    resize, scalar_functions, scatter, special, window,
))  # fmt: skip

# Overloads that write into tensors they are given, which their names do not end with.
_WRITING = frozenset(
    (
        "_linalg_det.result _linalg_eigh.eigenvalues _linalg_slogdet.sign _linalg_solve_ex.result "
        "_linalg_svd.U div.out_mode geqrf.a kthvalue.values linalg_cholesky_ex.L "
        "linalg_inv_ex.inverse mode.values sort.values sort.values_stable topk.values "
        "triangular_solve.X"
    ).split()
)


def is_writing(target: str) -> bool:
    """Whether an overload writes its results into tensors that it is given; what else reads these
    would not see it."""
    return target.endswith((".out", "_out")) or target.removeprefix("aten.") in _WRITING


def converter_of(target: str) -> Converter | None:
    """The converter of an overload (`aten.add.Tensor`), None where there is none.

    An overload's own entry (`max.dim`) comes before its operator's (`max`).  Names are ATen's;
    those of other libraries have the library before them.
    """
    return None if is_writing(target) else _found(target.removeprefix("aten."))


def _found(name: str) -> Converter | None:
    return CONVERTERS.get(name, CONVERTERS.get(name.rpartition(".")[0]))


def by_name(name: str) -> Converter:
    """The converter under a name that the table has."""
    found = _found(name)
    assert found is not None, name
    return found
