"""Rewrites reads that may be outside of an axis of length 1 or 0.

Longer axes have a loop whose bounds keep reads inside; an axis of length 1 or 0 has no loop.

    s[i: 0..1] = ...    y[j] = s[j - 1 | fill 0]    ->    y[j] = j - 1 == 0 ? s[0] : 0

A read of a stage without elements always gives the fill value.  Requires nothing.  Establishes that
every read of a stage is inside its axes of length 1, and that no read with a fill value has an
empty source.
"""

from tcc.ir.expr import Expr, Stage, known_extent, with_reads
from tcc.ir.expr.scalar import Read, Scalar, StageRef, index_value, literal, read_at
from tcc.ir.index import Index, const, free_vars, within
from tcc.ir.types import I64
from tcc.ops.formula import choose, fn
from tcc.zipped import zip_equal


def read_inside(expr: Expr) -> tuple[Stage, ...]:
    """Returns the stages of `expr` with rewritten reads.

    Along an axis of length 1, a read at index i becomes a read at index 0, inside
    `select(i == 0, read, fill value)`.  A read of a source with an axis of length 0 becomes the
    fill value.
    """

    def inside(node: Read) -> Scalar:
        if isinstance(node.source, StageRef):
            return _inside(node, expr.stages[node.source.stage])
        x = expr.params[node.source]
        if node.fill is not None and x is not None and x.count == 0:
            return literal(node.fill, node.dtype)
        return node

    return tuple(with_reads(stage, inside) for stage in expr.stages)


def _inside(node: Read, source: Stage) -> Scalar:
    if node.fill is not None and any(known_extent(v) == 0 for v in source.iters):
        return literal(node.fill, node.dtype)
    bound = {v for v, _ in node.indirect}
    beyond = [
        axis
        for axis, (index, var) in enumerate(zip_equal(node.indices, source.iters))
        if known_extent(var) == 1
        and not within(index, const(1))
        and bound.isdisjoint(free_vars(index))
    ]
    if not beyond or node.fill is None:
        return node
    at: list[Index] = list(node.indices)
    for axis in beyond:
        at[axis] = const(0)
    value: Scalar = read_at(node, tuple(at), node.indirect)
    for axis in beyond:
        value = choose(fn("eq", index_value(node.indices[axis], I64), 0), value, node.fill)
    return value
