"""Tile group: the structure of one kernel before a schedule binds its sizes.

A group is an expression whose operands and results have storage.  Every read is an offset into a
flat buffer, with guards that must hold for memory to be accessed.  A stage and its readers use the
same variable for the same loop.  Adjacent loops over contiguous storage are a single loop.  The
loops of a stage are:

    common  the iterators that all stages have, which can run in parallel; a cheap stage whose
            result is not stored may lack one of them: then every tile along it computes the stage
    inner   the other iterators of the stage's result
    reduce  the iterators over which the stage's monoid combines

A stage that a later stage reads through a window, such as a convolution before a convolution, has
loops of its own.  For each block of a common loop, it computes the rows that the window needs: see
`Strip`.

A `Schedule` (see `tcc.schedule`) has the block size along each iterator and the parallel loops;
`tcc.passes.tile.cpu.lower` makes a `TileKernel` of a group and a schedule.
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
    """A flat buffer of `size` elements: an operand, a result, or local memory of a tile.

    A `constant` buffer can be packed in any layout, so its strides do not matter for the choice of
    loops. If a LOCAL buffer has no memory of its own, `place` is the number of the result buffer
    that holds its elements; this is so for buffers of symbolic size.
    """

    dtype: DType
    size: Index
    scope: MemorySpace
    constant: bool = False
    place: int | None = None

    @property
    def is_local(self) -> bool:
        return self.scope is MemorySpace.LOCAL


@frozen
class Access:
    """The element of a buffer that a stage reads or stores.

    `offset` is its position in elements. Memory is accessed only where all `guards` hold. For rows
    in local memory, which belongs to a single tile, `along` are the common loops that select the
    tile.

    `beyond` are conditions that need no test. Where they fail, the read is in padding of the
    buffer, which holds zeros, and zero is also the read's fill value. They are kept because terms
    of a sum may be left out where they fail. Only conditions with symbolic extents are listed.
    """

    buffer: int
    offset: Index
    guards: tuple[Guard, ...] = ()
    along: Vars = ()
    beyond: tuple[Guard, ...] = ()


@frozen
class Strip:
    """The rows of a stage that a tile computes because a later stage reads them through a window.

    If the tile has the values `b` to `b + n - 1` of the common loop `loop`, later stages read the
    rows `scale*b + low` to `scale*(b + n - 1) + high` of the stage's loop `rows`.

    Local memory holds these rows one after the other, with padding around each row. `row` has
    (before, extent, after) for each inner loop except `rows`, outermost first: the number of
    padding elements before the loop's elements, the loop's extent, and the number of padding
    elements after them. `fills[c]` is the value of component c in the padding and in rows outside
    the range of `rows`; None means that nothing reads it there.
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
        """The number of stored elements of a row, padding included."""
        return prod(sum(axis) for axis in self.row)

    def count(self, size: int) -> int:
        """Returns how many rows later stages read for `size` adjacent values of `loop`."""
        return self.scale * (size - 1) + self.high - self.low + 1


@entity
class GroupStage:
    """A stage of a group.

    `accesses` maps each read in `body` that reads memory to the element of a buffer.  `stores` has
    for each component the elements to which it is stored, often none or one.  If the stage has a
    `strip`, the offsets into its local memory begin at row 0 of the loop `rows`, not at the first
    row in memory, so they may be negative.
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
        """The stores of all components, in order."""
        return tuple(chain.from_iterable(self.stores))


@frozen
class Rescale:
    """A correction of the running sums of stage number `stage` when an accumulator changes.

    Online softmax needs it when its maximum grows. `state` is the read of the accumulator; its
    indices are iterators of the stage. The sums are multiplied by `factor`, in which `Arg(0)` is
    the accumulator before the change and `Arg(1)` the accumulator after it.
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
    """A streaming loop: several stages run together, a block of `loop` at a time.

    `stages` are the numbers of these stages; each has the loop as an iterator or reduces over it.
    `before` are the numbers of stages without the loop that `stages` read. All other stages run
    after the loop. `rescales` are the corrections of running sums.
    """

    loop: Var
    before: tuple[int, ...]
    stages: tuple[int, ...]
    rescales: tuple[Rescale, ...]


@entity
class TileGroup:
    """The structure of a kernel: its stages, in order, and the buffers that they access.

    `common` are the iterators that all stages have. `sizes` are the size symbols that the kernel
    needs. `stream` is the streaming loop, if there is one: a tile computes the results of the
    streamed stages block by block, and holds one block at a time.
    """

    buffers: tuple[GroupBuffer, ...]
    stages: tuple[GroupStage, ...]
    common: Vars
    sizes: Vars
    stream: StreamLoop | None = None

    @property
    def accumulators(self) -> tuple[int, ...]:
        """The stages that reduce over the streaming loop."""
        stream = self.stream
        if stream is None:
            return ()
        return tuple(n for n in stream.stages if stream.loop in self.stages[n].reduce)

    @property
    def cut(self) -> Vars:
        """The loops of which a tile holds a block at a time: common loops and streaming loop."""
        return self.common if self.stream is None else (*self.common, self.stream.loop)
