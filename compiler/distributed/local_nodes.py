"""The node that a rank runs: the node's expression over the rank's blocks of the divided loops.

A rank's block of a loop reads the same indices as the first block, in operands that are blocks too,
so only extents change.  The op stays where it means that with other sizes; a node whose op means
something else becomes an `expression`:

    %y = reshape(%x) {shape=(128, 12, 64)}    split(1) -> split(1)      shape=(128, 6, 64)
    %y = reduce_mean(%x : f32[8, 64])         split(1) -> partial(sum)  sums of 32 terms, over 64
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tcc.distributed.blocks import loop_block
from tcc.distributed.sharding import Sharding, local_type
from tcc.distributed.strategies import Strategy
from tcc.frozen import field_names
from tcc.ir.expr import Expr, Stage
from tcc.ir.expr.rename import canonical, renamed
from tcc.ir.graph import Node
from tcc.ir.index import Index, Indices, Var, iterator, of_atom
from tcc.ir.op import OpSpec, OutTypes, Types
from tcc.ir.types import TensorType
from tcc.ops import OPS


def local_expr(expr: Expr, strategy: Strategy, ranks: int) -> Expr:
    """Returns the expression that each of `ranks` ranks computes."""
    loops = dict(strategy.loops)
    stages = tuple(_local_stage(stage, loops.get(n), ranks) for n, stage in enumerate(expr.stages))
    return replace(expr, params=_local_types(expr.params, strategy.operands, ranks), stages=stages)


def _local_stage(stage: Stage, loop: Var | None, ranks: int) -> Stage:
    block = None if loop is None else loop_block(loop, ranks)
    if block is None:
        return stage
    mapping: dict[Var, Index] = {v: of_atom(v) for v in stage.loops}
    mapping[block.loop] = iterator(block.loop.name, block.size)
    return renamed(stage, mapping)


def _local_types(
    types: Types, shardings: Sequence[Sharding], ranks: int
) -> tuple[TensorType | None, ...]:
    pairs = zip(types, shardings, strict=True)
    return tuple(None if t is None else local_type(t, s, ranks) for t, s in pairs)


def local_op(node: Node, expr: Expr, strategy: Strategy, ranks: int) -> tuple[OpSpec, Any]:
    """Returns the op and the attributes of a rank's node; `expr` is the expression of `node`."""
    if not strategy.loops:
        return node.op, node.attrs
    local = local_expr(expr, strategy, ranks)
    meaning = canonical(local)
    for attrs in _resized(node, local.types):
        if _means(node.op, attrs, local, meaning):
            return node.op, attrs
    row = OPS["expression"]
    return row, row.attrs(local)


def _means(op: OpSpec, attrs: Any, local: Expr, meaning: Expr) -> bool:
    """True where `op` takes a rank's operands and computes what `local` does, whose canonical form
    is `meaning`."""
    with suppress(ValueError):
        if op.expr is not None and op.infer(local.params, attrs) == local.types:
            return canonical(op.expr(local.params, attrs)) == meaning
    return False


def _resized(node: Node, types: OutTypes) -> Iterator[Any]:
    """Yields attributes that the op of a rank's node may have: those of `node`, and those with the
    shape of its result in place of the whole result's shape."""
    yield node.attrs
    shape: Indices = node.outputs[0].type.shape
    fields = [name for name in field_names(node.attrs) if getattr(node.attrs, name) == shape]
    if fields:
        yield replace(node.attrs, **dict.fromkeys(fields, types[0].shape))
