"""Proofs about index expressions at every point of their iterators.

`bounds` of `tcc.ir.index` returns integer bounds only.  Here a bound may be symbolic: an iterator
over `n` is at most `n - 1`, and a remainder at most its divisor minus 1.  The result True means
that the claim is proved, False that no proof was found; then the program checks the claim at run
time.  A proof splits into cases at minima and maxima.  Each split may double the number of cases,
so this number is limited.
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

_MOST_CASES = 256  # a proof fails after this many cases; real models need some dozens


@lru_cache(1 << 14)
def inside(index: Index, extent: IndexLike) -> bool:
    """True if `0 <= index < extent` is proved for all values of the iterators."""
    return at_most(const(0), index) and at_most(index, as_index(extent) - 1)


@lru_cache(1 << 14)
def at_most(a: Index, b: Index) -> bool:
    """True if `a <= b` is proved for all values of the iterators of both."""
    return _proved(a, b, iter(range(_MOST_CASES)))


def _proved(a: Index, b: Index, cases: Iterator[int]) -> bool:
    """True if `a <= b` is proved; takes an item of `cases` for each case, and fails if none is
    left."""
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
    """Splits `a <= b`, where one side is a minimum or maximum plus a constant, into inequalities.

    Returns (every, pairs): `a <= b` holds if all the inequalities `x <= y` of `pairs` hold, or, if
    `every` is False, if any of them holds. Returns None if neither side is an extremum.

    `max(x, y) <= b` needs both `x <= b` and `y <= b`. `min(x, y) <= b` follows from either of them,
    and also from `x + y <= 2*b + 1`. For an extremum on the right, min and max change roles.
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
    """Splits `0 <= index`, where a term of the sum is a minimum or maximum, into inequalities.

    Returns (every, pairs) or None, with the meaning that `_split_side` gives them.

    `0 <= 3*min(x, y) + z` needs both `0 <= 3*x + z` and `0 <= 3*y + z`. `0 <= 3*max(x, y) + z`
    follows from either of them, and also from `-1 <= 3*(x + y) + 2*z`. For a negative factor, min
    and max change roles.
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
