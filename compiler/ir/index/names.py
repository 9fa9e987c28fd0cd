"""Decides which formulas are so long that a new symbol should replace them in other formulas."""

from functools import lru_cache

from tcc.ir.index import Index, bounds, divisor_of, parts_of

# A formula of at most this many atoms is written out; a symbol replaces a longer formula.
_LONGEST = 64
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1  # the range of integers at run time


@lru_cache(1 << 16)
def weight(index: Index) -> int:
    """Returns the number of atoms in the text of `index`, counting repetitions."""
    all_atoms = (atom for monomial, _ in index.terms for atom in monomial)
    return sum(1 + sum(map(weight, parts_of(atom))) for atom in all_atoms)


def is_long(index: Index) -> bool:
    """True if `index` is so long that a symbol should replace it."""
    return weight(index) > _LONGEST


def facts_of(index: Index, typical: int) -> tuple[int, int, int, int]:
    """Returns (lowest, highest, typical, divisor) for a symbol that stands for `index`.

    `lowest` and `highest` are bounds of the formula's value. `typical` is clamped to these bounds.
    `divisor` divides every value.
    """
    lo, hi = bounds(index)
    lowest = _LEAST if lo is None else min(max(lo, _LEAST), _MOST - 1)
    highest = _MOST if hi is None else max(min(hi, _MOST), lowest + 1)
    return lowest, highest, min(max(lowest, typical), highest), divisor_of(index)
