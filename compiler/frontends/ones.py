"""Which sizes may be 1 where others are not."""

from functools import lru_cache
from itertools import product

import numpy as np
from tcc.ir.index import Index, evaluate, free_vars, may_be_one, substitute, symbol

_TRIED = 256  # values of all symbols together


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
