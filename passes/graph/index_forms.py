"""Finds a formula that computes an array's elements from their indices.

    [0, 0, 0, 1, 2, 3, 3]                    max(min(i - 2, 3), 0)
    [[0, 2, 1, 3], [4, 6, 5, 7]]             4*i + 2*(j % 2) + j // 2
    [[T, F, F], [T, T, F], [T, T, T]]        j < i + 1

For integers, three forms are tried.  The first is a sum of multiples of digits, such as
2*(j % 2) + j // 2.  A digit is the quotient or remainder of an axis's index by a number.  The
second is min(max(sum, low), high), with the least and the largest element as `low` and `high`.  The
third is low + (sum - low) % (high + 1 - low).  For bools, the form is a condition on the index of
an axis, start <= j < stop, where start and stop are numbers or have one of these three forms.

The differences between neighbours give candidates.  Each candidate is compared with all elements,
so the result is exact.  The work is linear in the number of elements, apart from sorting the
differences.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial, reduce
from itertools import product
from math import gcd
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr.comparisons import holds_all
from tcc.ir.expr.scalar import Scalar, apply, index_value
from tcc.ir.index import Index, const, evaluate, maximum, minimum, var_of
from tcc.ir.index.compare import ends
from tcc.ir.op import Array
from tcc.ir.types import I32, I64
from tcc.zipped import zip_equal

# The number of elements that are compared at once.
_PIECE = 1 << 20


class Ends(Enum):
    """How an index form continues where its sum is outside of the array's range of values."""

    OPEN = "goes on"
    CLIPPED = "stays there"
    CIRCULAR = "begins again at the other end"


@frozen
class IndexForm:
    """A form of an index: the sum `plain` of multiples of digits, limited to `low` to `high`.

    `ends` says which index replaces a sum outside of these limits.
    """

    plain: Index
    ends: Ends
    low: int
    high: int

    def at(self, plain: Index) -> Index:
        """Returns the index that the form gives if its sum has the value `plain`."""
        match self.ends:
            case Ends.OPEN:
                return plain
            case Ends.CLIPPED:
                return maximum(minimum(plain, self.high), self.low)
            case Ends.CIRCULAR:
                return (plain - self.low) % (self.high - self.low + 1) + self.low

    @property
    def index(self) -> Index:
        """The index as a function of the iterators."""
        return self.at(self.plain)


def index_form(values: Array, at: Sequence[Index]) -> IndexForm | None:
    """Returns the form of an array of integers; None if the search finds none.

    `at` has an iterator for each axis of the array.
    """
    if not values.size:
        return None
    low, high = int(values.min()), int(values.max())
    if low == high:
        return IndexForm(const(low), Ends.OPEN, low, high)
    plain = _sum_of_digits(values, at, low, high)
    forms = (IndexForm(plain, ends, low, high) for ends in Ends)
    return next((f for f in forms if _gives(f.index, values, at)), None)


def condition_form(mask: Array, at: Sequence[Index]) -> Scalar | None:
    """Returns a condition that computes the bools `mask`, with the fewest comparisons of indices.

    `at` has an iterator for each axis of the mask.  Returns None if the search finds no condition,
    or if all values are equal.
    """
    varying = [n for n in range(mask.ndim) if not bool((mask == np.take(mask, [0], n)).all())]
    small = mask[tuple(slice(None) if n in varying else 0 for n in range(mask.ndim))]
    along = [at[n] for n in varying]
    for axis, value in product(reversed(range(len(varying))), (True, False)):
        other_iterators = [index for n, index in enumerate(along) if n != axis]
        intervals = _intervals(np.moveaxis(small, axis, -1) == value, other_iterators)
        edges = (_edges(along[axis], *interval, small.shape[axis]) for interval in intervals)
        exact = [edge_pair for edge_pair in edges if _holds(edge_pair, small == value, along)]
        if exact:
            tests = [_test(edge, value) for edge in min(exact, key=len)]
            return reduce(partial(apply, "and" if value else "or"), tests)
    return None


# ---- integers -----------------------------------------------------------------------------------


def _gives(index: Index, values: Array, at: Sequence[Index]) -> bool:
    pieces = _pieces(values, at)
    return all(bool(np.all(evaluate(index, grid) == part)) for part, grid in pieces)


