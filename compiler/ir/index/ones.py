"""Which sizes may be 1 where others are not."""

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

_TRIED = 256  # values of all symbols together


def if_one(size: Index, then: Index, other: Index) -> Index:
    """`then` where `size`, which is at least 0, is 1, else `other`."""
    return other + (then - other) * maximum(2 - size, 0) * minimum(size, 1)


def may_be_one(size: Index) -> bool:
    """True unless bounds or divisor of `size` exclude 1."""
    lo, hi = bounds(size)
    return (lo is None or lo <= 1) and (hi is None or hi >= 1) and divisor_of(size) == 1


@lru_cache(1 << 12)
def one_apart(own: Index, other: Index) -> bool:
    """Whether `own` may be 1 where `other`, which is no number if `own` is one, is not: so it is at
    small values of their symbols, or what bounds `own` beyond these does not exclude it."""
    if not may_be_one(own):
        return False
    found = dict.fromkeys((*free_vars(own), *free_vars(other)))
    count = round(_TRIED ** (1 / len(found)))
    tried = np.array([*product(range(count), repeat=len(found))]).T
    at = {var.name: var.lo + values for var, values in zip(found, tried, strict=True)}
    with np.errstate(divide="ignore"):
        if ((evaluate(own, at) == 1) & (evaluate(other, at) != 1)).any():
            return True
    beyond = ({var: symbol(var.name, var.lo + count)} for var in found)
    return any(may_be_one(substitute(own, only)) for only in beyond)
