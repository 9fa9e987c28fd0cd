"""The table of ATen operators: what an overload becomes, by its name or its operator's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tcc.frontends.emit import joined
from tcc.frontends.torch.context import Converter
from tcc.frontends.torch.convert import (
    bessel,
    composites,
    contract,
    create,
    indexing,
    linalg,
    losses,
    movement,
    normalization,
    pointwise,
    polynomials,
    recurrent,
    reduce,
    resize,
    scalar_functions,
    scatter,
    special,
    window,
    zeta,
)

CONVERTERS: Mapping[str, Converter] = joined((
    bessel, composites, contract, create, indexing, linalg, losses, movement, normalization,
    pointwise, polynomials, recurrent, reduce, resize, scalar_functions, scatter, special,
    window, zeta,
))  # fmt: skip
# Other names that torch gives its operators; programs as they were traced have them.
_ALIASES = MappingProxyType(
    dict(
        pair.split("=")
        for pair in (
            "absolute=abs arccos=acos arccosh=acosh arcsin=asin arcsinh=asinh arctan=atan "
            "arctan2=atan2 arctanh=atanh concat=cat concatenate=cat divide=div fix=trunc "
            "greater=gt greater_equal=ge less=lt less_equal=le multiply=mul negative=neg "
            "not_equal=ne special_erf=erf special_erfc=erfc special_expit=sigmoid "
            "special_exp2=exp2 special_expm1=expm1 special_log1p=log1p special_round=round "
            "subtract=sub linalg_matmul=matmul det=linalg_det special_i0=i0 "
            "special_psi=digamma special_xlogy=xlogy "
            "matrix_exp=linalg_matrix_exp row_stack=vstack native_channel_shuffle=channel_shuffle "
            "argwhere=nonzero special_logsumexp=logsumexp orgqr=linalg_householder_product"
        ).split()
    )
)


# Overloads that write into tensors they are given, which their names do not end with.
_WRITING = frozenset(
    (
        "_linalg_det.result _linalg_eigh.eigenvalues _linalg_slogdet.sign _linalg_solve_ex.result "
        "_linalg_svd.U div.out_mode divide.out_mode geqrf.a kthvalue.values linalg_cholesky_ex.L "
        "linalg_inv_ex.inverse mode.values sort.values sort.values_stable topk.values "
        "triangular_solve.X xlogy.OutScalar_Other xlogy.OutScalar_Self xlogy.OutTensor"
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
    own = CONVERTERS.get(_ALIASES.get(name, name))
    packet = name.rpartition(".")[0]
    return own if own is not None else CONVERTERS.get(_ALIASES.get(packet, packet))


def is_composite(target: str) -> bool:
    """Whether torch itself had better take the operator apart."""
    name = target.removeprefix("aten.")
    names = {_ALIASES.get(n, n) for n in (name, name.rpartition(".")[0])}
    return any(names & family.CONVERTERS.keys() for family in (composites, losses))


def by_name(name: str) -> Converter:
    """The converter under a name that the table has."""
    found = _found(name)
    assert found is not None, name
    return found
