"""Computes the scalars of a stage as blocks of a block kernel, by loads and arithmetic.

A block has size 1 along axes that its value does not vary with.  An equal value is not computed
again while the body in which it was computed is still open.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from tcc.frozen import frozen
from tcc.ir.expr.scalar import (
    Read,
    Scalar,
    Scalars,
    StageRef,
    apply,
    argument,
    children,
    index_value,
    index_values,
)
from tcc.ir.index import (
    Index,
    Remainder,
    Var,
    bounds,
    const,
    free_vars,
    step_in,
)
from tcc.ir.tile import (
    Block,
    Blocks,
    Broadcast,
    Compute,
    Guard,
    Load,
    Relayout,
    Stmts,
    TileBuffer,
    lanes,
)
from tcc.ir.tile.group import Access, GroupStage
from tcc.ir.tile.verify_gpu import LARGEST
from tcc.ir.types import I32, I64, DType
from tcc.passes.tile.bodies import ScalarBlocks, needed_by_several, widened
from tcc.passes.tile.emitter import StatementEmitter
from tcc.passes.tile.gpu.axes import AxisRange, BlockAxes
from tcc.passes.tile.gpu.compare import in_few_bits, on_one_side
from tcc.schedule.gpu.schedule import NotBlocks
from tcc.zipped import zip_equal


@frozen
class EarlierBlock:
    """The block of an earlier stage, and the parts of axes that it covers (`frame`).

    `inner` is the offset of an element in scratch, a formula of the stage's loops that are neither
    parallel nor streaming.  It is None if the stage is not stored in scratch.
    """

    block: Block
    frame: BlockAxes
    inner: Index | None


class BlockEmitter(StatementEmitter):
    """Adds statements to the open body, and returns the same block for the same computation.

    `ready` has the blocks of earlier stages.
    """

    def __init__(self, buffers: Iterable[TileBuffer]) -> None:
        super().__init__()
        self.buffers = tuple(buffers)
        self.ready: dict[StageRef, EarlierBlock] = {}
        self._known: dict[tuple[object, ...], Block] = {}

    def fresh(self, dtype: DType, shape: tuple[int, ...]) -> Block:
        if prod(shape) > LARGEST:
            raise NotBlocks(f"a block of {shape} elements")
        return super().fresh(dtype, shape)

    @contextmanager
    def body(self) -> Iterator[Stmts]:
        outer, self._known = self._known, dict(self._known)
        with super().body() as stmts:
            yield stmts
        self._known = outer

    # ---- arithmetic on blocks -------------------------------------------------------------------

    def compute(self, body: Scalar, args: Blocks, shape: tuple[int, ...]) -> Block:
        """Returns a block of `shape` with `body` computed from `args`, element by element."""
        key = ("compute", body, args, shape)
        if key not in self._known:
            out = self._known[key] = self.fresh(body.dtype, shape)
            self.add(Compute(out, body, args))
        return self._known[key]

    def function(self, name: str, *args: Block, last: Scalars = ()) -> Block:
        """Returns the block of the function `name`; the blocks `args` broadcast to each other.

        The scalars `last` are further arguments of the function.
        """
        body = apply(name, *(argument(n, b.dtype) for n, b in enumerate(args)), *last)
        shape = tuple(max(sizes) for sizes in zip_equal(*(b.shape for b in args)))
        return self.compute(body, args, shape)

    def load(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        buffer: TileBuffer,
        offset: Index,
        guards: tuple[Guard, ...],
        fill: bool | int | float,
        indirect: tuple[tuple[Var, Block], ...],
    ) -> Block:
        """Returns a block loaded from a buffer."""
        key = ("load", shape, buffer, offset, guards, repr(fill), indirect)
        if key not in self._known:
            out = self._known[key] = self.fresh(dtype, shape)
            self.add(Load(out, buffer, (offset,), guards, fill, indirect))
        return self._known[key]

    def spread(self, block: Block, shape: tuple[int, ...]) -> Block:
        """Returns `block` broadcast to `shape`."""
        if block.shape == shape:
            return block
        out = self.fresh(block.dtype, shape)
        self.add(Broadcast(out, block))
        return out

    def reshaped(self, block: Block, shape: tuple[int, ...], order: tuple[int, ...]) -> Block:
        """Returns `block` with its axes permuted to `order`, then reshaped to `shape`."""
        if shape == block.shape and order == tuple(range(len(block.shape))):
            return block
        key = ("reshaped", block, order, shape)
        if key not in self._known:
            out = self._known[key] = self.fresh(block.dtype, shape)
            self.add(Relayout(out, block, order))
        return self._known[key]

    def with_axes(self, block: Block, axes: Sequence[str], new_axes: Sequence[str]) -> Block:
        """Returns `block`, whose axes have the names `axes`, with the axes `new_axes` in their
        order.

        An axis that the block lacks gets size 1.
        """
        order = tuple(sorted(range(len(axes)), key=lambda n: new_axes.index(axes[n])))
        sizes = dict(zip_equal(axes, block.shape))
        shape = tuple(sizes.get(name, 1) for name in new_axes)
        return self.reshaped(block, shape, order)


class GpuStageScalars(ScalarBlocks):
    """Computes scalars of one stage as blocks over the parts of axes in `frame`."""

    def __init__(self, emitter: BlockEmitter, stage: GroupStage, frame: BlockAxes) -> None:
        super().__init__()
        self.emitter, self.stage, self.frame = emitter, stage, frame

    def value(self, scalar: Scalar, shape: tuple[int, ...] | None = None) -> Block:
        """Returns a block that holds `scalar`, broadcast to `shape`; None stands for the frame's
        shape."""
        return self.emitter.spread(self.block(scalar), self.frame.shape if shape is None else shape)

    def shares(self, node: Scalar) -> bool:
        return bool(children(node))

    def share(self, bodies: Sequence[Scalar]) -> None:
        """Computes the scalars that several of `bodies` or several data-dependent indices contain.

        Each of these scalars gets a block.  Otherwise each step of an unrolled bisection would
        compute all earlier steps again.
        """
        super().share(bodies)
        for node in needed_by_several(bodies):
            if self.shares(node):
                self.block(node)

    def active(self, parts: Sequence[AxisRange]) -> Block | None:
        """Returns a block of bools that is true in lanes before the ends of all `parts`.

        Returns None if no lane can be beyond an end.
        """
        mask: Block | None = None
        for part in parts:
            if not part.axis.ragged:
                continue
            shape = self.frame.varying(part.axis.loops)
            position = self.frame.positions(shape)[self.frame.parts.index(part)]
            top = bounds(part.axis.total)[1]
            dtype = I32 if top is not None and top + part.axis.block < 1 << 31 else I64
            inside = apply("lt", index_value(position, dtype), index_value(part.axis.total, dtype))
            block = self.emitter.compute(inside, (), shape)
            mask = block if mask is None else self.emitter.function("and", mask, block)
        return mask

    def computed(self, raw: Scalar, args: Blocks) -> Block:
        raw = in_few_bits(raw)
        shape = self._shape(free_vars(*index_values(raw)), args)
        one_sided = on_one_side(self.frame.scalar(raw, shape), free_vars(*lanes(shape)))
        return self.emitter.compute(one_sided, args, shape)

    def _shape(self, loops: Sequence[Var], blocks: Iterable[Block]) -> tuple[int, ...]:
        return widened(self.frame.varying(loops), blocks)

    # ---- reads ----------------------------------------------------------------------------------

    def read(self, node: Read) -> Block:
        if isinstance(node.source, StageRef):
            return self._ready(node, node.source)
        access = self.stage.accesses[node]
        indirect = self.chosen(node)
        indices = [access.offset, *(i for g in access.guards for i in (g.index, g.extent))]
        shape = self._shape(free_vars(*indices), (b for _, b in indirect))
        return self.emitter.load(
            node.dtype,
            shape,
            self.emitter.buffers[access.buffer],
            self.frame.place(access.offset, shape),
            self.frame.guards(access, shape),
            0 if node.fill is None else node.fill,
            indirect,
        )

    def _ready(self, node: Read, source: StageRef) -> Block:
        """Returns the block of an earlier stage, with an axis of size 1 for each axis of the frame
        that it does not have."""
        earlier = self.emitter.ready.get(source)
        axes = (
            None if earlier is None else matched(earlier, self.stage.accesses.get(node), self.frame)
        )
        if earlier is None or axes is None:
            raise NotBlocks("a stage reads an earlier one away from the point just computed")
        return self.emitter.with_axes(earlier.block, axes, names(self.frame))


def names(frame: BlockAxes) -> tuple[str, ...]:
    """Returns the names of the axes of a block that covers `frame`."""
    return tuple(p.axis.name for p in frame.axes)


def matched(
    earlier: EarlierBlock, access: Access | None, frame: BlockAxes
) -> tuple[str, ...] | None:
    """Returns for each axis of an earlier block the name of the axis of `frame` that matches it.

    Returns None if a read at `access` would need an element from another lane of the block.
    """
    steps: Mapping[int, AxisRange] | None = {}
    if access is not None:
        steps = None if access.guards or earlier.inner is None else _steps(access.offset, frame)
    block_steps = {} if earlier.inner is None else _steps(earlier.inner, earlier.frame)
    if steps is None or block_steps is None or steps.keys() != block_steps.keys():
        return None
    pairs: dict[str, str] = {}
    for step, part in block_steps.items():
        other = steps[step]
        if other.axis.block != part.axis.block or other.axis.total is not part.axis.total:
            return None
        pairs[part.axis.name] = other.axis.name
    present = {p.axis.name: p for p in frame.parts}
    for part in earlier.frame.axes:
        name = pairs.setdefault(part.axis.name, part.axis.name)
        if name not in present or (name == part.axis.name and present[name] != part):
            return None
    return tuple(pairs[name] for name in names(earlier.frame))


def _steps(offset: Index, frame: BlockAxes) -> dict[int, AxisRange] | None:
    """Maps each step of an offset to its axis: {32: y, 1: x} for 32*y + x.

    Returns None if the offset is not a sum of constant steps along axes that one block covers.
    """
    remainder = _recombined(frame.place(offset, frame.shape))
    axes_by_step: dict[int, AxisRange] = {}
    for part, lane in zip_equal(frame.axes, lanes(frame.shape)):
        linear = step_in(remainder, *free_vars(lane))
        if linear is None:
            return None
        step, remainder = linear
        if step:
            if step in axes_by_step or not part.axis.whole:
                return None
            axes_by_step[step] = part
    return axes_by_step if remainder is const(0) else None


def _recombined(index: Index) -> Index:
    """Returns an index with x in place of `x % d + d*(x // d)`."""
    for monomial, coeff in index.terms:
        if len(monomial) == 1 and isinstance(monomial[0], Remainder):
            num, den = monomial[0].num, monomial[0].den
            without = index - coeff * (num % den) - coeff * den * (num // den)
            if len(without.terms) < len(index.terms) - 1:
                return _recombined(without + coeff * num)
    return index
