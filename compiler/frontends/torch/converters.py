"""The table of ATen operators: a converter for each overload or operator, by name."""

from collections.abc import Mapping
from typing import TypeVar

from tcc.frontends.emit import joined
from tcc.frontends.torch.context import Converter
from tcc.frontends.torch.convert import (
    collectives,
    contract,
    create,
    gradients,
    indexing,
    linalg,
    movement,
    normalization,
    pointwise,
    random,
    recurrent,
    reduce,
    resize,
    scalar_functions,
    scatter,
    special,
    window,
)

T = TypeVar("T")

CONVERTERS: Mapping[str, Converter] = joined((
    collectives, contract, create, gradients, indexing, linalg, movement, normalization, pointwise,
    random, recurrent, reduce, resize, scalar_functions, scatter, special, window,
))  # fmt: skip

# Overloads that write into tensors that the caller passes, although their names lack a suffix of
# `is_writing`.
_WRITING = frozenset(
    (
        "_linalg_det.result _linalg_eigh.eigenvalues _linalg_slogdet.sign _linalg_solve_ex.result "
        "_linalg_svd.U div.out_mode geqrf.a kthvalue.values linalg_cholesky_ex.L "
        "linalg_inv_ex.inverse mode.values sort.values sort.values_stable topk.values "
        "triangular_solve.X"
    ).split()
)


def is_writing(target: str) -> bool:
    """True if an overload writes its results into tensors that the caller passes.

    It is not imported, because other readers of the tensors would miss the update.
    """
    endings = (".out", "_out", ".grad_input")
    return target.endswith(endings) or target.removeprefix("aten.") in _WRITING


def found_in(table: Mapping[str, T], target: str) -> T | None:
    """Returns the entry of an overload (`aten.add.Tensor`) in a table of converters, else None.

    An overload's own entry (`max.dim`) is preferred to its operator's (`max`). Keys begin with the
    operator's library, except for ATen's operators. An overload that writes into its arguments has
    no entry.
    """
    if is_writing(target):
        return None
    name = target.removeprefix("aten.")
    return table.get(name, table.get(name.rpartition(".")[0]))


def converter_of(target: str) -> Converter | None:
    """Returns the converter of an overload for real tensors, None if there is none."""
    return found_in(CONVERTERS, target)
