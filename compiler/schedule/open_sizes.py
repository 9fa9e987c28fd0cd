"""Sizes at which kernels of open sizes are priced: typical ones, smaller odd ones and small ones.

b in 1.., typical 128    ->    128, 63, 25, 8, 1    and for predictions 256, 512
"""

from collections.abc import Iterable

from tcc.ir.index import Index, Substitution, Var, symbol
from tcc.schedule.nest import TYPICAL, typical_value

# Of a typical size: half of it less one leaves a remainder of each block, a fifth is less than two
# vectors of four, a sixteenth is a few tiles.  Of small sizes, one is the most frequent.
_SETS = ((2, 1), (5, 0), (16, 0), (TYPICAL, 0))
# Of larger sizes, results no longer fit a cache.
_TIMES = (2, 4)


def other_sizes(symbols: Iterable[Var]) -> tuple[Substitution, ...]:
    """What replaces the symbols for each further set of sizes: the same with other typical values.

    A symbol whose typical size the user gives keeps it.
    """
    return tuple(each for each in _smaller(symbols) if each)


def table_sizes(symbols: Iterable[Var]) -> tuple[Substitution, ...]:
    """What replaces the symbols for each further set of sizes of which a manifest has the time: as
    many sets for all symbols."""
    free = [v for v in symbols if v.extent is None]
    return (*_smaller(free), *({v: _grown(v, times) for v in free} for times in _TIMES))


def _smaller(symbols: Iterable[Var]) -> list[Substitution]:
    free = [v for v in symbols if v.extent is None and v.typical is None]
    return [{v: _sized(v, part, less) for v in free} for part, less in _SETS]


def _grown(var: Var, times: int) -> Index:
    value = typical_value(var) * times
    at_most = value if var.hi is None else min(value, var.hi)
    size = max(at_most // var.divisor * var.divisor, typical_value(var))
    return symbol(var.name, var.lo, var.hi, var.divisor, size)


def _sized(var: Var, part: int, less: int) -> Index:
    value = (typical_value(var) // part - less) // var.divisor * var.divisor
    least = -(-max(var.lo, 1) // var.divisor) * var.divisor
    return symbol(var.name, var.lo, var.hi, var.divisor, max(value, least))
