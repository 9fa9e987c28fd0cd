"""Sizes at which kernels of open sizes are priced: typical ones, smaller odd ones and small ones.

b in 1.., typical 128    ->    128, 63, 25; tables have 8, 1, 256 and 512 besides
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from statistics import fmean
from typing import TypeAlias

from tcc.ir.index import Index, Substitution, Var, symbol
from tcc.schedule.nest import TYPICAL, typical_value

# Seconds at each set of sizes, the typical one first; one number where no size is open.
Times: TypeAlias = tuple[float, ...]

# Of a typical size: half of it less one leaves a remainder of each block, a fifth is less than two
# vectors of four.
_SETS = (Fraction(1, 2), 1), (Fraction(1, 5), 0)
# A few tiles, and one element, which is the most frequent of small sizes.
_SMALL = (Fraction(1, 16), 0), (Fraction(1, TYPICAL), 0)
# Times change between these where results no longer fit a cache, and where launches count.
_TABLE = *_SETS, *_SMALL, (Fraction(2), 0), (Fraction(4), 0)
# How many further sets of a table, the first ones, have sizes that fall.
FALLING = len(_SETS) + len(_SMALL)


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


def together(times: Iterable[Times]) -> Times:
    """The sums of times at each set of sizes."""
    return tuple(map(sum, _at_all(*times))) or (0.0,)


def mean_share(times: Times, base: Times) -> float:
    """The mean share that `times` are of `base`, in seconds of the first of `base`: what is chosen
    by it costs little at any set of sizes."""
    if base[0] <= 0:
        return times[0]
    return base[0] * fmean(time / part for time, part in _at_all(times, base))


def _at_all(*times: Times) -> Iterator[Times]:
    """Of each set of sizes the seconds of each; a single number counts at all sets."""
    sets = max(map(len, times), default=1)
    return zip(*(t * sets if len(t) == 1 else t for t in times), strict=True)
