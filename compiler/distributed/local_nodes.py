"""The node that a rank runs: the node's expression over the rank's blocks of the divided loops.

A rank's block of a loop reads the same indices as the first block, in operands that are blocks too,
so only extents change.  The op stays where it means that with other sizes; a node whose op means
something else becomes an `expression`:

    %y = reshape(%x) {shape=(128, 12, 64)}    split(1) -> split(1)      shape=(128, 6, 64)
    %y = reduce_mean(%x : f32[8, 64])         split(1) -> partial(sum)  sums of 32 terms, over 64
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tcc.distributed.blocks import LoopBlock, local_index, shift_of
from tcc.distributed.sharding import Sharding, Split, local_type
from tcc.distributed.strategies import Strategy, data_index
from tcc.frozen import field_names
from tcc.ir.expr import Expr, Stage, known_extent, with_sources
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import (
    IndexValue,
    Read,
    Scalar,
    Source,
    StageRef,
    apply,
    index_value,
    literal,
    read_at,
    substitute_all,
    transform_all,
)
from tcc.ir.graph import Node, map_sizes
from tcc.ir.index import Index, Indices, as_int, const, free_vars, iterator, substitute
from tcc.ir.op import OpSpec, OutTypes, Types
from tcc.ir.types import TensorType
from tcc.ops import OPS
from tcc.passes.fuse.compose import drop_unused

# Returns the place of a rank in its group, which nodes of the graph compute.
Place = Callable[[], Index]


def local_expr(expr: Expr, strategy: Strategy, ranks: int, place: Place) -> Expr:
    """Returns the expression that each of `ranks` ranks computes.

    It depends on the rank's `place` where values depend on divided loops, and where rows are read
    at data-dependent indices.
    """
    writer = _LocalExpr(expr, strategy, ranks, place)
    stages = tuple(map(writer.stage, range(len(expr.stages))))
    return replace(expr, params=_local_types(expr.params, strategy.operands, ranks), stages=stages)


class _LocalExpr:
    """Writes the stages of a rank's expression."""

    def __init__(self, expr: Expr, strategy: Strategy, ranks: int, place: Place) -> None:
        self._expr, self._strategy, self._ranks, self._place = expr, strategy, ranks, place
        self._blocks = dict(strategy.blocks)

    def stage(self, number: int) -> Stage:
        """Returns stage `number`."""
        stage, block = self._expr.stages[number], self._blocks.get(number)

        def leaf(node: Scalar) -> Scalar:
            if isinstance(node, Read) and node.source == self._strategy.rows:
                return self._own_rows(node)
            if block is None:
                return node
            match node:
                case IndexValue(index=index):
                    return index_value(self._value(index, stage, block), node.dtype)
                case Read():
                    return read_at(node, self._indices(node, stage, block), node.indirect)
            return node

        if block is None:
            return replace(stage, body=transform_all(stage.body, leaf))
        (local,) = free_vars(block.local)
        iters, reduce = (
            tuple(local if loop is block.loop else loop for loop in loops)
            for loops in (stage.iters, stage.reduce)
        )
        return replace(stage, iters=iters, reduce=reduce, body=transform_all(stage.body, leaf))

    def _value(self, index: Index, stage: Stage, block: LoopBlock) -> Index:
        """Returns the value of an index of whole loops."""
        if block.loop not in free_vars(index):
            return index
        first, shift = local_index(index, stage, block, 0, 0), shift_of(index, stage, block)
        return first + self._place() * shift if shift else first

    def _indices(self, node: Read, stage: Stage, block: LoopBlock) -> Indices:
        sizes = _shape(self._expr, node.source)
        return tuple(
            local_index(index, stage, block, as_int(size) or 0, self._groups(node.source, axis))
            if block.loop in free_vars(index)
            else index
            for axis, (index, size) in enumerate(zip(node.indices, sizes, strict=True))
        )

    def _groups(self, source: Source, axis: int) -> int:
        """Returns in how many groups an axis is divided; 0 if it is whole."""
        if isinstance(source, StageRef):
            block, iters = self._blocks.get(source.stage), self._expr.stages[source.stage].iters
            return 0 if block is None or block.loop is not iters[axis] else block.groups
        sharding = self._strategy.operands[source]
        return sharding.groups if isinstance(sharding, Split) and sharding.axis == axis else 0

    def _own_rows(self, node: Read) -> Scalar:
        """Returns an element of the rank's rows, or zero where another rank has the row."""
        data = data_index(node)
        assert data is not None
        axis, var = data
        size = (as_int(_shape(self._expr, node.source)[axis]) or 0) // self._ranks
        row = dict(node.indirect)[var] - self._place() * size
        inside = apply("ge", row, literal(0, row.dtype)) & (row < size)
        below = apply("min", row, literal(size - 1, row.dtype))
        clamped = apply("max", below, literal(0, row.dtype))
        local = iterator(var.name, size)
        indices = tuple(substitute(index, {var: local}) for index in node.indices)
        (new,) = free_vars(local)
        indirect = tuple((new, clamped) if v is var else (v, s) for v, s in node.indirect)
        return apply("select", inside, read_at(node, indices, indirect), literal(0, node.dtype))


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


def local_op(node: Node, local: Expr) -> tuple[OpSpec, Any]:
    """Returns the op and the attributes of a rank's node, which computes `local` instead of
    `node`."""
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
    refs = [StageRef(n, c) for n in stages for c in range(len(expr.stages[n].body))]
    params = (*expr.params, *(expr.stages[ref.stage].types[ref.component] for ref in refs))
    numbers: dict[Source, int] = {}
    divided = []
    for number in (*stages, None):
        outputs = tuple(ref for ref in refs if ref.stage == number)
        if number is None:
            outputs = tuple(ref for ref in expr.outputs if ref.stage not in stages)
        read = partial(_renumbered, dict(numbers))
        remaining = tuple(with_sources(stage, read) for stage in expr.stages)
        divided.append(drop_unused(Expr(params, remaining, outputs)))
        for ref in outputs if number is not None else ():
            numbers[ref] = len(expr.params) + refs.index(ref)
    return divided


def _renumbered(numbers: Mapping[Source, int], source: Source) -> Source:
    return numbers.get(source, source)


def _means(op: OpSpec, attrs: Any, local: Expr, meaning: Expr) -> bool:
    """True where `op` takes a rank's operands and computes what `local` does; `meaning` is that of
    `local`."""
    with suppress(ValueError):
        if op.expr is not None and op.infer(local.params, attrs) == local.types:
            return _meaning(op.expr(local.params, attrs)) == meaning
    return False


def _meaning(expr: Expr) -> Expr:
    """Returns a form that expressions share which differ in names, or where loops of one iteration
    are read as 0."""
    stages = []
    for stage in expr.stages:
        zeros = {v: const(0) for v in stage.loops if known_extent(v) == 1}
        stages.append(replace(stage, body=substitute_all(stage.body, zeros)))
    return canonical(replace(expr, stages=tuple(stages)))


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
