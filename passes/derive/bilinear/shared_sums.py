"""Computes linear maps in fewer operations, as sums that share terms.

    y0 = x1 + x2 + 4*x3        s = x1 + x2      y0 = s + 4*x3
    y1 = 2*x1 + 2*x2 - x3                       y1 = 2*s - x3

First, each pair of terms that several sums contain, up to a common factor, becomes a shared value.
The most frequent pair comes first.  Then a shared value replaces a term if fewer distinct factors
remain: with s = x4 - x2, the sum 4*x0 - 5*x2 + x4 becomes 4*(x0 - x2) + s.  Here the factor -5 was
split into -4 and -1.  The parts of a factor have its sign, so no new cancellation arises.  The
error bound of the original sums still holds, with `roundings` roundings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations
from math import gcd
from typing import Generic, TypeAlias, TypeVar

from tcc.frozen import frozen
from tcc.passes.derive.bilinear.algorithms import Matrix
from tcc.zipped import zip_equal

_T = TypeVar("_T")
# A sum of multiples of values: maps the number of a value to its factor.
Sum: TypeAlias = Mapping[int, int]
# Two terms, each a pair (number of a value, factor). The factors are coprime, and the first is
# positive.
_Pair: TypeAlias = tuple[tuple[int, int], tuple[int, int]]


@frozen
class Arithmetic(Generic[_T]):
    """Functions that add values, subtract them, and multiply them by an integer."""

    add: Callable[[_T, _T], _T]
    sub: Callable[[_T, _T], _T]
    mul: Callable[[int, _T], _T]


@frozen
class SharedSums:
    """A linear map of `inputs` values.

    Values are numbered: first the inputs, then the sums in `shared`, each of which may be a term of
    later sums.  `results` are sums of values.
    """

    inputs: int
    shared: tuple[Sum, ...]
    results: tuple[Sum, ...]

    def of(self, values: Sequence[_T], by: Arithmetic[_T]) -> list[_T]:
        """Returns the results of the map for the inputs `values`, computed with the functions
        `by`."""
        terms = list(values)
        for row in self.shared:
            terms.append(_evaluated(row, terms, by))
        return [_evaluated(row, terms, by) for row in self.results]

    @property
    def roundings(self) -> int:
        """The largest number of roundings between an input and a result.

        Multiplications by powers of two are exact and do not count.
        """

        def deeper(a: int, b: int) -> int:
            return max(a, b) + 1

        by = Arithmetic(deeper, deeper, lambda n, a: a + bool(abs(n) & (abs(n) - 1)))
        return max(self.of([0] * self.inputs, by))

    @property
    def operations(self) -> Counter[str]:
        """The numbers of operations: "+" counts additions and subtractions, "*" multiplications.

        Equal operations count once.
        """
        kind_of: dict[Hashable, str] = {}

        def operation(sign: str, *operands: Hashable) -> Hashable:
            kind_of[sign, operands] = "*" if sign == "*" else "+"
            return sign, operands

        self.of(range(self.inputs), Arithmetic(*(partial(operation, sign) for sign in "+-*")))
        return Counter(kind_of.values())


@lru_cache(64)
def shared_sums(matrix: Matrix) -> SharedSums:
    """Returns the linear map of a matrix of integers, as sums that share terms.

    No row of the matrix is all zero.
    """
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
                unpaired = {k: c for k, c in row.items() if k not in (i, j)}
                rows[n] = {**unpaired, number: row[i] // (sign * a)}
    return SharedSums(inputs, tuple(shared), tuple(_fewer_factors(r, shared, inputs) for r in rows))


def _most_frequent(rows: Sequence[Sum]) -> _Pair | None:
    """Returns the pair of terms that most rows contain; None if no pair is in two rows.

    Among equally frequent pairs, it is the first in the order of tuples.
    """
    counts = Counter(_pair(row, i, j) for row in rows for i, j in combinations(sorted(row), 2))
    highest = max(counts.values(), default=0)
    return min(p for p, count in counts.items() if count == highest) if highest > 1 else None


def _pair(row: Sum, i: int, j: int) -> _Pair:
    by = gcd(row[i], row[j])
    by = by if row[i] > 0 else -by
    return (i, row[i] // by), (j, row[j] // by)


def _has(row: Sum, pair: _Pair) -> bool:
    (i, _), (j, _) = pair
    return i in row and j in row and _pair(row, i, j) == pair


def _fewer_factors(row: Sum, shared: Sequence[Sum], inputs: int) -> Sum:
    """Returns `row` with a shared value in place of one term and a part of another term.

    Returns `row` itself if no shared value leaves fewer distinct factors.
    """
    best = row
    for number, pair in enumerate(shared, inputs):
        for replaced_term, partial_term in (tuple(pair), tuple(pair)[::-1]):
            if (
                replaced_term not in row
                or partial_term not in row
                or row[replaced_term] % pair[replaced_term]
            ):
                continue
            times = row[replaced_term] // pair[replaced_term]
            remainder = row[partial_term] - times * pair[partial_term]
            if (
                number in row
                or remainder * row[partial_term] <= 0
                or abs(remainder) >= abs(row[partial_term])
            ):
                continue
            other_terms = {n: c for n, c in row.items() if n not in (replaced_term, partial_term)}
            changed = {**other_terms, partial_term: remainder, number: times}
            best = min(best, changed, key=_factors)
    return best


def _factors(row: Sum) -> int:
    return len({abs(c) for c in row.values()} - {1})


def _evaluated(row: Sum, values: Sequence[_T], by: Arithmetic[_T]) -> _T:
    """Returns the value of a sum.

    Values with equal factors are added before the multiplication by the factor.
    """
    factors = sorted({abs(c) for c in row.values()})
    groups = [{n: c // factor for n, c in row.items() if abs(c) == factor} for factor in factors]
    parts = [_signed([(values[n], c) for n, c in group.items()], by) for group in groups]
    scaled = [
        (part if factor == 1 else by.mul(factor, part), sign)
        for factor, (part, sign) in zip_equal(factors, parts)
    ]
    result, sign = _signed(scaled, by)
    return result if sign > 0 else by.mul(-1, result)


def _signed(terms: Sequence[tuple[_T, int]], by: Arithmetic[_T]) -> tuple[_T, int]:
    """Returns (result, sign), where `sign * result` is the sum of the terms (value, 1 or -1).

    `sign` is -1 if all terms have -1, otherwise 1.
    """
    sign = max(s for _, s in terms)
    (result, _), *further = sorted(terms, key=lambda term: -sign * term[1])
    for value, term_sign in further:
        result = by.add(result, value) if term_sign == sign else by.sub(result, value)
    return result, sign
