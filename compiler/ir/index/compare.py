"""Comparisons of formulas, as far as bounds decide them, and quotients without a rest."""

import math

from tcc.ir.index import Index, bounds, const, floordiv, of_atom


def ends(index: Index) -> tuple[float, float]:
    """The least and the largest value that `index` may have."""
    lo, hi = bounds(index)
    return -math.inf if lo is None else lo, math.inf if hi is None else hi


def sign(index: Index) -> int | None:
    """1, 0 or -1 where `index` is known to be positive, zero or negative; else None."""
    lo, hi = ends(index)
    if lo > 0 or hi < 0:
        return 1 if lo > 0 else -1
    return 0 if lo == hi == 0 else None


def is_less(a: Index, b: Index) -> bool | None:
    """True or False as `a < b` holds; None where it depends on the symbols' values."""
    lo, hi = ends(a - b)
    return True if hi < 0 else False if lo >= 0 else None


def is_equal(a: Index, b: Index) -> bool | None:
    """True or False as `a == b` holds; None where it depends on the symbols' values."""
    if a is b:
        return True
    lo, hi = ends(a - b)
    return False if lo > 0 or hi < 0 else None


def is_unequal(a: Index, b: Index) -> bool | None:
    """True or False as `a != b` holds; None where it depends on the symbols' values."""
    same = is_equal(a, b)
    return None if same is None else not same


def exact_quotient(num: Index, den: Index) -> Index:
    """`num // den` where no rest is left; equal factors cancel even if they may be 0."""
    if den.const or len(den.terms) != 1:
        return floordiv(num, den)
    ((factors, by),) = den.terms
    total = const(0)
    for monomial, coeff in num.terms:
        factors_left = list(monomial)
        for atom in factors:
            if atom not in factors_left or coeff % by:
                return floordiv(num, den)
            factors_left.remove(atom)
        product = const(coeff // by)
        for atom in factors_left:
            product = product * of_atom(atom)
        total = total + product
    return floordiv(num, den) if num.const else total
