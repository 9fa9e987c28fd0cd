"""Sizes at which kernels of open sizes are priced: typical ones, smaller odd ones and small ones.

b in 1.., typical 128    ->    128, 63, 25, 8, 1
"""

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import TypeAlias

from tcc.ir.index import Index, Substitution, Var, symbol
from tcc.schedule.nest import TYPICAL, typical_value

# Seconds at each set of sizes, the typical one first; one number where no size is open.
Times: TypeAlias = tuple[float, ...]

# Of a typical size: half of it less one leaves a remainder of each block, a fifth is less than two
# vectors of four, a sixteenth is a few tiles.  Of small sizes, one is the most frequent.
_SETS = ((2, 1), (5, 0), (16, 0), (TYPICAL, 0))


def other_sizes(symbols: Iterable[Var]) -> tuple[Substitution, ...]:
    """What replaces the symbols for each further set of sizes: the same with other typical values.

    A symbol whose typical size the user gives keeps it.
    """
    free = [v for v in symbols if v.extent is None and v.typical is None]
    sets = [{v: _sized(v, part, less) for v in free} for part, less in _SETS]
    return tuple(each for each in sets if each)


def _sized(var: Var, part: int, less: int) -> Index:
    value = (typical_value(var) // part - less) // var.divisor * var.divisor
    least = -(-max(var.lo, 1) // var.divisor) * var.divisor
    return symbol(var.name, var.lo, var.hi, var.divisor, max(value, least))


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
