"""Tile group: the structure of one kernel before a schedule binds its sizes.

A group is an expression whose operands and results have been given storage: every read is an
offset into a flat buffer, with the guards under which it may touch memory.  Iterators are unified,
so that a stage and its readers name the same loop by the same variable, and adjacent loops that
run over storage as one are collapsed.

    common     iterators of every stage: the loops a kernel can run in parallel; stages that are
               cheap and no results may lack some, and are then repeated in every unit
    inner      the other iterators of a stage
    reduce     what its monoid combines

Where a stage reads an earlier one through a window (a convolution after another), the earlier one
has loops of its own, and its rows follow a common loop: see `Strip`.

A `Schedule` (see `tcc.schedule`) says how large the block along each iterator is and which loops
are parallel; `tcc.passes.tile.cpu.lower` binds the two into a `TileKernel`.
"""

from collections.abc import Mapping
from itertools import chain
from math import prod

from tcc.ir.expr.scalar import Read, Scalar, Scalars, StageRef
from tcc.ir.index import Index, Var, Vars
from tcc.ir.tile import Guard, MemorySpace
from tcc.ir.types import DType
from tcc.record import entity, record


@record
class GroupBuffer:
    """A flat buffer of `size` elements: an operand or a result of the kernel.

    A `constant` one can be given any layout, so its strides do not speak for or against a loop.
    A local one of open size lies in the buffer `place`, a result, element by element.
    """

    dtype: DType
    size: Index
    scope: MemorySpace
    constant: bool = False
    place: int | None = None


@record
class Access:
    """Where a read or a store touches a buffer: an offset in elements, and its guards.

    Local memory is of one unit; `along` are the common loops that choose the unit it is of.
    `beyond`: borders of open size outside of which memory holds zeros, as the read has them there.
    """

    buffer: int
    offset: Index
    guards: tuple[Guard, ...] = ()
    along: Vars = ()
    beyond: tuple[Guard, ...] = ()


@record
class Strip:
    """The rows of a stage that a unit makes for the rows it covers of the common loop `loop`.

    For rows `b .. b + n - 1` of `loop` later stages read the rows `scale*b + low` to
    `scale*(b + n - 1) + high` of the stage's loop `rows`.  Local memory holds those rows one after
    the other; a row has for each other loop, outermost first, the elements `(before, extent,
    after)`.  Elements before and after, and rows outside `rows`, are the `fills` of the stage's
    components (None: nobody looks there).
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
        """Elements of a row with what is around it."""
        return prod(sum(axis) for axis in self.row)

    def count(self, size: int) -> int:
        """The rows that `size` neighbouring rows of `loop` need."""
        return self.scale * (size - 1) + self.high - self.low + 1


@entity
class GroupStage:
    """One stage.  `accesses` gives the place of every read of an operand in `body`.

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
        """All that is in `stores`."""
        return tuple(chain.from_iterable(self.stores))


@record
class Rescale:
    """How the sums so far of a stage follow when the total `state` changes: times `factor`, over
    `Arg(0)`, the state before, and `Arg(1)`, after.  `state` is read at iterators of the stage."""

    stage: int
    state: Read
    factor: Scalar

    @property
    def total(self) -> StageRef:
        """The total that `state` reads."""
        assert isinstance(self.state.source, StageRef)
        return self.state.source


@record
class StreamLoop:
    """Stages that go along `loop` together, a block at a time: each of `stages` has it as an
    iterator or reduces over it.  `before` are the stages they need that do not; all others come
    after."""

    loop: Var
    before: tuple[int, ...]
    stages: tuple[int, ...]
    rescales: tuple[Rescale, ...]


@entity
class TileGroup:
    """Stages in order over `buffers`; `sizes` are the size symbols the kernel needs.

    With a `stream`, units hold of the stages along its loop the results of one block."""

    buffers: tuple[GroupBuffer, ...]
    stages: tuple[GroupStage, ...]
    common: Vars
    sizes: Vars
    stream: StreamLoop | None = None

    @property
    def cut(self) -> Vars:
        """The loops of which a unit holds a part: the common ones and that of the streaming
        loop."""
        return self.common if self.stream is None else (*self.common, self.stream.loop)
