"""Sizes at which kernels of open sizes are priced: typical ones, smaller odd ones and small ones.

b in 1.., typical 128    ->    128, 63, 25
"""

from collections.abc import Iterable
from fractions import Fraction

from tcc.ir.index import Index, Substitution, Var, symbol
from tcc.schedule.nest import typical_value

# Of a typical size: half of it less one leaves a remainder of each block, a fifth is less than two
# vectors of four.
_SETS = (Fraction(1, 2), 1), (Fraction(1, 5), 0)
# Times change between these where results no longer fit a cache, and where launches count.
_TABLE = (Fraction(1, 16), 0), *_SETS, (Fraction(2), 0), (Fraction(4), 0)


def other_sizes(symbols: Iterable[Var]) -> tuple[Substitution, ...]:
    """What replaces the symbols for each further set of sizes: the same with other typical values.

    A symbol whose typical size the user gives keeps it.
    """
    free = [v for v in symbols if v.extent is None and v.typical is None]
    sets = [{v: _sized(v, part, less) for v in free} for part, less in _SETS]
    return tuple(each for each in sets if each)


def table_sizes(symbols: Iterable[Var]) -> tuple[Substitution, ...]:
    """What replaces the symbols for each further set of sizes of which a manifest has the time."""
    free = [v for v in symbols if v.extent is None]
    return tuple({v: _sized(v, part, less) for v in free} for part, less in _TABLE)


def _sized(var: Var, part: Fraction, less: int) -> Index:
    value = (int(typical_value(var) * part) - less) // var.divisor * var.divisor
    least = -(-max(var.lo, 1) // var.divisor) * var.divisor
    at_most = value if var.hi is None else min(value, var.hi)
    return symbol(var.name, var.lo, var.hi, var.divisor, max(at_most, least))
