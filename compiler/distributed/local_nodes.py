"""The node that a rank runs: the node's expression over the rank's blocks of the divided loops.

A rank's block of a loop reads the same indices as the first block, in operands that are blocks too,
so only extents change.  The op stays where it means that with other sizes; a node whose op means
something else becomes an `expression`:

    %y = reshape(%x) {shape=(128, 12, 64)}    split(1) -> split(1)      shape=(128, 6, 64)
    %y = reduce_mean(%x : f32[8, 64])         split(1) -> partial(sum)  sums of 32 terms, over 64
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tcc.distributed.blocks import LoopBlock, local_index
from tcc.distributed.sharding import Sharding, Split, local_type
from tcc.distributed.strategies import Strategy
from tcc.frozen import field_names
from tcc.ir.expr import Expr, Stage
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import (
    IndexValue,
    Read,
    Scalar,
    Source,
    StageRef,
    index_value,
    read_at,
    transform_all,
)
from tcc.ir.graph import Node, map_sizes
from tcc.ir.index import Index, Indices, as_int, const, free_vars
from tcc.ir.op import OpSpec, OutTypes, Types
from tcc.ir.types import TensorType
from tcc.ops import OPS


def local_expr(expr: Expr, strategy: Strategy, ranks: int) -> Expr:
    """Returns the expression that each of `ranks` ranks computes."""
    blocks = dict(strategy.blocks)

    def groups(source: Source, axis: int) -> int:
        """Returns in how many groups an axis is divided; 0 if it is whole."""
        if isinstance(source, StageRef):
            block, iters = blocks.get(source.stage), expr.stages[source.stage].iters
            return 0 if block is None or block.loop is not iters[axis] else block.groups
        sharding = strategy.operands[source]
        return sharding.groups if isinstance(sharding, Split) and sharding.axis == axis else 0

    stages = tuple(
        _local_stage(expr, stage, blocks.get(n), groups) for n, stage in enumerate(expr.stages)
    )
    return replace(expr, params=_local_types(expr.params, strategy.operands, ranks), stages=stages)


def _local_stage(
    expr: Expr, stage: Stage, block: LoopBlock | None, groups: Callable[[Source, int], int]
) -> Stage:
    if block is None:
        return stage

    def moved(index: Index, size: Index, groups: int) -> Index:
        depends = block.loop in free_vars(index)
        return local_index(index, stage, block, as_int(size) or 0, groups) if depends else index

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, IndexValue):
            return index_value(moved(node.index, const(0), 0), node.dtype)
        if not isinstance(node, Read):
            return node
        pairs = enumerate(zip(node.indices, _shape(expr, node.source), strict=True))
        indices = tuple(moved(i, size, groups(node.source, axis)) for axis, (i, size) in pairs)
        return read_at(node, indices, node.indirect)

    (local,) = free_vars(block.local)
    iters, reduce = (
        tuple(local if loop is block.loop else loop for loop in loops)
        for loops in (stage.iters, stage.reduce)
    )
    return replace(stage, iters=iters, reduce=reduce, body=transform_all(stage.body, leaf))


def _shape(expr: Expr, source: Source) -> Indices:
    """Returns the shape of a parameter or of a stage."""
    if isinstance(source, StageRef):
        return expr.stages[source.stage].types[source.component].shape
    param = expr.params[source]
    return () if param is None else param.shape


def _local_types(
    types: Types, shardings: Sequence[Sharding], ranks: int
) -> tuple[TensorType | None, ...]:
    pairs = zip(types, shardings, strict=True)
    return tuple(None if t is None else local_type(t, s, ranks) for t, s in pairs)


def local_op(node: Node, expr: Expr, strategy: Strategy, ranks: int) -> tuple[OpSpec, Any]:
    """Returns the op and the attributes of a rank's node; `expr` is the expression of `node`."""
    if not strategy.blocks:
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
    shape, or the sizes, of its result in place of those of the whole result."""
    yield node.attrs
    shape: Indices = node.outputs[0].type.shape
    fields = [name for name in field_names(node.attrs) if getattr(node.attrs, name) == shape]
    if fields:
        yield replace(node.attrs, **dict.fromkeys(fields, types[0].shape))
    sizes = {old: new for old, new in zip(shape, types[0].shape, strict=True) if old is not new}
    yield map_sizes(node.attrs, lambda size: sizes.get(size, size))
