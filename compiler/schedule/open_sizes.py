"""Sizes at which kernels of open sizes are priced: typical ones, smaller odd ones and small ones.

b in 1.., typical 128    ->    128, 63, 25    and in tables of times 8, 1, 256 and 512
"""

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import TypeAlias

from tcc.ir.index import Index, Substitution, Var, symbol
from tcc.schedule.nest import TYPICAL, typical_value

# Seconds at each set of sizes, the typical one first; one number where no size is open.
Times: TypeAlias = tuple[float, ...]
# Sets of sizes: by what a typical size is divided, and what is taken from that.
_Sets: TypeAlias = tuple[tuple[int, int], ...]

# Half of a typical size less one leaves a remainder of each block, a fifth is less than two vectors
# of four.
_SETS: _Sets = (2, 1), (5, 0)
# A few tiles, and one element, which is the most frequent of small sizes.
_SMALL: _Sets = (16, 0), (TYPICAL, 0)
# How many further sets of a table, the first ones, have sizes that fall.
FALLING = len(_SETS) + len(_SMALL)
# Of larger sizes, results no longer fit a cache.
_LARGER = (2, 4)


def other_sizes(symbols: Iterable[Var]) -> tuple[Substitution, ...]:
    """What replaces the symbols for each further set of sizes: the same with other typical values.

    A symbol whose typical size the user gives keeps it.
    """
    return tuple(each for each in _smaller(symbols, _SETS) if each)


def table_sizes(symbols: Iterable[Var]) -> tuple[Substitution, ...]:
    """What replaces the symbols for each further set of sizes of which a manifest has the time: as
    many sets for all symbols."""
    free = [v for v in symbols if v.extent is None]
    grown = ({v: _grown(v, times) for v in free} for times in _LARGER)
    return (*_smaller(free, (*_SETS, *_SMALL)), *grown)


def _smaller(symbols: Iterable[Var], sets: _Sets) -> list[Substitution]:
    free = [v for v in symbols if v.extent is None and v.typical is None]
    return [{v: _sized(v, part, less) for v in free} for part, less in sets]


def _sized(var: Var, part: int, less: int) -> Index:
    value = (typical_value(var) // part - less) // var.divisor * var.divisor
    least = -(-max(var.lo, 1) // var.divisor) * var.divisor
    return symbol(var.name, var.lo, var.hi, var.divisor, max(value, least))


def _grown(var: Var, times: int) -> Index:
    value = typical_value(var) * times
    at_most = value if var.hi is None else min(value, var.hi)
    size = max(at_most // var.divisor * var.divisor, typical_value(var))
    return symbol(var.name, var.lo, var.hi, var.divisor, size)


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