def _pieces(values: Array, at: Sequence[Index]) -> Iterator[tuple[Array, dict[str, Any]]]:
    """Yields parts of an array along its first axis, so that computations take little memory.

    With each part, yields the values of the iterators, by name, as arrays that broadcast to the
    part.
    """
    rows = max(1, _PIECE * len(values) // max(1, values.size))
    for first in range(0, len(values), rows):
        part = values[first : first + rows]
        grid: dict[str, Any] = {}
        places: Array
        for axis, (index, places) in enumerate(zip_equal(at, np.indices(part.shape, sparse=True))):
            var = var_of(index)
            assert var is not None
            grid[var.name] = places + first if axis == 0 else places
        yield part, grid


def _sum_of_digits(values: Array, at: Sequence[Index], low: int, high: int) -> Index:
    """Returns a sum of multiples of digits that fits most elements of an array.

    The most frequent differences between neighbours decide the multiples.  Only values strictly
    between `low` and `high` count.  The constant of the sum is chosen so that it equals one of the
    elements.
    """
    index_sum = const(0)
    for axis, index in enumerate(at):
        for weight, radix, step in _digits(np.moveaxis(values, axis, -1), low, high):
            digit = index // weight
            index_sum = index_sum + step * (digit % radix if radix else digit)
    inside = np.flatnonzero((values > low) & (values < high))
    place = np.unravel_index(int(inside[0]) if inside.size else 0, values.shape)
    grid = {var.name: int(n) for index, n in zip_equal(at, place) if (var := var_of(index))}
    return index_sum + (int(values[place]) - int(evaluate(index_sum, grid)))


def _digits(lines: Array, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Yields (weight, radix, step) for each digit of the index along the last axis, lowest first.

    A digit is index // weight % radix; the last digit has radix 0, which means no remainder.
    `step` is the difference of two elements whose indices differ by one in this digit.
    """
    weight = 1
    while lines.shape[-1] > 1:
        steps = np.diff(lines, axis=-1)
        inside = (lines > low) & (lines < high)
        plain = inside[..., 1:] & inside[..., :-1]
        if not plain.any():
            plain = np.ones(plain.shape, np.bool_)
        kinds, counts = np.unique(steps[plain], return_counts=True)
        # A digit of radix 2 alternates, so about half of the differences inside it are equal.
        frequent = [int(kinds[n]) for n in np.argsort(-counts, kind="stable")[:2]]
        radices = [_radix(plain & (steps != step)) for step in frequent]
        step, radix = next(
            (pair for pair in zip_equal(frequent, radices) if pair[1] != 1),
            (frequent[0], 0),
        )
        yield weight, radix, step
        if not radix:
            return
        lines, weight = lines[..., ::radix], weight * radix


def _radix(wraps: Array) -> int:
    """Returns the largest n for which i % n is n - 1 at every index i where `wraps` is true.

    The digit i % n starts again at 0 after such an index.  `wraps`[..., i] says that element i + 1
    minus element i along the last axis is not the digit's step.  Returns 0 if `wraps` has no true
    element.
    """
    (places,) = np.nonzero(wraps.reshape(-1, wraps.shape[-1]).any(axis=0))
    return gcd(*(int(n) + 1 for n in places))


# ---- bools --------------------------------------------------------------------------------------


@frozen
class _Edge:
    """An end of an interval: the condition `along` >= `place`, or `along` < `place` if `upper`."""

    along: Index
    place: Index
    upper: bool


def _intervals(inside: Array, at: Sequence[Index]) -> Iterator[tuple[Index, Index]]:
    """Yields candidates for the start and the end of the interval of each line along the last axis.

    Yields nothing if some line has several intervals.  A line without true elements has an empty
    interval, which may be placed at the start or at the end of the line.  All empty intervals
    before the first nonempty interval are placed at the same end, and so are all empty intervals
    after it.
    """
    size = inside.shape[-1]
    count = inside.sum(axis=-1)
    start, stop = inside.argmax(axis=-1), size - inside[..., ::-1].argmax(axis=-1)
    some = count > 0
    if not some.any() or not (stop - start == count)[some].all():
        return
    early = np.arange(some.size).reshape(some.shape) < some.argmax()
    for before, after in ((0, 0),) if some.all() else product((0, size), repeat=2):
        ends = (np.where(some, end, np.where(early, before, after)) for end in (start, stop))
        first, last = (_sum_of_digits(end, at, 0, size) for end in ends)
        yield first, last


def _edges(index: Index, start: Index, stop: Index, size: int) -> tuple[_Edge, ...]:
    """Returns the edges (ends) of the interval `start <= index < stop`, for 0 <= index < `size`.

    An edge that excludes no index is left out: a start of at most 0, or a stop of at least `size`.
    """
    edges = []
    if ends(start)[1] > 0:
        edges.append(_Edge(index, start, False))
    if ends(stop)[0] < size:
        edges.append(_Edge(index, stop, True))
    return tuple(edges)


def _test(edge: _Edge, value: bool) -> Scalar:
    """Returns the condition that the iterator is inside of an edge; outside of it if `value` is
    False."""
    dtype = I32 if holds_all(I32, edge.along) and holds_all(I32, edge.place) else I64
    function = "lt" if edge.upper == value else "ge"
    return apply(function, index_value(edge.along, dtype), index_value(edge.place, dtype))


def _holds(edges: Sequence[_Edge], inside: Array, at: Sequence[Index]) -> bool:
    """Returns True if `inside` is true exactly for the elements within all `edges`.

    Returns False if there are no edges.
    """
    return bool(edges) and all(_bounds(edges, *piece) for piece in _pieces(inside, at))


def _bounds(edges: Sequence[_Edge], inside: Array, grid: Mapping[str, Any]) -> bool:
    within = np.ones(inside.shape, np.bool_)
    for edge in edges:
        beyond = evaluate(edge.along - edge.place, grid)
        within = within & (beyond < 0 if edge.upper else beyond >= 0)
    return bool((within == inside).all())
