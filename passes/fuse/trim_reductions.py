"""Shortens reductions by terms that are the identity of their monoid for every result.

    y[o] = sum(k: 0..1280) x[o + k - 1 | fill 0], x of 7, o: 0..2
    m[i] = max(k: 0..64) select(k < i + 2, x[i, k], -inf), i: 0..8
      ->
    y[o] = sum(k: 0..8) x[o + k - 1 | fill 0]
    m[i] = max(k: 0..9) select(k < i + 2, x[i, k], -inf)

Two facts can prove that a term is the identity: a read is outside of its source and gives its fill
value, or a comparison of indices has the same outcome for all results.  The term must then be the
identity for all values of its other reads.  Requires nothing.  Establishes that, in shortened
stages, reads that are always inside have no fill value.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from tcc.ir.expr import MONOIDS, Expr, Stage, known_extent, source_shape, with_reads
from tcc.ir.expr.comparisons import held_where
from tcc.ir.expr.scalar import (
    Apply,
    Const,
    Read,
    Scalar,
    literal,
    read,
    substitute_all,
    walk,
)
from tcc.ir.index import Index, Var, bounds, free_vars, iterator, step_in
from tcc.ir.index.prove import inside
from tcc.ir.region.neutral import folded
from tcc.ir.types import BOOL
from tcc.zipped import zip_equal

# A range of an iterator: its first value, and the value after its last.
_Range: TypeAlias = tuple[int, int]


def trim_reductions(expr: Expr) -> Expr:
    """Returns `expr` with shorter reductions, where terms are known to be the identity."""
    stages = tuple(_trimmed(stage, expr) for stage in expr.stages)
    return expr if stages == expr.stages else replace(expr, stages=stages)


def _trimmed(stage: Stage, expr: Expr) -> Stage:
    for var in stage.reduce:
        size = known_extent(var)
        if size is None:
            continue
        first, end = _live(stage, var, size, expr)
        if end - first < size:
            short = iterator(var.name, end - first)
            shifted = {var: short + first}
            reduce = tuple(free_vars(short)[0] if v is var else v for v in stage.reduce)
            body = substitute_all(stage.body, shifted)
            stage = _without_fills(replace(stage, reduce=reduce, body=body), expr)
    return stage


def _without_fills(stage: Stage, expr: Expr) -> Stage:
    """Returns `stage` without fill values in reads that are always inside."""

    def plain(node: Read) -> Scalar:
        axes = zip_equal(node.indices, source_shape(expr, node.source))
        if node.fill is None or not all(inside(*axis) for axis in axes):
            return node
        return read(node.source, node.indices, node.dtype, indirect=node.indirect)

    return with_reads(stage, plain)


# ---- terms that are not the identity ------------------------------------------------------------


def _live(stage: Stage, var: Var, size: int, expr: Expr) -> _Range:
    """Returns a range of `var`, a loop of `size` iterations, outside of which all terms are the
    identity."""
    assert stage.monoid is not None
    identity = MONOIDS[stage.monoid].identity(tuple(s.dtype for s in stage.body))
    ranges = []
    for body, neutral in zip_equal(stage.body, identity):
        first, end = 0, size
        for scalar, value, (low, high) in _facts(body, var, size, expr):
            if (first < low or high < end) and folded((body,), {scalar: value}, computes=True) == (
                neutral,
            ):
                first, end = max(first, low), min(end, high)
        ranges.append((first, max(first, end)))
    return min(first for first, _ in ranges), max(end for _, end in ranges)


def _facts(body: Scalar, var: Var, size: int, expr: Expr) -> Iterator[tuple[Scalar, Const, _Range]]:
    """Yields (scalar, constant, range) for scalars in `body`, where `var` is a loop of `size`
    iterations.

    The scalar equals the constant for all values of `var` outside of the range.
    """
    for node in walk(body):
        match node:
            case Read() if node.fill is not None:
                axes = zip_equal(node.indices, source_shape(expr, node.source))
                bounds_of_read = [i for index, dim in axes for i in (index, dim - 1 - index)]
                yield node, literal(node.fill, node.dtype), _within(bounds_of_read, var, size)
            case Apply():
                for outcome in (True, False):
                    if limits := held_where(node, not outcome):
                        yield node, literal(outcome, BOOL), _within(limits, var, size)


def _within(indices: Sequence[Index], var: Var, size: int) -> _Range:
    """Returns a range of `var`, a loop of `size` iterations, outside of which one of `indices` is
    negative for all values of the other loops."""
    first, end = 0, size
    for index in indices:
        step, remainder = step_in(index, var) or (0, index)
        highest = bounds(remainder)[1] if step else None
        if highest is not None and step > 0:
            first = max(first, -(highest // step))
        elif highest is not None:
            end = min(end, highest // -step + 1)
    return first, end
