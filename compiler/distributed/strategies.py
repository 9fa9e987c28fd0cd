"""The strategies of a node: the ways in which the ranks of a mesh axis can share its work.

They follow from the node's expression, whatever its op is called.  For y[i, j] = sum(k) x[i, k] *
w[k, j]:

    whole                                   every rank computes everything
    split(0), whole -> split(0)             divides loop i
    whole, split(1) -> split(1)             divides loop j
    split(1), split(0) -> partial(sum)      divides loop k

A node that is linear in operands also takes parts of a sum: x - y has partial(sum), partial(sum) ->
partial(sum), in which the ranks add what they have.

A divided loop divides the loops of other stages through what they read: at most one loop of each
stage, since a rank computes a block and not a corner.  A stage whose reduction is divided has a
partial value, which only linear stages may read.  Loops that the ranks do not divide, and values
that no collective can make whole again, offer nothing.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from tcc.distributed.blocks import LoopBlock, loop_block, shift_of
from tcc.distributed.linear import is_linear
from tcc.distributed.sharding import (
    REDUCTIONS,
    WHOLE,
    Partial,
    Sharding,
    Shardings,
    Split,
    Whole,
)
from tcc.frozen import frozen
from tcc.ir.expr import MONOIDS, Expr, Stage, reads
from tcc.ir.expr.scalar import IndexValue, Read, StageRef, walk
from tcc.ir.index import Var
from tcc.ir.program import COLLECTIVE_DTYPES
from tcc.ir.region.affine import Sizes, plain
from tcc.ir.types import BOOL, DType

# A parameter as its number, stage n as ~n.
_Array = int


@frozen
class Strategy:
    """One way to share a node's work.

    `operands` and `results` have a sharding for each operand (whole for an absent one) and each
    result.  `loops` are the divided loops: (stage, loop), at most one a stage.
    """

    operands: Shardings
    results: Shardings
    loops: tuple[tuple[int, Var], ...] = ()

    def __repr__(self) -> str:
        sides = (", ".join(map(repr, shardings)) for shardings in (self.operands, self.results))
        return " -> ".join(sides)


def whole(operands: int, results: int) -> Strategy:
    """Returns the strategy in which every rank computes everything."""
    return Strategy((WHOLE,) * operands, (WHOLE,) * results)


@lru_cache(maxsize=4096)  # equal layers have equal expressions
def strategies(expr: Expr, ranks: int) -> tuple[Strategy, ...]:
    """Returns the strategies of a node with expression `expr` on `ranks` ranks, `whole` first.

    The order is that of stages and of their loops.
    """
    offers = {whole(len(expr.params), len(expr.outputs)): None}
    if all(p is None or not p.dtype.is_handle for p in expr.params):
        offers |= {s: None for s in (*_by_loops(expr, ranks), *_by_parts(expr))}
    return tuple(offers)


def _by_loops(expr: Expr, ranks: int) -> Iterator[Strategy]:
    for number, stage in enumerate(expr.stages):
        for loop in stage.loops:
            division = _Division(expr, ranks)
            if division.divide(number, loop) and division.is_consistent():
                strategy = _strategy(expr, division.axes, (), division.blocks)
                if strategy is not None:
                    yield strategy


def _by_parts(expr: Expr) -> Iterator[Strategy]:
    """Yields the strategies in which operands are parts of a sum."""
    present = [n for n, param in enumerate(expr.params) if param is not None]
    for parts in dict.fromkeys(((n,) for n in present), None) | {tuple(present): None}:
        strategy = _strategy(expr, {}, parts, {}) if parts else None
        if strategy is not None:
            yield strategy


# ---- divided loops ------------------------------------------------------------------------------


class _Division:
    """The loops and axes that are divided together with a loop.

    `blocks` has the divided loop of a stage, `axes` the divided axis of an array.
    """

    def __init__(self, expr: Expr, ranks: int) -> None:
        self._expr, self._ranks = expr, ranks
        self.blocks: dict[int, LoopBlock] = {}
        self.axes: dict[_Array, int] = {}

    def divide(self, number: int, loop: Var) -> bool:
        """Divides a loop of stage `number`, and all that follows; False where that is
        impossible."""
        previous = self.blocks.get(number)
        if previous is not None:
            return previous.loop is loop
        block = loop_block(loop, self._ranks)
        if block is None:
            return False
        self.blocks[number] = block
        stage = self._expr.stages[number]
        if loop in stage.iters and not self._divide_axis(~number, stage.iters.index(loop)):
            return False
        return all(self._divide_read(stage, block, node) for node in reads(stage))

    def _divide_read(self, stage: Stage, block: LoopBlock, node: Read) -> bool:
        array = _array(node)
        for axis, (index, size) in enumerate(zip(node.indices, self._sizes(array), strict=True)):
            shift = shift_of(index, stage, block, size)
            if shift is None or (shift and not self._divide_axis(array, axis)):
                return False
        return True

    def _divide_axis(self, array: _Array, axis: int) -> bool:
        """Divides an axis of an array, and the loops of all stages that read it."""
        if array in self.axes:
            return self.axes[array] == axis
        self.axes[array] = axis
        if array < 0 and not self.divide(~array, self._expr.stages[~array].iters[axis]):
            return False
        size = self._sizes(array)[axis]
        for number, stage in enumerate(self._expr.stages):
            for node in reads(stage):
                if _array(node) == array and number not in self.blocks:
                    loop = self._loop_along(stage, node, axis, size)
                    if loop is None or not self.divide(number, loop):
                        return False
        return True

    def _loop_along(self, stage: Stage, node: Read, axis: int, size: object) -> Var | None:
        """Returns the first loop whose blocks are those of the axis that `node` reads."""
        for loop in stage.loops:
            block = loop_block(loop, self._ranks)
            if block is None or not isinstance(size, int):
                continue
            if shift_of(node.indices[axis], stage, block, size):
                return loop
        return None

    def is_consistent(self) -> bool:
        """True where every stage reads of each array what its rank has, and all ranks compute the
        same function."""
        return all(
            self._agrees(stage, self.blocks.get(number))
            for number, stage in enumerate(self._expr.stages)
        )

    def _agrees(self, stage: Stage, block: LoopBlock | None) -> bool:
        for node in walk(*stage.body):
            if isinstance(node, IndexValue) and shift_of(node.index, stage, block, 0) != 0:
                return False
            if not isinstance(node, Read):
                continue
            array = _array(node)
            for axis, (index, size) in enumerate(
                zip(node.indices, self._sizes(array), strict=True)
            ):
                shift = shift_of(index, stage, block, size)
                if shift is None or bool(shift) != (self.axes.get(array) == axis):
                    return False
        return True

    def _sizes(self, array: _Array) -> Sizes:
        if array < 0:
            return tuple(plain(dim) for dim in self._expr.stages[~array].types[0].shape)
        param = self._expr.params[array]
        assert param is not None
        return tuple(map(plain, param.shape))


def _array(node: Read) -> _Array:
    return ~node.source.stage if isinstance(node.source, StageRef) else node.source


# ---- partial values -----------------------------------------------------------------------------


def _strategy(
    expr: Expr,
    axes: Mapping[_Array, int],
    parts: tuple[int, ...],
    blocks: Mapping[int, LoopBlock],
) -> Strategy | None:
    """Returns the strategy of divided axes and loops, and of operands that are parts of a sum.

    None where a stage that is not linear reads a partial value, or where no collective makes a
    result whole.
    """
    partial: dict[_Array, tuple[str, ...]] = {n: ("sum",) for n in parts}
    for number, stage in enumerate(expr.stages):
        monoids = _partial(stage, partial, blocks.get(number))
        if monoids is None:
            return None
        if monoids:
            partial[~number] = monoids
    results: list[Sharding] = []
    for output, type in zip(expr.outputs, expr.types, strict=True):
        monoids = partial.get(~output.stage, ())
        axis = axes.get(~output.stage)
        sharding: Sharding = WHOLE if axis is None else Split(axis)
        if monoids:
            sharding = Partial(monoids[output.component % len(monoids)])
        if not _can_be_whole(sharding, type.dtype):
            return None
        results.append(sharding)
    if all(isinstance(sharding, Whole) for sharding in results):
        return None  # shares no work
    operands: list[Sharding] = []
    for n in range(len(expr.params)):
        split = Split(axes[n]) if n in axes else WHOLE
        operands.append(Partial("sum") if n in parts else split)
    loops = tuple((number, block.loop) for number, block in sorted(blocks.items()))
    return Strategy(tuple(operands), tuple(results), loops)


def _partial(
    stage: Stage, partial: Mapping[_Array, tuple[str, ...]], block: LoopBlock | None
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
    assert stage.monoid is not None
    monoids = MONOIDS[stage.monoid].parts
    return monoids if monoids and {*monoids} <= {*REDUCTIONS} else None


def _can_be_whole(sharding: Sharding, dtype: DType) -> bool:
    """True where collectives can make a value of `dtype` whole."""
    match sharding:
        case Whole():
            return True
        case Partial():
            return dtype in COLLECTIVE_DTYPES
        case Split():
            return dtype in COLLECTIVE_DTYPES or dtype is BOOL
