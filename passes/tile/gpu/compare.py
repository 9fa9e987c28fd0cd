"""Rewrites comparisons of indices to take few registers and instructions on a GPU.

    i64(64*k + l1) <= i64(l0 + 64*p)      ->      i32(64*k - 64*p + l1) <= i32(l0)

Masks compare indices for every element of a block.  Two rewrites make this cheaper.

32 bits: an i32 takes one register, an i64 two.  i32 is used if the ranges of both sides prove that
it holds them and their difference.  Lanes beyond the end of a loop compare too; the ranges leave
room for them, because a block has at most 2**20 elements.

One side: a term that is equal in all lanes is moved to the left side.  There it is added to other
terms of this kind, which is one addition.  On the right side it would be added in every lane.
"""

from collections.abc import Callable, Collection
from functools import cache

from tcc.ir.expr.scalar import (
    COMPARISONS,
    Apply,
    Const,
    IndexValue,
    Scalar,
    apply,
    index_value,
    rebuild,
)
from tcc.ir.index import Index, Var, bounds, const, free_vars, substitute
from tcc.ir.types import I32, I64

# If an index is below this bound, the sum of the index and a block's size still fits 32 bits.
_MOST = 1 << 30


def in_few_bits(scalar: Scalar) -> Scalar:
    """Returns `scalar` with comparisons of indices in i32, where that gives the same results as
    i64."""

    def few(node: Apply, a: Index, b: Index) -> Scalar:
        if not (_fits(a) and _fits(b)):
            return node
        return apply(node.function, index_value(a, I32), index_value(b, I32))

    return _with_comparisons(scalar, few)


def on_one_side(scalar: Scalar, lanes: Collection[Var]) -> Scalar:
    """Returns `scalar` with i32 comparisons `a < b` rewritten as `a - c < b - c`.

    c is the sum of the terms of b that are equal in all lanes, so the right side keeps only terms
    that differ between lanes.  `lanes` are the variables that differ between lanes.  A comparison
    is changed only if both a and b contain some of these variables.
    """
    first = {v: const(0) for v in lanes}

    def one_sided(node: Apply, a: Index, b: Index) -> Scalar:
        if node.args[0].dtype is not I32:
            return node
        common = substitute(b, first)
        lane_part = b - common
        lane_vars = free_vars(lane_part)
        unchanged = (
            not lane_vars or not set(lane_vars) <= set(lanes) or not set(free_vars(a)) & set(lanes)
        )
        if unchanged or not free_vars(common) or not (_fits(a) and _fits(common)):
            return node
        return apply(node.function, index_value(a - common, I32), index_value(lane_part, I32))

    return _with_comparisons(scalar, one_sided)


def _with_comparisons(scalar: Scalar, of: Callable[[Apply, Index, Index], Scalar]) -> Scalar:
    """Returns `scalar` with `of(node, a, b)` in place of each comparison of indices a and b."""

    @cache  # without the cache, shared parts would double the work at each level
    def visit(node: Scalar) -> Scalar:
        node = rebuild(node, visit)
        if not isinstance(node, Apply) or node.function not in COMPARISONS:
            return node
        a, b = map(_index, node.args)
        return node if a is None or b is None else of(node, a, b)

    return visit(scalar)


def _index(scalar: Scalar) -> Index | None:
    """Returns the index whose value an integer scalar has; None for any other scalar."""
    match scalar:
        case IndexValue(index=index):
            return index
        case Const(value=value) if scalar.dtype in (I32, I64):
            return const(int(value))
        case _:
            return None


def _fits(index: Index) -> bool:
    low, high = bounds(index)
    return low is not None and high is not None and low > -_MOST and high < _MOST
