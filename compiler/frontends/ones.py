"""Which sizes may be 1 where others are not."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

from tcc.ir.index import Index, Var, evaluate, free_vars, may_be_one, substitute, symbol

_TRIED = 256  # values of all symbols together


@lru_cache(1 << 12)
def one_apart(own: Index, other: Index) -> bool:
    """Whether `own` may be 1 where `other` is not: found at small values of their symbols, or not
    excluded by what bounds `own` beyond them."""
    if not may_be_one(own):
        return False
    found = {var.name: var for var in (*free_vars(own), *free_vars(other))}
    count = round(_TRIED ** (1 / max(len(found), 1)))
    tried = {name: _multiples(var, count) for name, var in found.items()}
    for values in product(*tried.values()):
        at = dict(zip(found, values, strict=True))
        if evaluate(own, at) == 1 != evaluate(other, at):
            return True
    return any(
        may_be_one(substitute(own, {var: symbol(name, tried[name].stop, var.hi, var.divisor)}))
        for name, var in found.items()
        if var.hi is None or tried[name].stop <= var.hi
    )


def _multiples(var: Var, count: int) -> range:
    """The `count` least values of a symbol, fewer where it has fewer."""
    first = -(-var.lo // var.divisor) * var.divisor
    end = first + count * var.divisor
    return range(first, end if var.hi is None else min(end, var.hi + 1), var.divisor)
