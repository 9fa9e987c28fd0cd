"""Comparisons of indices as a device makes them with the fewest instructions.

    i64(64*k + l1) <= i64(l0 + 64*p)      ->      i32(64*k - 64*p + l1) <= i32(l0)

Masks compare indices for every element of a block.  In 32 bits an integer is one register, if
ranges prove that it holds both sides and their difference; and what moves with loops is one number
for all lanes if it stands on one side, where compilers would widen a counter on each of two.
Lanes beyond the end of a loop compare too: a block is at most 2**20 elements, for which the ranges
leave room.
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

# Beyond this nothing is known to fit once a block has been added.
_MOST = 1 << 30


def in_few_bits(scalar: Scalar) -> Scalar:
    """`scalar` with its comparisons of indices in i32 where that gives what i64 does."""

    def few(node: Apply, a: Index, b: Index) -> Scalar:
        if not (_fits(a) and _fits(b)):
            return node
        return apply(node.function, index_value(a, I32), index_value(b, I32))

    return _with_comparisons(scalar, few)


def on_one_side(scalar: Scalar, lanes: Collection[Var]) -> Scalar:
    """`scalar` with all that is one number for all `lanes` on the left of comparisons in i32, where
    both sides differ between lanes."""
    first = {v: const(0) for v in lanes}

    def one_sided(node: Apply, a: Index, b: Index) -> Scalar:
        if node.args[0].dtype is not I32:
            return node
        common = substitute(b, first)
        rest = b - common
        own = free_vars(rest)
        known = not own or not set(own) <= set(lanes) or not set(free_vars(a)) & set(lanes)
        if known or not free_vars(common) or not (_fits(a) and _fits(common)):
            return node
        return apply(node.function, index_value(a - common, I32), index_value(rest, I32))

    return _with_comparisons(scalar, one_sided)


def _with_comparisons(scalar: Scalar, of: Callable[[Apply, Index, Index], Scalar]) -> Scalar:
    """`scalar` with `of(node, a, b)` in place of each comparison of indices a and b."""

    @cache  # parts that occur many times would double the work at each level
    def visit(node: Scalar) -> Scalar:
        node = rebuild(node, visit)
        if not isinstance(node, Apply) or node.function not in COMPARISONS:
            return node
        a, b = map(_index, node.args)
        return node if a is None or b is None else of(node, a, b)

    return visit(scalar)


def _index(scalar: Scalar) -> Index | None:
    """The index that an integer scalar is."""
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
