"""Nodes and expressions in place of a node that computes a smaller expression.

%y = reshape(%x) {shape=(128, 12, 64)}    over half of the heads: shape=(128, 6, 64)
max(k) x[i, k] ; sum(k) f(x, max)         cut at the first stage: two expressions
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any

from tcc.frozen import field_names
from tcc.ir.expr import Expr, Stage, known_extent
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import StageRef, substitute_all
from tcc.ir.graph import Node, map_sizes
from tcc.ir.index import Indices, Var, const
from tcc.ir.op import OpSpec, OutTypes
from tcc.ops import OPS
from tcc.passes.fuse.compose import drop_unused
from tcc.passes.fuse.split import reading
from tcc.zipped import zip_equal


def local_op(node: Node, local: Expr) -> tuple[OpSpec, Any]:
    """Returns the op and the attributes of a node that computes `local`, an expression over shorter
    loops, instead of `node`."""
    meaning = _meaning(local)
    for attrs in _resized(node, local.types):
        if _means(node.op, attrs, local, meaning):
            return node.op, attrs
    row = OPS["expression"]
    return row, row.attrs(local)


def divided_at(expr: Expr, stages: Sequence[int]) -> list[tuple[Expr, tuple[int, ...]]]:
    """Returns the expressions that compute each of `stages`, and last the results of `expr` that
    are none of them; each with the numbers of its operands.

    The components of `stages` follow the operands of `expr` as operands of later expressions.
    """
    refs: list[StageRef] = []
    divided = []
    for number in stages:
        outputs = tuple(StageRef(number, c) for c in range(len(expr.stages[number].body)))
        divided.append(drop_unused(reading(expr, refs, outputs)))
        refs += outputs
    remaining = tuple(ref for ref in expr.outputs if ref.stage not in stages)
    return [*divided, drop_unused(reading(expr, refs, remaining))]


def _means(op: OpSpec, attrs: Any, local: Expr, meaning: Expr) -> bool:
    """True where `op` takes the operands of `local` and computes what it does; `meaning` is that of
    `local`."""
    with suppress(ValueError):
        if op.expr is not None and op.infer(local.params, attrs) == local.types:
            return _meaning(op.expr(local.params, attrs)) == meaning
    return False


def _meaning(expr: Expr) -> Expr:
    """Returns a form that expressions share which differ in names, or where loops of one iteration
    are read as 0."""
    return canonical(without_unit_loops(expr, attrgetter("loops")))


def without_unit_loops(expr: Expr, loops: Callable[[Stage], Iterable[Var]]) -> Expr:
    """Returns `expr` with 0 in place of the iterators `loops` of each stage that run once."""
    stages = []
    for stage in expr.stages:
        zeros = {v: const(0) for v in loops(stage) if known_extent(v) == 1}
        stages.append(replace(stage, body=substitute_all(stage.body, zeros)))
    return replace(expr, stages=tuple(stages))


def _resized(node: Node, types: OutTypes) -> Iterator[Any]:
    """Yields attributes that the op of the smaller node may have: those of `node`, and those with
    the shape, or the sizes, of its result in place of those of the whole result."""
    yield node.attrs
    shape: Indices = node.result.shape
    fields = [name for name in field_names(node.attrs) if getattr(node.attrs, name) == shape]
    if fields:
        yield replace(node.attrs, **dict.fromkeys(fields, types[0].shape))
    sizes = {old: new for old, new in zip_equal(shape, types[0].shape) if old is not new}
    yield map_sizes(node.attrs, lambda size: sizes.get(size, size))
