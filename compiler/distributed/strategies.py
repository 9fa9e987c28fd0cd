"""The strategies of a node: the ways in which the ranks of a mesh axis can share its work.

They follow from the node's expression, whatever its op is called.  For y[i, j] = sum(k) x[i, k] *
w[k, j]:

    whole                                   every rank computes everything
    split(0), whole -> split(0)             divides loop i
    whole, split(1) -> split(1)             divides loop j
    split(1), split(0) -> partial(sum)      divides loop k

A read at data-dependent indices, as in y[i, j] = w[x[i], j], divides its axis too: each rank reads
its own rows, and zeros in place of other ranks' rows.

    split(0), whole -> partial(sum)

A node that is linear in operands also takes parts of a sum: x - y has partial(sum), partial(sum) ->
partial(sum), in which the ranks add what they have.

Operands that are added to partial results become parts too, such as a bias.

A divided loop divides the loops of other stages through what they read: at most one loop of each
stage, since a rank computes a block and not a corner.  A stage whose reduction is divided has a
partial value.  Linear stages make partial values of it.  Before another stage reads it, it is
reduced, such as the maxima and sums of a softmax whose keys are divided.

An extremum with its position is a pair, which no collective combines.  The ranks gather the pairs
of all ranks and combine them, so the stage is whole.

    split(1) -> whole           argmax over axis 1

If the ranks do not divide a loop, their blocks are padded: the last blocks have iterations behind
the end of the loop.  Padding has any value.  A reduction leaves it out, and so does a change that
makes a value whole.  A loop of 640 may be divided in blocks of 256, which are 4 heads of 64, but
only its readers and its producer tell: they wish for it.

Values that no collective can make whole again offer nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import product

from tcc.distributed.blocks import LoopBlock, axis_split, can_be_placed, loop_block, shift_of
from tcc.distributed.sharding import (
    REDUCTIONS,
    WHOLE,
    Partial,
    Sharding,
    Shardings,
    Split,
    Whole,
    even,
)
from tcc.frozen import frozen
from tcc.ir.expr import MONOIDS, Expr, Stage, extent, reads, source_shape
from tcc.ir.expr.scalar import IndexValue, Read, StageRef, walk
from tcc.ir.index import Index, Var, as_int, free_vars, var_of
from tcc.ir.program import COLLECTIVE_DTYPES
from tcc.ir.region.affine import Size, Sizes, plain
from tcc.ir.types import BOOL, DType
from tcc.known import all_known
from tcc.passes.derive.algebra.linear import is_linear
from tcc.zipped import zip_equal

# A parameter as its number, stage n as ~n.
_Array = int
# The monoids of the components of each array that is partial.
_Partial = dict[_Array, tuple[str, ...]]
# Stages, and the monoids of their components.
Reduced = tuple[tuple[int, tuple[str, ...]], ...]


@frozen
class Strategy:
    """A way to share a node's work.

    `operands` and `results` have a sharding for each operand (whole for an absent one) and each
    result.  `blocks` are the divided loops by their stage, at most one a stage.  `rows` is the
    operand whose divided axis is read at data-dependent indices.  `reduced` are the stages whose
    partial values are reduced before others read them, in order, with the monoid of each component:
    `("argmax", "argmax")` for a stage whose components are combined together.
    """

    operands: Shardings
    results: Shardings
    blocks: tuple[tuple[int, LoopBlock], ...] = ()
    rows: int | None = None
    reduced: Reduced = ()

    @property
    def shardings(self) -> Shardings:
        """The shardings of the operands, then those of the results."""
        return (*self.operands, *self.results)

    def __repr__(self) -> str:
        sides = (", ".join(map(repr, shardings)) for shardings in (self.operands, self.results))
        return " -> ".join(sides)


def whole(operands: int, results: int) -> Strategy:
    """Returns the strategy in which every rank computes everything."""
    return Strategy((WHOLE,) * operands, (WHOLE,) * results)


# The number of an operand or a result, and a split of it.
Wish = tuple[int, Split]


@lru_cache(4096)  # equal layers have equal expressions
def strategies(
    expr: Expr, ranks: int, wishes: tuple[Wish, ...] = (), operands: tuple[Wish, ...] = ()
) -> tuple[Strategy, ...]:
    """Returns the strategies of a node with expression `expr` on `ranks` ranks, `whole` first.

    The order is that of stages and of their loops.  `wishes` are splits of results that later nodes
    need, and `operands` splits of operands that earlier nodes compute; a loop alone does not tell
    its groups or its padded blocks.
    """
    offers = {whole(len(expr.params), len(expr.outputs)): None}
    if all(p is None or not p.dtype.is_handle for p in expr.params):
        divided = (
            *_by_loops(expr, ranks),
            *_by_axes(expr, ranks),
            *_by_wishes(expr, ranks, wishes, operands),
            *_by_rows(expr, ranks),
            *_by_parts(expr),
        )
        offers |= dict.fromkeys(filter(None, divided))
    return tuple(offers)


def _by_loops(expr: Expr, ranks: int) -> Iterator[Strategy | None]:
    for number, stage in enumerate(expr.stages):
        for loop in stage.loops:
            block = loop_block(loop, ranks, even(extent(loop), ranks))
            yield from _by_block(expr, ranks, number, block)


def _by_axes(expr: Expr, ranks: int) -> Iterator[Strategy | None]:
    """Yields strategies that divide axes of operands along which no loop runs.

    Blocks of such an axis tell blocks of a loop: whole groups of weights that share a scale, say.
    """
    sizes = {extent(loop) for stage in expr.stages for loop in stage.loops}
    for operand, param in enumerate(expr.params):
        for axis, size in enumerate(() if param is None else param.shape):
            split = replace(even(size, ranks), axis=axis)
            if size not in sizes and _has_blocks(size, split, ranks):
                yield from _by_axis(expr, ranks, operand, split)


def _by_wishes(
    expr: Expr, ranks: int, results: Iterable[Wish], operands: Iterable[Wish]
) -> Iterator[Strategy | None]:
    for result, split in results:
        number = expr.outputs[result].stage
        loop = expr.stages[number].iters[split.axis]
        yield from _by_block(expr, ranks, number, loop_block(loop, ranks, split))
    for operand, split in operands:
        yield from _by_axis(expr, ranks, operand, split)


def _by_axis(expr: Expr, ranks: int, operand: int, split: Split) -> Iterator[Strategy | None]:
    division = _Division(expr, ranks)
    if division.divide_axis(operand, split):
        yield from _divided(expr, division)


def _by_block(
    expr: Expr, ranks: int, number: int, block: LoopBlock | None
) -> Iterator[Strategy | None]:
    division = _Division(expr, ranks)
    if block is not None and division.divide(number, block):
        yield from _divided(expr, division)


def _divided(expr: Expr, division: "_Division") -> Iterator[Strategy | None]:
    if division.is_consistent():
        yield _strategy(expr, division.axes, (), division.blocks)


def _by_rows(expr: Expr, ranks: int) -> Iterator[Strategy]:
    """Yields the strategies in which ranks have rows of an operand that are read at data-dependent
    indices."""
    every_read = [node for stage in expr.stages for node in reads(stage)]
    for node in every_read:
        operand, data = node.source, data_index(node)
        if not isinstance(operand, int) or data is None:
            continue
        axis, _ = data
        split = replace(even(source_shape(expr, operand)[axis], ranks), axis=axis)
        alone = sum(other.source == operand for other in every_read) == 1
        strategy = _strategy(expr, {}, (operand,), {}) if alone else None
        if strategy is not None and _has_blocks(source_shape(expr, operand)[axis], split, ranks):
            operands = list(strategy.operands)
            operands[operand] = split
            yield replace(strategy, operands=tuple(operands), rows=operand)


def data_index(node: Read) -> tuple[int, Var] | None:
    """Returns the first axis that is read at a data-dependent index alone, and the index; None
    without one."""
    bound = {var for var, _ in node.indirect}
    for axis, index in enumerate(node.indices):
        var = var_of(index)
        if var is not None and var in bound:
            return axis, var
    return None


def _has_blocks(size: Index, split: Split, ranks: int) -> bool:
    if as_int(size) is None:
        return False
    with suppress(ValueError):
        split.length(size, ranks)
        return True
    return False


def _by_parts(expr: Expr) -> Iterator[Strategy | None]:
    """Yields the strategies in which operands are parts of a sum."""
    present = [n for n, param in enumerate(expr.params) if param is not None]
    for parts in dict.fromkeys((n,) for n in present) | {tuple(present): None}:
        if parts:
            yield _strategy(expr, {}, parts, {})


# ---- divided loops ------------------------------------------------------------------------------


class _Division:
    """The loops and axes that are divided together with a loop.

    `blocks` has the divided loop of a stage, `axes` the divided axis of an array.
    """

    def __init__(self, expr: Expr, ranks: int) -> None:
        self._expr, self._ranks = expr, ranks
        self.blocks: dict[int, LoopBlock] = {}
        self.axes: dict[_Array, Split] = {}

    def divide(self, number: int, block: LoopBlock) -> bool:
        """Divides a loop of stage `number`, and all that follows; False where that is
        impossible."""
        if number in self.blocks:
            return self.blocks[number] == block
        self.blocks[number] = block
        stage = self._expr.stages[number]
        if block.loop in stage.iters:
            axis = block.split(stage.iters.index(block.loop))
            if not self.divide_axis(~number, axis):
                return False
        return all(self._divide_read(stage, block, node) for node in reads(stage))

    def _divide_read(self, stage: Stage, block: LoopBlock, node: Read) -> bool:
        shardings = self._shardings(stage, block, node)
        return shardings is not None and all(
            self.divide_axis(_array(node), sharding)
            for sharding in shardings
            if isinstance(sharding, Split)
        )

    def _shardings(
        self, stage: Stage, block: LoopBlock | None, node: Read
    ) -> tuple[Sharding, ...] | None:
        """Returns the sharding of each axis that `node` reads; None where there is none.

        If neighbour ranks have copies of an axis, then other axes are whole, whatever elements of
        them a rank reads.
        """
        sizes = self._sizes(_array(node))
        shardings = [
            axis_split(index, stage, block, axis, size)
            for axis, (index, size) in enumerate(zip_equal(node.indices, sizes))
        ]
        if block is not None and any(isinstance(s, Split) and s.copies > 1 for s in shardings):
            shardings = [
                WHOLE if sharding is None and can_be_placed(index, block) else sharding
                for sharding, index in zip_equal(shardings, node.indices)
            ]
        return all_known(shardings)

    def divide_axis(self, array: _Array, split: Split) -> bool:
        """Divides an axis of an array, and the loops of all stages that read it; False where that
        is impossible."""
        if array in self.axes:
            return self.axes[array] == split
        self.axes[array] = split
        if array < 0:
            block = loop_block(self._expr.stages[~array].iters[split.axis], self._ranks, split)
            if block is None or not self.divide(~array, block):
                return False
        for number, stage in enumerate(self._expr.stages):
            for node in reads(stage):
                if _array(node) == array and number not in self.blocks:
                    block = self._block_along(stage, node, split)
                    if block is None or not self.divide(number, block):
                        return False
        return True

    def _block_along(self, stage: Stage, node: Read, split: Split) -> LoopBlock | None:
        """Returns the first blocks of a loop that read the blocks of the axis of `split`."""
        size, index = self._sizes(_array(node))[split.axis], node.indices[split.axis]
        for loop, copies, groups in product(
            stage.loops, dict.fromkeys((1, split.copies)), dict.fromkeys((1, split.groups))
        ):
            block = self._scaled(loop, Split(0, groups, split.block, copies), split, size)
            if block and axis_split(index, stage, block, split.axis, size) == split:
                return block
        return None

    def _scaled(self, loop: Var, blocks: Split, split: Split, size: Size) -> LoopBlock | None:
        """Returns blocks of a loop that have the same share of it as those of `split` of an axis of
        `size` elements."""
        iterations = as_int(extent(loop))
        if split.block and iterations and isinstance(size, int):
            share = iterations * split.groups * split.block
            length, remainder = divmod(share, size * blocks.groups)
            if remainder:
                return None
            blocks = replace(blocks, block=length)
        return loop_block(loop, self._ranks, blocks)

    def is_consistent(self) -> bool:
        """True where every stage reads of each array what its rank has, and its values differ by
        the same numbers on all neighbour ranks."""
        return all(
            self._agrees(stage, self.blocks.get(number))
            for number, stage in enumerate(self._expr.stages)
        )

    def _agrees(self, stage: Stage, block: LoopBlock | None) -> bool:
        for node in walk(*stage.body):
            if isinstance(node, IndexValue) and shift_of(node.index, stage, block) is None:
                return False
            if not isinstance(node, Read):
                continue
            array = _array(node)
            if block and block.is_padded and _is_computed(node, block.loop):
                return False
            split = self.axes.get(array)
            due: list[Sharding] = [WHOLE] * len(node.indices)
            if split is not None:
                due[split.axis] = split
            if self._shardings(stage, block, node) != tuple(due):
                return False
        return True

    def _sizes(self, array: _Array) -> Sizes:
        source = array if array >= 0 else StageRef(~array)
        return tuple(map(plain, source_shape(self._expr, source)))


def _is_computed(node: Read, loop: Var) -> bool:
    """True if data at an iteration of `loop` tell what `node` reads; padding might tell any."""
    return any(
        (isinstance(inner, Read) and loop in free_vars(*inner.indices))
        or (isinstance(inner, IndexValue) and loop in free_vars(inner.index))
        for inner in walk(*(scalar for _, scalar in node.indirect))
    )


def _array(node: Read) -> _Array:
    return ~node.source.stage if isinstance(node.source, StageRef) else node.source


# ---- partial values -----------------------------------------------------------------------------


def _strategy(
    expr: Expr,
    axes: Mapping[_Array, Split],
    parts: tuple[int, ...],
    blocks: Mapping[int, LoopBlock],
) -> Strategy | None:
    """Returns the strategy of divided axes and loops, and of operands that are parts of a sum.

    None where a stage cannot be computed from parts, or where no collective makes a result whole.
    """
    values = _partial_values(expr, axes, parts, blocks)
    if values is None:
        return None
    partial, reduced = values
    results: list[Sharding] = []
    for output, type in zip_equal(expr.outputs, expr.types):
        monoids = partial.get(~output.stage, ())
        sharding: Sharding = axes.get(~output.stage, WHOLE)
        if monoids:
            sharding = Partial(monoids[output.component % len(monoids)])
        if not can_be_whole(sharding, type.dtype):
            return None
        results.append(sharding)
    if all(isinstance(sharding, Whole) for sharding in results) and not reduced:
        return None  # shares no work
    operands: list[Sharding] = [
        Partial("sum") if n in partial else axes.get(n, WHOLE) for n in range(len(expr.params))
    ]
    divided = tuple(sorted(blocks.items()))
    return Strategy(tuple(operands), tuple(results), divided, reduced=reduced)


def _partial_values(
    expr: Expr,
    axes: Mapping[_Array, Split],
    parts: tuple[int, ...],
    blocks: Mapping[int, LoopBlock],
) -> tuple[_Partial, Reduced] | None:
    """Returns the partial operands and stages with their monoids, and the stages whose values are
    reduced in between."""
    partial: _Partial = {n: ("sum",) for n in parts}
    reduced: dict[int, tuple[str, ...]] = {}
    for number, stage in enumerate(expr.stages):
        block = blocks.get(number)
        monoid = stage.monoid if block is not None and block.loop in stage.reduce else None
        if block is not None and monoid is not None and not MONOIDS[monoid].parts:
            # The components are combined together.
            reads_parts = any(_array(node) in partial for node in reads(stage))
            if block.copies > 1 or not _is_reducible(stage) or reads_parts:
                return None
            reduced[number] = (monoid,) * len(stage.body)
            continue
        monoids = _partial_stage(stage, partial, block)
        if monoids is None:
            addends = dict.fromkeys(_own_operands(expr, stage) - axes.keys(), ("sum",))
            monoids = _partial_stage(stage, partial | addends, block)
            if monoids is not None:
                partial |= addends
        if monoids is None:
            for array in {_array(node) for node in reads(stage)} & partial.keys():
                if array >= 0 or not _is_reducible(expr.stages[~array]):
                    return None
                reduced[~array] = partial.pop(array)
            monoids = _partial_stage(stage, partial, block)
        if monoids is None:
            return None
        if monoids:
            partial[~number] = monoids
    return partial, tuple(sorted(reduced.items()))


def _is_reducible(stage: Stage) -> bool:
    return all(scalar.dtype in COLLECTIVE_DTYPES for scalar in stage.body)


def _own_operands(expr: Expr, stage: Stage) -> set[_Array]:
    """Returns the operands that `stage` reads and no other stage does."""
    elsewhere = {_array(node) for s in expr.stages if s is not stage for node in reads(s)}
    return {n for n in map(_array, reads(stage)) if n >= 0} - elsewhere


def _partial_stage(
    stage: Stage, partial: _Partial, block: LoopBlock | None
) -> tuple[str, ...] | None:
    """Returns the monoids by which the components of a stage are partial; empty where they are
    not.  None where the stage cannot be computed from partial values."""
    sources = {_array(node) for node in reads(stage)} & partial.keys()
    if sources:
        sums = {monoid for array in sources for monoid in partial[array]} == {"sum"}
        linear = sums and is_linear(stage, lambda node: _array(node) in sources)
        return ("sum",) * len(stage.body) if linear and block is None else None
    if block is None or block.loop in stage.iters:
        return ()
    if block.copies > 1:
        return None
    assert stage.monoid is not None
    monoids = MONOIDS[stage.monoid].parts
    return monoids if monoids and {*monoids} <= {*REDUCTIONS} else None


def can_be_whole(sharding: Sharding, dtype: DType) -> bool:
    """True where collectives can make a value of `dtype` whole."""
    match sharding:
        case Whole():
            return True
        case Partial():
            return dtype in COLLECTIVE_DTYPES
        case Split():
            return dtype in COLLECTIVE_DTYPES or dtype is BOOL
