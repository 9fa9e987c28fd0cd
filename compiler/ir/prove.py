"""Proofs about index expressions at every point of their iterators.

`bounds` of `tcc.ir.index` knows integers only.  Here a limit may be symbolic: an iterator over `n`
is at most `n - 1`, a remainder at most its divisor less one.  Every answer True is a proof; False
says only that none was found.
"""

from __future__ import annotations

from tcc.ir.index import (
    Atom,
    Extremum,
    Index,
    IndexLike,
    Quotient,
    Remainder,
    Var,
    add,
    as_index,
    bounds,
    const,
    floordiv,
    maximum,
    minimum,
    mul,
    of_atom,
)


def inside(index: Index, extent: IndexLike) -> bool:
    """Whether `0 <= index < extent` wherever the iterators of `index` have a value."""
    return at_most(const(0), index) and at_most(index, as_index(extent) - 1)


def at_most(a: Index, b: Index) -> bool:
    """Whether `a <= b` wherever the iterators of both have a value."""
    low = bounds(b - a)[0]
    if low is not None and low >= 0:
        return True
    split = _split_left(a, b) or _split_right(a, b)
    if split is not None:
        every, pairs = split
        return (all if every else any)(at_most(x, y) for x, y in pairs)
    limit = _limit(b - a, up=False)
    low = None if limit is None else bounds(limit)[0]
    return low is not None and low >= 0


_Split = tuple[bool, tuple[tuple[Index, Index], ...]]


def _split_left(a: Index, b: Index) -> _Split | None:
    """`max(x, y) <= b` is both; `min(x, y) <= b` follows from either, or from their mean."""
    found = _extremum(a)
    if found is None:
        return None
    x, y, limit = found.a, found.b, b - a.const
    if found.which == "max":
        return True, ((x, limit), (y, limit))
    return False, ((x, limit), (y, limit), (x + y, 2 * limit + 1))


def _split_right(a: Index, b: Index) -> _Split | None:
    """`a <= min(x, y)` is both; `a <= max(x, y)` follows from either, or from their mean."""
    found = _extremum(b)
    if found is None:
        return None
    x, y, limit = found.a, found.b, a - b.const
    if found.which == "min":
        return True, ((limit, x), (limit, y))
    return False, ((limit, x), (limit, y), (2 * limit - 1, x + y))


def _extremum(index: Index) -> Extremum | None:
    if len(index.terms) != 1:
        return None
    ((monomial, coeff),) = index.terms
    atom = monomial[0]
    return atom if coeff == 1 and len(monomial) == 1 and isinstance(atom, Extremum) else None


def _limit(index: Index, up: bool) -> Index | None:
    """An expression of sizes alone that `index` never exceeds (`up`) or never falls below."""
    total = const(index.const)
    for monomial, coeff in index.terms:
        product = const(coeff)
        for atom in monomial:
            limit = _atom_limit(atom, up == (coeff > 0))
            # Limits of factors multiply only where no factor can be negative.
            if limit is None or (len(monomial) > 1 and not _nonnegative(atom, limit)):
                return None
            product = mul(product, limit)
        total = add(total, product)
    return total


def _nonnegative(atom: Atom, limit: Index) -> bool:
    if isinstance(atom, Var) and atom.extent is not None:
        return True  # an iterator that has a value is over at least one
    low, limit_low = bounds(of_atom(atom))[0], bounds(limit)[0]
    return low is not None and low >= 0 and limit_low is not None and limit_low >= 0


def _atom_limit(atom: Atom, up: bool) -> Index | None:
    match atom:
        case Var():
            if atom.extent is None:
                return of_atom(atom)
            return _limit(atom.extent - 1, True) if up else const(0)
        case Quotient():
            num = _limit(atom.num, up)
            fixed = _limit(atom.den, True)
            return None if num is None or fixed is not atom.den else floordiv(num, atom.den)
        case Remainder():
            if not up:
                return const(0)
            top = _limit(atom.den, True)
            return None if top is None else top - 1
        case Extremum():
            a, b = _limit(atom.a, up), _limit(atom.b, up)
            if a is None or b is None:
                return None
            return minimum(a, b) if atom.which == "min" else maximum(a, b)
