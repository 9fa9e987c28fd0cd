"""Compares indices by their bounds, and divides indices exactly."""

import math

from tcc.ir.index import Index, bounds, const, floordiv, of_atom


def ends(index: Index) -> tuple[float, float]:
    """Returns bounds (lowest, highest) of the values of `index`; infinite where unknown."""
    lo, hi = bounds(index)
    return -math.inf if lo is None else lo, math.inf if hi is None else hi


def sign(index: Index) -> int | None:
    """Returns 1, 0 or -1 if `index` is known to be positive, zero or negative; else None."""
    lo, hi = ends(index)
    if lo > 0 or hi < 0:
        return 1 if lo > 0 else -1
    return 0 if lo == hi == 0 else None


def is_less(a: Index, b: Index) -> bool | None:
    """Returns whether `a < b`; None if the bounds do not decide it."""
    lo, hi = ends(a - b)
    return True if hi < 0 else False if lo >= 0 else None


def is_equal(a: Index, b: Index) -> bool | None:
    """Returns whether `a == b`; None if the bounds do not decide it."""
    if a is b:
        return True
    lo, hi = ends(a - b)
    return False if lo > 0 or hi < 0 else None


def is_unequal(a: Index, b: Index) -> bool | None:
    """Returns whether `a != b`; None if the bounds do not decide it."""
    equal = is_equal(a, b)
    return None if equal is None else not equal


def exact_quotient(num: Index, den: Index) -> Index:
    """Returns `num // den`, where the caller knows that the division leaves no remainder.

    Factors that `num` and `den` have in common cancel, even if they may be 0.
    """
    if den.const or len(den.terms) != 1:
        return floordiv(num, den)
    ((factors, by),) = den.terms
    quotient = const(0)
    for monomial, coeff in num.terms:
        factors_left = list(monomial)
        for atom in factors:
            if atom not in factors_left or coeff % by:
                return floordiv(num, den)
            factors_left.remove(atom)
        term = const(coeff // by)
        for atom in factors_left:
            term = term * of_atom(atom)
        quotient = quotient + term
    return floordiv(num, den) if num.const else quotient
