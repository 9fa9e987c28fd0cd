"""The node that a rank runs: the node's expression over the rank's blocks of the divided loops.

A rank's block of a loop reads the same indices as the first block, in operands that are blocks too,
so only extents change.  The op stays where it means that with other sizes; a node whose op means
something else becomes an `expression`:

    %y = reshape(%x) {shape=(128, 12, 64)}    split(1) -> split(1)      shape=(128, 6, 64)
    %y = reduce_mean(%x : f32[8, 64])         split(1) -> partial(sum)  sums of 32 terms, over 64

Iterations behind the end of a padded loop compute any values.  A reduction over such a loop takes
the identity of its monoid in their place:

    max(k: 0..4)  select(4*rank + k < 10, x[i, k], -inf)

A sum of products whose factors are all zero there needs no identity, so the op may stay.
`zero_padded` names the operands whose padding the caller may set to zero for that.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from tcc.distributed.blocks import (
    LoopBlock,
    axis_split,
    ends_with,
    local_index,
    placed_index,
    shift_of,
)
from tcc.distributed.sharding import WHOLE, Sharding, Split, local_type
from tcc.distributed.strategies import Strategy, data_index
from tcc.frozen import entity
from tcc.ir.expr import MONOIDS, Expr, Stage, source_shape
from tcc.ir.expr.scalar import (
    Apply,
    IndexValue,
    Read,
    Scalar,
    Scalars,
    apply,
    index_value,
    literal,
    read_at,
    transform_all,
    uncast,
)
from tcc.ir.index import Index, Indices, as_int, const, free_vars, iterator, substitute
from tcc.ir.op import Types
from tcc.ir.region.affine import plain
from tcc.ir.types import I64, TensorType
from tcc.zipped import zip_equal

# Returns the place of a rank in its group, which nodes of the graph compute.
Place = Callable[[], Index]


def local_expr(
    expr: Expr,
    strategy: Strategy,
    ranks: int,
    place: Place,
    zeroed: Collection[int] = (),
) -> Expr:
    """Returns the expression that each of `ranks` ranks computes.

    It depends on the rank's `place` where values depend on divided loops, where rows are read at
    data-dependent indices, and where a reduction leaves out padding.  `zeroed` are operands whose
    padding is zero; see `zero_padded`.
    """
    writer = _LocalExpr(expr, strategy, ranks, place, zeroed)
    stages = tuple(map(writer.stage, range(len(expr.stages))))
    return replace(expr, params=_local_types(expr.params, strategy.operands, ranks), stages=stages)


@entity
class _LocalExpr:
    """Writes the stages of a rank's expression."""

    _expr: Expr
    _strategy: Strategy
    _ranks: int
    _place: Place
    _zeroed: Collection[int]

    def stage(self, number: int) -> Stage:
        """Returns stage `number`."""
        stage, block = self._expr.stages[number], dict(self._strategy.blocks).get(number)

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
        body = self._without_padding(stage, block, transform_all(stage.body, leaf))
        return replace(stage, iters=iters, reduce=reduce, body=body)

    def _without_padding(self, stage: Stage, block: LoopBlock, body: Scalars) -> Scalars:
        """Returns the local `body` of a stage; the identity of the monoid in padded iterations."""
        is_reduced = block.is_padded and block.loop in stage.reduce
        factors = _zero_factors(stage, block, self._strategy.operands) if is_reduced else ()
        if not is_reduced or (factors and all(n in self._zeroed for n in factors)):
            return body
        assert stage.monoid is not None
        identity = MONOIDS[stage.monoid].identity(tuple(scalar.dtype for scalar in body))
        iteration = block.local % block.size + self._block_number(block) * block.size
        is_inside = index_value(iteration, I64) < block.group
        return tuple(
            apply("select", is_inside, scalar, neutral)
            for scalar, neutral in zip_equal(body, identity)
        )

    def _block_number(self, block: LoopBlock) -> Index:
        return self._place() // block.copies

    def _value(self, index: Index, stage: Stage, block: LoopBlock) -> Index:
        """Returns the value of an index of whole loops."""
        if block.loop not in free_vars(index):
            return index
        first = local_index(index, stage, block, const(0), WHOLE)
        shift = shift_of(index, stage, block)
        assert shift is not None
        return first + self._block_number(block) * shift if shift != 0 else first

    def _indices(self, node: Read, stage: Stage, block: LoopBlock) -> Indices:
        sizes = source_shape(self._expr, node.source)
        return tuple(
            self._index(index, stage, block, size, axis)
            if block.loop in free_vars(index)
            else index
            for axis, (index, size) in enumerate(zip_equal(node.indices, sizes))
        )

    def _index(self, index: Index, stage: Stage, block: LoopBlock, size: Index, axis: int) -> Index:
        sharding = axis_split(index, stage, block, axis, plain(size))
        if sharding is None:
            return placed_index(index, block, self._block_number(block))
        return local_index(index, stage, block, size, sharding)

    def _own_rows(self, node: Read) -> Scalar:
        """Returns an element of the rank's rows, or zero where another rank has the row."""
        data = data_index(node)
        assert data is not None
        axis, var = data
        assert isinstance(node.source, int)
        rows = self._strategy.operands[node.source]
        assert isinstance(rows, Split)
        size = as_int(rows.length(source_shape(self._expr, node.source)[axis], self._ranks)) or 0
        row = dict(node.indirect)[var] - self._place() * size
        inside = apply("ge", row, literal(0, row.dtype)) & (row < size)
        below = apply("min", row, literal(size - 1, row.dtype))
        clamped = apply("max", below, literal(0, row.dtype))
        local = iterator(var.name, size)
        indices = tuple(substitute(index, {var: local}) for index in node.indices)
        (new,) = free_vars(local)
        indirect = tuple((new, clamped) if v is var else (v, s) for v, s in node.indirect)
        return apply("select", inside, read_at(node, indices, indirect), literal(0, node.dtype))


def zero_padded(expr: Expr, strategy: Strategy) -> frozenset[int]:
    """Returns the operands that are factors of a sum over a padded loop.

    If their padding is zero, then padded terms are zero, and the sum need not leave them out.
    """
    blocks = dict(strategy.blocks)
    return frozenset(
        operand
        for number, stage in enumerate(expr.stages)
        for block in (blocks.get(number),)
        if block is not None and block.is_padded and block.loop in stage.reduce
        for operand in _zero_factors(stage, block, strategy.operands)
    )


def _zero_factors(stage: Stage, block: LoopBlock, operands: Sequence[Sharding]) -> frozenset[int]:
    """Returns the operands that are all factors of a sum and that are padded where the divided loop
    is; empty for other stages.

    Zeros in the padding of all factors make every padded term zero.
    """
    factors = [factor for scalar in stage.body for factor in _factors(scalar)]
    padded = [
        factor.source
        for factor in factors
        if isinstance(factor, Read) and not factor.indirect and isinstance(factor.source, int)
        for split in [operands[factor.source]]
        if isinstance(split, Split) and split.block
        if ends_with(factor.indices[split.axis], stage, block)
    ]
    every = stage.monoid == "sum" and len(padded) == len(factors)
    return frozenset(padded if every else ())


def _factors(scalar: Scalar) -> Iterator[Scalar]:
    match uncast(scalar):
        case Apply(function="mul", args=args):
            for factor in args:
                yield from _factors(factor)
        case factor:
            yield factor


def _local_types(
    types: Types, shardings: Sequence[Sharding], ranks: int
) -> tuple[TensorType | None, ...]:
    pairs = zip_equal(types, shardings)
    return tuple(t and local_type(t, s, ranks) for t, s in pairs)
