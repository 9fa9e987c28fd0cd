"""Compares indices by their bounds."""

import math

from tcc.ir.index import Index, bounds


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
