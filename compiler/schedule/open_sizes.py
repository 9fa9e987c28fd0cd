"""The sets of sizes at which kernels with symbolic dims are priced.

    b in 1.., typical 128    ->    128, 63 and 25 to choose schedules
                                   128, 63, 25, 8, 1, 256 and 512 in a manifest's table of times

The first set has the typical size of each symbolic dim. The further sets have smaller sizes (half
the size minus one is 63, a fifth is 25) and, in a table, larger sizes too.
"""

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import TypeAlias

from tcc.ir.index import Index, Substitution, Var, symbol
from tcc.schedule.alternatives import NO_TIME, Seconds, number, saves
from tcc.schedule.nest import TYPICAL, typical_value
from tcc.zipped import zip_equal

# The seconds of a kernel at each set of sizes, the typical set first; a single number if no size
# is symbolic.
Times: TypeAlias = tuple[Seconds, ...]
# Each set of sizes: (divisor of the typical size, number subtracted from the quotient).
_Sets: TypeAlias = tuple[tuple[int, int], ...]

# Half of the typical size, minus one, leaves a remainder in each block. A fifth, 25 of 128, is less
# than two vectors of 16 lanes.
_SETS: _Sets = (2, 1), (5, 0)
# A sixteenth of the typical size gives a few tiles. The second size is 1, the most frequent small
# size.
_SMALL: _Sets = (16, 0), (TYPICAL, 0)
# The number of sets in a table that have smaller sizes than the typical set; they come first.
FALLING = len(_SETS) + len(_SMALL)
# Factors of larger sizes, at which results no longer fit a cache.
_LARGER = (2, 4)


def other_sizes(symbols: Iterable[Var]) -> tuple[Substitution, ...]:
    """Returns the further sets of sizes at which schedules are priced, each as a substitution.

    A substitution replaces symbols by equal symbols with other typical values. A symbol with a
    typical size from the user keeps it.
    """
    return tuple(sizes for sizes in _smaller(symbols, _SETS) if sizes)


def table_sizes(symbols: Iterable[Var]) -> tuple[Substitution, ...]:
    """Returns the further sets of sizes in a manifest's table of times, each as a substitution.

    The number of sets is the same for all symbols.
    """
    free = [v for v in symbols if v.extent is None]
    grown = ({v: _grown(v, times) for v in free} for times in _LARGER)
    return (*_smaller(free, (*_SETS, *_SMALL)), *grown)


def _smaller(symbols: Iterable[Var], sets: _Sets) -> list[Substitution]:
    free = [v for v in symbols if v.extent is None and v.typical is None]
    return [{v: _sized(v, part, less) for v in free} for part, less in sets]


def _sized(var: Var, part: int, less: int) -> Index:
    value = (typical_value(var) // part - less) // var.divisor * var.divisor
    smallest = -(-max(var.lo, 1) // var.divisor) * var.divisor
    return symbol(var.name, var.lo, var.hi, var.divisor, max(value, smallest))


def _grown(var: Var, times: int) -> Index:
    value = typical_value(var) * times
    at_most = value if var.hi is None else min(value, var.hi)
    size = max(at_most // var.divisor * var.divisor, typical_value(var))
    return symbol(var.name, var.lo, var.hi, var.divisor, size)


def together(times: Iterable[Times]) -> Times:
    """Returns the sum of all `times`, at each set of sizes."""
    return tuple(sum(part, NO_TIME) for part in _at_all(*times)) or (NO_TIME,)


def mean_share(times: Times, base: Times) -> Seconds:
    """Returns base[0] * mean(times[n] / base[n]) over all sets of sizes n.

    Each set of sizes has the same weight, so the choice of the lowest mean is not bad at any set.
    """
    if not saves(NO_TIME, base[0]):
        return times[0]
    return base[0] * fmean(number(time) / number(part) for time, part in _at_all(times, base))


def _at_all(*times: Times) -> Iterator[Times]:
    """Yields, for each set of sizes, the seconds of each of `times`.

    If one of `times` has only one number, this number holds for every set of sizes.
    """
    sets = max(map(len, times), default=1)
    return zip_equal(*(t * sets if len(t) == 1 else t for t in times))
