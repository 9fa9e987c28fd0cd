"""Decides whether a size may be 1 while another size is not, which makes it broadcast."""

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
from tcc.zipped import zip_equal

_TRIED = 256  # the approximate number of combinations of symbol values that are tried


def if_one(size: Index, then: Index, other: Index) -> Index:
    """Returns an index that equals `then` if `size` is 1, else `other`.

    `size` must be at least 0.
    """
    return other + (then - other) * maximum(2 - size, 0) * minimum(size, 1)


def may_be_one(size: Index) -> bool:
    """False if the bounds or the divisor of `size` exclude the value 1, else True."""
    lo, hi = bounds(size)
    return (lo is None or lo <= 1) and (hi is None or hi >= 1) and divisor_of(size) == 1


@lru_cache(1 << 12)
def one_apart(size: Index, other: Index) -> bool:
    """True if some values of the symbols may make `size` 1 and `other` not 1.

    All combinations of small values of the symbols are tried. The result is also True if the bounds
    of `size` do not exclude 1 for larger values. At least one of the two must contain a symbol.
    """
    if not may_be_one(size):
        return False
    variables = dict.fromkeys((*free_vars(size), *free_vars(other)))
    count = round(_TRIED ** (1 / len(variables)))
    trial_values = np.array([*product(range(count), repeat=len(variables))]).T
    at = {var.name: var.lo + values for var, values in zip_equal(variables, trial_values)}
    with np.errstate(divide="ignore"):
        if ((evaluate(size, at) == 1) & (evaluate(other, at) != 1)).any():
            return True
    beyond = ({var: symbol(var.name, var.lo + count)} for var in variables)
    return any(may_be_one(substitute(size, only)) for only in beyond)
