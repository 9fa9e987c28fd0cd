"""Proofs about index expressions at every point of their iterators.

`bounds` of `tcc.ir.index` knows integers only.  Here a limit may be symbolic: an iterator over `n`
is at most `n - 1`, a remainder at most its divisor less one.  True is a proof; False says only that
no proof was found.  A proof splits cases at minima and maxima, and each split may double the cases,
so their number is limited.  The run checks what is not proved.
"""

from collections.abc import Iterator
from functools import lru_cache

from tcc.ir.index import (
    Extremum,
    Index,
    IndexLike,
    as_index,
    const,
    nonnegative,
    of_atom,
    sole_atom,
)

_MOST_CASES = 256  # a proof gives up after this many cases; real models need some dozens


@lru_cache(1 << 14)
def inside(index: Index, extent: IndexLike) -> bool:
    """True if `0 <= index < extent` is proved wherever the iterators of `index` have a value."""
    return at_most(const(0), index) and at_most(index, as_index(extent) - 1)


@lru_cache(1 << 14)
def at_most(a: Index, b: Index) -> bool:
    """True if `a <= b` is proved wherever the iterators of both have a value."""
    return _proved(a, b, iter(range(_MOST_CASES)))


def _proved(a: Index, b: Index, cases: Iterator[int]) -> bool:
    """Proves `a <= b` with at most the remaining `cases`."""
    if next(cases, None) is None:
        return False
    if nonnegative(b - a):
        return True
    split = _split_side(a, b) or _split_sum(b - a)
    if split is None:
        return False
    every, pairs = split
    return (all if every else any)(_proved(x, y, cases) for x, y in pairs)


_Split = tuple[bool, tuple[tuple[Index, Index], ...]]


def _split_side(a: Index, b: Index) -> _Split | None:
    """Splits `a <= b` at an extremum on one side; None if neither side is an extremum.

    Returns True if all parts are needed, or False if one is enough, and the parts. `max(x, y) <= b`
    needs both parts. `min(x, y) <= b` follows from either part, or from their mean `x + y <= 2*b +
    1`. For an extremum on the right, min and max change roles.
    """
    extremum_of_a, extremum_of_b = sole_atom(a), sole_atom(b)
    if isinstance(extremum_of_a, Extremum):
        x, y, edge = extremum_of_a.a, extremum_of_a.b, b - a.const
        pairs = (x, edge), (y, edge), (x + y, 2 * edge + 1)
        every = extremum_of_a.which == "max"
    elif isinstance(extremum_of_b, Extremum):
        x, y, edge = extremum_of_b.a, extremum_of_b.b, a - b.const
        pairs = (edge, x), (edge, y), (2 * edge - 1, x + y)
        every = extremum_of_b.which == "min"
    else:
        return None
    return every, pairs[:2] if every else pairs


def _split_sum(index: Index) -> _Split | None:
    """Splits `0 <= index` at an extremum in the sum; returns the same as `_split_side`.

    `0 <= 3*min(x, y) + rest` needs both parts. `0 <= 3*max(x, y) + rest` follows from either part,
    or from their mean. For a negative factor, min and max change roles.
    """
    if len(index.terms) < 2 and all(c == 1 for _, c in index.terms):
        return None
    for monomial, coeff in index.terms:
        atom = monomial[0]
        if len(monomial) == 1 and isinstance(atom, Extremum):
            other_terms = index - coeff * of_atom(atom)
            every = (atom.which == "min") == (coeff > 0)
            pairs = tuple((const(0), coeff * part + other_terms) for part in (atom.a, atom.b))
            mean = const(-1), coeff * (atom.a + atom.b) + 2 * other_terms
            return every, pairs if every else (*pairs, mean)
    return None
