"""Expressions that sort updates by their positions and find where each position's updates begin.

    place    2 0 2 1        item = place * 4 + number    8 1 10 7
    sorted   1 7 8 10       numbers 1 3 0 2              first of place 0, 1, 2, end: 0 1 2 4

Pairs of sorted runs of items are merged until one run is left. An element of a merged run finds by
bisection how many elements of the first run precede it (the merge path of Green, Odeh and Birk,
2014). Each expression reads n log n elements for n items and results.
"""

from collections.abc import Callable

from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar, apply, index_value, literal
from tcc.ir.index import Index, bounds
from tcc.ir.types import I64, TensorType
from tcc.ops.formula import choose, fn
from tcc.ops.operands import clamped, guard

# More items than this are not sorted along an axis of symbolic size.
MOST = 1 << 31


def most(size: Index) -> int:
    """Returns the largest possible value of a size, but at most 2**31."""
    high = bounds(size)[1]
    return MOST if high is None else min(high, MOST)


def steps(size: int) -> int:
    """Returns how many bisections leave one of `size + 1` candidates."""
    return size.bit_length()


def items_of(places: TensorType) -> Expr:
    """Returns the expression of the items, i64[*lines, count + 1].

    An item orders the updates by their position, then by their number. The last element of each
    line is the length of its sorted runs (1 at first), so that all levels of merging share one
    kernel.
    """
    b = ExprBuilder(places)
    *lines, count = places.shape
    *line, number = b.iters(*lines, count + 1)
    order = index_value(number, I64)
    item = b.read(0, *line, number, fill=0) * count + order
    return b.finish((*line, number), choose(order < count, item, 1))


def merged_runs(items: TensorType, halvings: int) -> Expr:
    """Returns the expression that merges each pair of neighbouring sorted runs of `items`."""
    b = ExprBuilder(items)
    *line, number = b.point(items)
    count = items.shape[-1] - 1
    run_length = b.read(0, *line, count)

    def read(place: Scalar) -> Scalar:
        at, binding = b.position(clamped(place, count), count)
        return b.read(0, *line, at, fill=guard(count), indirect=(binding,))

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
    """Returns the first position in [low, high] for which `before` is false; `high` if there is
    none."""
    for _ in range(halvings):
        half = apply("shift_right", low + high, literal(1, I64))
        open_, passed = low < high, before(half)
        low, high = (
            choose(open_ & passed, half + 1, low),
            choose(open_ & apply("not", passed), half, high),
        )
    return low


def first_items(items: TensorType, rows: Index) -> Expr:
    """Returns the expression of the number of items that precede each position's items.

    The last element belongs to the position after the last row: the number of all items.
    """
    b = ExprBuilder(items)
    lines, count = items.shape[:-1], items.shape[-1] - 1
    *line, row = b.iters(*lines, rows + 1)
    bound = index_value(row, I64) * count

    def before(half: Scalar) -> Scalar:
        at, binding = b.position(clamped(half, count), count)
        return b.read(0, *line, at, fill=guard(count), indirect=(binding,)) < bound

    zero, end = literal(0, I64), index_value(count, I64)
    return b.finish((*line, row), bisected(zero, end, steps(most(count)), before))
