"""Symbols that stand for long formulas, so that formulas of formulas stay short."""

from functools import lru_cache

from tcc.ir.index import Index, bounds, divisor_of, parts_of

_LONGEST = 64  # atoms of a formula without a name
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1  # what a run computes with


@lru_cache(1 << 16)
def weight(index: Index) -> int:
    """How many atoms the text of `index` shows, each as often as it stands there."""
    shown = (atom for monomial, _ in index.terms for atom in monomial)
    return sum(1 + sum(map(weight, parts_of(atom))) for atom in shown)


def is_long(index: Index) -> bool:
    """True where `index` is so long that a symbol should stand for it."""
    return weight(index) > _LONGEST


def facts_of(index: Index, typical: int) -> tuple[int, int, int, int]:
    """Facts of a symbol that stands for `index`: its least and largest value, a typical
    one near `typical`, and a divisor."""
    lo, hi = bounds(index)
    least = _LEAST if lo is None else min(max(lo, _LEAST), _MOST - 1)
    most = _MOST if hi is None else max(min(hi, _MOST), least + 1)
    return least, most, min(max(least, typical), most), divisor_of(index)
