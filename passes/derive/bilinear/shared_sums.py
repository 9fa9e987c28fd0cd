"""Linear maps as sums that share terms.

    y0 = x1 + x2 + 4*x3        s = x1 + x2      y0 = s + 4*x3
    y1 = 2*x1 + 2*x2 - x3                       y1 = 2*s - x3

A pair of terms that several sums have, up to a factor, becomes a value of its own, the most
frequent pair first.  Then a term moves to a shared value where that leaves fewer factors: 4*x0 -
5*x2 + x4 is 4*(x0 - x2) + s with s = x4 - x2.  Either way a factor is only split into parts of its
own sign, so nothing cancels: errors are those of the plain sums, of `roundings` roundings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations
from math import gcd
from typing import Generic, TypeAlias, TypeVar

from tcc.passes.derive.bilinear.algorithms import Matrix
from tcc.record import record

_T = TypeVar("_T")
# Factors by the number of the value they multiply.
Sum: TypeAlias = Mapping[int, int]
# Two values with their factors, which have no common divisor, the first positive.
_Pair: TypeAlias = tuple[tuple[int, int], tuple[int, int]]


@record
class Arithmetic(Generic[_T]):
    """How values are added, subtracted, and multiplied by a whole number."""

    add: Callable[[_T, _T], _T]
    sub: Callable[[_T, _T], _T]
    mul: Callable[[int, _T], _T]


@record
class SharedSums:
    """A linear map: `shared` sums, numbered as values after the inputs, and the results."""

    inputs: int
    shared: tuple[Sum, ...]
    results: tuple[Sum, ...]

    def of(self, values: Sequence[_T], by: Arithmetic[_T]) -> list[_T]:
        """The results of `values`, one for each input."""
        known = list(values)
        for row in self.shared:
            known.append(_total(row, known, by))
        return [_total(row, known, by) for row in self.results]

    @property
    def roundings(self) -> int:
        """The most roundings between an input and a result; factors of powers of two are exact."""

        def deeper(a: int, b: int) -> int:
            return max(a, b) + 1

        by = Arithmetic(deeper, deeper, lambda n, a: a + bool(abs(n) & (abs(n) - 1)))
        return max(self.of([0] * self.inputs, by))

    @property
    def operations(self) -> Counter[str]:
        """Additions with subtractions, "+", and multiplications, "*"; equal ones count once."""
        seen: dict[Hashable, str] = {}

        def operation(sign: str, *operands: Hashable) -> Hashable:
            seen[sign, operands] = "*" if sign == "*" else "+"
            return sign, operands

        self.of(range(self.inputs), Arithmetic(*(partial(operation, sign) for sign in "+-*")))
        return Counter(seen.values())


@lru_cache(maxsize=64)
def shared_sums(matrix: Matrix) -> SharedSums:
    """The rows of a matrix of whole numbers, none of them zero, as sums that share terms."""
    rows: list[Sum] = [{n: int(c) for n, c in enumerate(row) if c} for row in matrix]
    inputs = len(matrix[0])
    shared: list[Sum] = []
    while (pair := _most_frequent(rows)) is not None:
        (i, a), (j, b) = pair
        sign = next(1 if row[i] > 0 else -1 for row in rows if _has(row, pair))
        number = inputs + len(shared)
        shared.append({i: sign * a, j: sign * b})
        for n, row in enumerate(rows):
            if _has(row, pair):
                rest = {k: c for k, c in row.items() if k not in (i, j)}
                rows[n] = {**rest, number: row[i] // (sign * a)}
    return SharedSums(inputs, tuple(shared), tuple(_fewer_factors(r, shared, inputs) for r in rows))


def _most_frequent(rows: Sequence[Sum]) -> _Pair | None:
    """The pair that most rows have, the first of equally many; None where each is in one row."""
    found = Counter(_pair(row, i, j) for row in rows for i, j in combinations(sorted(row), 2))
    most = max(found.values(), default=0)
    return min(p for p, count in found.items() if count == most) if most > 1 else None


def _pair(row: Sum, i: int, j: int) -> _Pair:
    by = gcd(row[i], row[j])
    by = by if row[i] > 0 else -by
    return (i, row[i] // by), (j, row[j] // by)


def _has(row: Sum, pair: _Pair) -> bool:
    (i, _), (j, _) = pair
    return i in row and j in row and _pair(row, i, j) == pair


def _fewer_factors(row: Sum, shared: Sequence[Sum], inputs: int) -> Sum:
    """`row` with a shared value for one term and a part of another, if factors get fewer."""
    best = row
    for number, pair in enumerate(shared, inputs):
        for moved, kept in (tuple(pair), tuple(pair)[::-1]):
            if moved not in row or kept not in row or row[moved] % pair[moved]:
                continue
            times = row[moved] // pair[moved]
            left = row[kept] - times * pair[kept]
            if number in row or left * row[kept] <= 0 or abs(left) >= abs(row[kept]):
                continue
            rest = {n: c for n, c in row.items() if n not in (moved, kept)}
            changed = {**rest, kept: left, number: times}
            best = min(best, changed, key=_factors)
    return best


def _factors(row: Sum) -> int:
    return len({abs(c) for c in row.values()} - {1})


def _total(row: Sum, known: Sequence[_T], by: Arithmetic[_T]) -> _T:
    """Terms of equal factors are added before they are multiplied."""
    factors = sorted({abs(c) for c in row.values()})
    groups = [{n: c // factor for n, c in row.items() if abs(c) == factor} for factor in factors]
    parts = [_signed([(known[n], c) for n, c in group.items()], by) for group in groups]
    scaled = [
        (part if factor == 1 else by.mul(factor, part), sign)
        for factor, (part, sign) in zip(factors, parts, strict=True)
    ]
    total, sign = _signed(scaled, by)
    return total if sign > 0 else by.mul(-1, total)


def _signed(terms: Sequence[tuple[_T, int]], by: Arithmetic[_T]) -> tuple[_T, int]:
    """The sum of terms with their signs, and its own sign: it is negative where all are."""
    sign = max(s for _, s in terms)
    (total, _), *others = sorted(terms, key=lambda term: -sign * term[1])
    for value, own in others:
        total = by.add(total, value) if own == sign else by.sub(total, value)
    return total, sign
