"""Decides which sizes may be 1 where other sizes are not."""

from functools import lru_cache
from itertools import product

import numpy as np
from tcc.ir.index import (
    Index,
    bounds,
    divisor_of,
    evaluate,
    free_vars,
    maximum,
    minimum,
    substitute,
    symbol,
)

_TRIED = 256  # about this many combinations of values of the symbols are tried


def if_one(size: Index, then: Index, other: Index) -> Index:
    """Returns `then` where `size`, which is at least 0, is 1, else `other`."""
    return other + (then - other) * maximum(2 - size, 0) * minimum(size, 1)


def may_be_one(size: Index) -> bool:
    """True unless bounds or divisor of `size` exclude 1."""
    lo, hi = bounds(size)
    return (lo is None or lo <= 1) and (hi is None or hi >= 1) and divisor_of(size) == 1


@lru_cache(1 << 12)
def one_apart(size: Index, other: Index) -> bool:
    """True if `size` may be 1 where `other` is not.

    Small values of the symbols are tried. For larger values the bounds of `size` must exclude 1. If
    `size` is a number, `other` must contain a symbol.
    """
    if not may_be_one(size):
        return False
    variables = dict.fromkeys((*free_vars(size), *free_vars(other)))
    count = round(_TRIED ** (1 / len(variables)))
    trial_values = np.array([*product(range(count), repeat=len(variables))]).T
    at = {var.name: var.lo + values for var, values in zip(variables, trial_values, strict=True)}
    with np.errstate(divide="ignore"):
        if ((evaluate(size, at) == 1) & (evaluate(other, at) != 1)).any():
            return True
    beyond = ({var: symbol(var.name, var.lo + count)} for var in variables)
    return any(may_be_one(substitute(size, only)) for only in beyond)
