"""Expressions that sort the updates of a scatter by the position that they update.

An item is an integer that holds an update's position and the update's number.  For example, four
updates (numbers 0 to 3) of the positions 2 0 2 1:

    items     position * 4 + number                     8 1 10 7
    sorted    in ascending order; item % 4 is a number  1 7 8 10, numbers 1 3 0 2
    first     where the items of position n begin       0 1 2 4 for n = 0, 1, 2 and the end

Neighbouring sorted runs of items are merged until a single run is left.  For each element of a
merged run, a bisection finds how many elements of the first run precede it (the merge path of
Green, Odeh and Birk, 2014).  Each expression reads O(n log n) elements for n items and results.
"""

from collections.abc import Callable

from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, apply, index_value, literal
from tcc.ir.index import Index, bounds
from tcc.ir.types import I64, TensorType
from tcc.ops.formula import choose, fn
from tcc.ops.operands import clamped, guard

# The largest number of items that are sorted along an axis of symbolic size.
MOST = 1 << 31


def most(size: Index) -> int:
    """Returns the largest possible value of a size, but at most 2**31."""
    high = bounds(size)[1]
    return MOST if high is None else min(high, MOST)


def steps(size: int) -> int:
    """Returns the number of bisections that leave a single one of `size + 1` candidates."""
    return size.bit_length()


def items_of(places: TensorType) -> Expr:
    """Returns the expression of the items of updates at the positions `places`, [..., count].

    Its result is i64[..., count + 1]: item[n] = places[n] * count + n for n < count. The last
    element, item[count], is the length of the sorted runs, 1 at first. The length is data, so all
    levels of merging can use one kernel. Updates of equal positions are sorted by their numbers n.
    """
    b = ExprBuilder(places)
    *lines, count = places.shape
    *line, number = b.iters(*lines, count + 1)
    order = index_value(number, I64)
    item = b.read(0, *line, number, fill=0) * count + order
    return b.finish((*line, number), choose(order < count, item, 1))


def merged_runs(items: TensorType, halvings: int) -> Expr:
    """Returns the expression that merges each pair of neighbouring sorted runs of `items`.

    Runs are twice as long in the result. `halvings` is the number of bisection steps, which must
    suffice for the longest run.
    """
    b = ExprBuilder(items)
    *line, number = b.point(items)
    count = items.shape[-1] - 1
    run_length = b.read(0, *line, count)

    def read(place: Scalar) -> Scalar:
        at = b.position(clamped(place, count), count)
        return b.read(0, *line, at, fill=guard(count))

    here = index_value(number, I64)
    within = apply("bit_and", here, run_length * 2 - 1)
    start = here - within
    middle = start + run_length
    first = fn("min", run_length, fn("sub", index_value(count, I64), start))
    second = fn("max", fn("min", run_length, fn("sub", index_value(count, I64), middle)), 0)

    def before(half: Scalar) -> Scalar:
        return apply("lt", read(start + half), read(middle + within - half - 1))

    low = bisected(fn("max", within - second, 0), fn("min", within, first), halvings, before)
    mine, other = read(start + low), read(middle + within - low)
    from_first = (low < first) & (apply("ge", within - low, second) | (mine < other))
    return b.finish(
        (*line, number), choose(here < count, choose(from_first, mine, other), run_length * 2)
    )


def bisected(
    low: Scalar, high: Scalar, halvings: int, before: Callable[[Scalar], Scalar]
) -> Scalar:
    """Returns the first position in [low, high) for which `before` is false, else `high`.

    `before` must be true up to some position and false after it. `halvings` is the number of
    bisection steps.
    """
    for _ in range(halvings):
        half = apply("shift_right", low + high, literal(1, I64))
        open_, passed = low < high, before(half)
        low, high = (
            choose(open_ & passed, half + 1, low),
            choose(open_ & apply("not", passed), half, high),
        )
    return low


def first_items(items: TensorType, rows: Index) -> Expr:
    """Returns the expression of where the items of each position begin in the sorted `items`.

    Positions are below `rows`. The result is i64[..., rows + 1]; its last element is the number of
    items.
    """
    b = ExprBuilder(items)
    lines, count = items.shape[:-1], items.shape[-1] - 1
    *line, row = b.iters(*lines, rows + 1)
    bound = index_value(row, I64) * count

    def before(half: Scalar) -> Scalar:
        at = b.position(clamped(half, count), count)
        return b.read(0, *line, at, fill=guard(count)) < bound

    zero, end = literal(0, I64), index_value(count, I64)
    return b.finish((*line, row), bisected(zero, end, steps(most(count)), before))
