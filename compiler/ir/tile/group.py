"""Tile group: the structure of one kernel before a schedule binds its sizes.

A group is an expression whose operands and results have storage: every read is an offset into a
flat buffer, with the guards under which it may touch memory.  Iterators are unified, so that a
stage and its readers name the same loop by the same variable, and adjacent loops over contiguous
storage are collapsed.

    common  iterators of every stage: the loops that can run in parallel; cheap stages that are
            no results may lack some, and are then recomputed in every tile
    inner   the other iterators of a stage
    reduce  the iterators that its monoid combines

Where a stage reads an earlier one through a window (a convolution after another), the earlier one
has its own loops, and its rows follow a common loop: see `Strip`.

A `Schedule` (see `tcc.schedule`) has the block size along each iterator and the parallel loops;
`tcc.passes.tile.cpu.lower` binds group and schedule into a `TileKernel`.
"""

from collections.abc import Mapping
from itertools import chain
from math import prod

from tcc.frozen import entity, frozen
from tcc.ir.expr.scalar import Read, Scalar, Scalars, StageRef
from tcc.ir.index import Index, Var, Vars
from tcc.ir.tile import Guard, MemorySpace
from tcc.ir.types import DType


@frozen
class GroupBuffer:
    """A flat buffer of `size` elements: an operand or a result of the kernel.

    A `constant` buffer can get any layout, so its strides do not influence the choice of loops.
    `place` is the result buffer whose memory a local buffer of symbolic size shares, element by
    element.
    """

    dtype: DType
    size: Index
    scope: MemorySpace
    constant: bool = False
    place: int | None = None


@frozen
class Access:
    """The place of a read or a store in a buffer: an offset in elements, and its guards.

    Local memory belongs to one tile; `along` are the common loops that select the tile. `beyond`
    are the guards of a padding of symbolic size; outside of them memory holds zeros, which are the
    read's fill.
    """

    buffer: int
    offset: Index
    guards: tuple[Guard, ...] = ()
    along: Vars = ()
    beyond: tuple[Guard, ...] = ()


@frozen
class Strip:
    """The rows of a stage that a tile computes for its rows of the common loop `loop`.

    For rows `b .. b + n - 1` of `loop`, later stages read the rows `scale*b + low` to `scale*(b + n
    - 1) + high` of the stage's loop `rows`.

    Local memory holds these rows one after the other. `row` has a triple `(before, extent, after)`
    for each other loop, outermost first: the numbers of elements before the loop's elements, of the
    loop, and after them. Elements before and after, and rows outside `rows`, have the value `fills`
    of their component. None there means that nothing reads them.
    """

    loop: Var
    rows: Var
    scale: int
    low: int
    high: int
    row: tuple[tuple[int, int, int], ...]
    fills: tuple[bool | int | float | None, ...]

    @property
    def width(self) -> int:
        """The number of stored elements of a row, including the elements of its halo."""
        return prod(sum(axis) for axis in self.row)

    def count(self, size: int) -> int:
        """Returns the number of rows that `size` neighbouring rows of `loop` need."""
        return self.scale * (size - 1) + self.high - self.low + 1


@entity
class GroupStage:
    """One stage.  `accesses` says for each read of an operand in `body` which element it reads.

    `stores` has for each component the results it is written to (often none or one).  With a
    `strip`, offsets into its local memory count rows from zero, so they may be negative.
    """

    iters: Vars
    reduce: Vars
    monoid: str | None
    body: Scalars
    accesses: Mapping[Read, Access]
    stores: tuple[tuple[Access, ...], ...]
    strip: Strip | None = None

    @property
    def loops(self) -> Vars:
        """The iterators of the result, then those of the reduction."""
        return (*self.iters, *self.reduce)

    @property
    def written(self) -> tuple[Access, ...]:
        """All stores of all components."""
        return tuple(chain.from_iterable(self.stores))


@frozen
class Rescale:
    """Multiplies a stage's running sums when an accumulator changes, as online softmax does when
    its maximum grows.

    `state` is the read of the accumulator; its indices are iterators of the stage. The sums are
    multiplied by `factor`, in which `Arg(0)` is the accumulator before the change and `Arg(1)` the
    accumulator after it.
    """

    stage: int
    state: Read
    factor: Scalar

    @property
    def total(self) -> StageRef:
        """The accumulator that `state` reads."""
        assert isinstance(self.state.source, StageRef)
        return self.state.source


@frozen
class StreamLoop:
    """Stages that run together through the streaming loop `loop`, a block at a time.

    Each of `stages` has the loop as an iterator or reduces over it. `before` are stages that these
    read and that do not have the loop; all other stages come after. `rescales` are the corrections
    of running sums.
    """

    loop: Var
    before: tuple[int, ...]
    stages: tuple[int, ...]
    rescales: tuple[Rescale, ...]


@entity
class TileGroup:
    """Stages in order over `buffers`; `sizes` are the size symbols the kernel needs.

    With a `stream`, a tile holds one block of the results of the stages along its loop.
    """

    buffers: tuple[GroupBuffer, ...]
    stages: tuple[GroupStage, ...]
    common: Vars
    sizes: Vars
    stream: StreamLoop | None = None

    @property
    def cut(self) -> Vars:
        """The loops of which a tile holds a part: the common ones and the streaming loop."""
        return self.common if self.stream is None else (*self.common, self.stream.loop)
