"""Proofs about index expressions at every point of their iterators.

`bounds` of `tcc.ir.index` knows integers only.  Here a limit may be symbolic: an iterator over `n`
is at most `n - 1`, a remainder at most its divisor less one.  Every answer True is a proof; False
says only that none was found.  A proof splits cases at minima and maxima, which may double with
each, so there is a limit on cases: what is not proved is checked at run time.
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

_MOST_CASES = 256  # of one proof; those of real models have some dozens


@lru_cache(1 << 14)
def inside(index: Index, extent: IndexLike) -> bool:
    """Whether `0 <= index < extent` wherever the iterators of `index` have a value."""
    return at_most(const(0), index) and at_most(index, as_index(extent) - 1)


@lru_cache(1 << 14)
def at_most(a: Index, b: Index) -> bool:
    """Whether `a <= b` wherever the iterators of both have a value."""
    return _proved(a, b, iter(range(_MOST_CASES)))


def _proved(a: Index, b: Index, cases: Iterator[int]) -> bool:
    """As `at_most`, looking at no more `cases` than there are left."""
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
    """`max(x, y) <= b` is both; `min(x, y) <= b` follows from either, or from their mean; and the
    other way round with the extremum on the right."""
    left, right = sole_atom(a), sole_atom(b)
    if isinstance(left, Extremum):
        x, y, edge = left.a, left.b, b - a.const
        pairs = (x, edge), (y, edge), (x + y, 2 * edge + 1)
        every = left.which == "max"
    elif isinstance(right, Extremum):
        x, y, edge = right.a, right.b, a - b.const
        pairs = (edge, x), (edge, y), (2 * edge - 1, x + y)
        every = right.which == "min"
    else:
        return None
    return every, pairs[:2] if every else pairs


def _split_sum(index: Index) -> _Split | None:
    """`0 <= 3*min(x, y) + rest` is both, `0 <= 3*max(x, y) + rest` follows from either, or from
    their mean; the other way round where the factor is negative."""
    if len(index.terms) < 2 and all(c == 1 for _, c in index.terms):
        return None
    for monomial, coeff in index.terms:
        atom = monomial[0]
        if len(monomial) == 1 and isinstance(atom, Extremum):
            rest = index - coeff * of_atom(atom)
            every = (atom.which == "min") == (coeff > 0)
            pairs = tuple((const(0), coeff * part + rest) for part in (atom.a, atom.b))
            mean = const(-1), coeff * (atom.a + atom.b) + 2 * rest
            return every, pairs if every else (*pairs, mean)
    return None
