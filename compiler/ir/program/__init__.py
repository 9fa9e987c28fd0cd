"""Program: the code that the host runs, one form for every target, interpreted by the C runtime.

A program is straight-line code with structured branches and loops over *registers* (int64, one per
integer value: sizes, offsets, trip counts) and *buffers* (byte ranges).  Kernels appear as indices
into the artifact's kernel table; there are no addresses.

    program  = registers, buffers, ports, body
    instr    = Let | ReadInt | Check | Allocate | View | Launch | CallOp | Copy | Branch | Loop
             | PlanArena | Collective | Wait

Semantics.  A register is written before it is read.  The `Place` of a buffer determines its
address.  Ranges of the arena and the symmetric arena are valid for the whole run.  `Dynamic` memory
is valid from its `Allocate` to the next `Allocate` of the same buffer or the end of the run.  A
`View` instruction sets the address of an `Alias`.  Sizes and offsets are in bytes.  The host
computes nothing but sizes.

The *prologue* is the body's leading `Let`s, `Check`s, `PlanArena`s and `ReadInt`s of inputs.  It
writes the registers with the sizes of the arenas and with the offset and size of every range in
them, and no later instruction changes these registers.  The arenas are allocated after the
prologue.  Kernels may rely on an alignment of 64 bytes for arenas, state, scratch and dynamic
memory.  They may rely on a weight having the alignment of its offset: 32 bytes at offset 96.  The
caller's arrays are aligned to their element type.  `verify_program` proves these rules.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.ir.types import BF16, F16, F32, F64, I8, I32, I64, U8, DType

Register: TypeAlias = int
Registers: TypeAlias = tuple[Register, ...]
BufferId: TypeAlias = int


class IntOp(Enum):
    """Integer instructions on registers; division rounds down, divisors are positive."""

    CONST = 0  # the result is the number a itself, not a register's value
    DIM = 1  # the size of dimension b of the caller's array for input port a
    ADD = 2
    SUB = 3
    MUL = 4
    FLOORDIV = 5
    MOD = 6
    MIN = 7
    MAX = 8
    RANK = 9  # the rank of this process in the comm, from 0
    SEED = 10  # the run's seed, constant during a run; all 64 bits count
    # The size of dimension b of the row-major array whose front along b is the caller's array for
    # input port a.
    CAPACITY = 11


class Relation(Enum):
    """The relation that `Check` tests."""

    EQ = 0
    LE = 1
    LT = 2
    DIVIDES = 3  # holds if b is a multiple of a


class CollectiveKind(Enum):
    """The operations in which the ranks of a comm exchange data.

    tcc_comm.h declares a function for each.
    """

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2
    ALL_TO_ALL = 3
    BROADCAST = 4

    @property
    def reduces(self) -> bool:
        return self in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)

    @property
    def sends_blocks(self) -> bool:
        """True if a rank sends one block for each rank."""
        return self in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL)

    @property
    def receives_blocks(self) -> bool:
        """True if a rank receives one block from each rank."""
        return self in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL)


class Reduction(Enum):
    """The ways to combine the elements of all ranks, with the values of tcc_comm_reduction in C."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4


COLLECTIVE_DTYPES = (F16, BF16, F32, F64, I8, U8, I32, I64)

# ---- places: where a buffer's bytes are -----------------------------------------------------


@frozen
class Input:
    """The caller's array for input port `port`; read only."""

    port: int


@frozen
class Output:
    """The caller's array for output port `port`, or memory from the caller's allocator."""

    port: int


@frozen
class Weight:
    """`size` bytes at `offset` of the weight section; read only, shared by all instances."""

    offset: int
    size: int


@frozen
class Arena:
    """A range of bytes of the arena.

    The registers `offset` and `size` hold its bounds, because they may depend on input sizes.
    """

    offset: Register
    size: Register


@frozen
class Symmetric:
    """A range of bytes of the symmetric arena, which ranks read and write directly.

    The arena has the same layout on all ranks. Its offsets start at 0, independent of those of
    `Arena`. `offset` and `size` are registers.
    """

    offset: Register
    size: Register


@frozen
class State:
    """Memory that belongs to the instance from its creation to its end; zero at first."""

    size: int


@frozen
class Dynamic:
    """Memory that an `Allocate` instruction takes from the pool allocator."""


@frozen
class Alias:
    """A part of another buffer, which a `View` instruction selects; invalid before it runs."""


Place: TypeAlias = Input | Output | Weight | Arena | State | Dynamic | Alias | Symmetric


@frozen
class Buffer:
    """A range of bytes.  `label` is a name for messages and for `tcc inspect`."""

    place: Place
    label: str = ""


@frozen
class Port:
    """An input or output as the caller sees it.

    `dims[i]` is the register with the size of dimension i.  The prologue writes the sizes of
    inputs, and checks compare them with the caller's arrays.  The sizes of an output are written
    before the output's `Allocate`.  The register of a constant size is written by one CONST only,
    so the size is known without a run.  `text` is the symbolic shape, for messages.  `state` is the
    input port whose array the output updates in place, or -1.
    """

    name: str
    dtype: DType
    dims: Registers
    text: str
    state: int = -1


# ---- instructions -------------------------------------------------------------------------------


@frozen
class Let:
    """`register[target] = op(a, b)`.

    `a` and `b` are registers, except that they are numbers for CONST, DIM and CAPACITY. RANK and
    SEED have no operands.
    """

    target: Register
    op: IntOp
    a: int = 0
    b: int = 0


@frozen
class ReadInt:
    """`register[target] = buffer[element]`; the buffer holds integers or bools of type `dtype`."""

    target: Register
    buffer: BufferId
    dtype: DType
    element: int = 0


@frozen
class Check:
    """Ends the run with an error unless `relation` holds between the registers `a` and `b`.

    The error has the text `message`, followed by the values of both registers.
    """

    relation: Relation
    a: Register
    b: Register
    message: str


@frozen
class Allocate:
    """Gives a `Dynamic` or `Output` buffer at least `size` bytes.

    With `keep`, the new memory begins with the buffer's old bytes, as growing scan outputs need it.
    For an `Output`, the instruction checks the caller's array or calls the caller's allocator.
    Every path allocates each output once, before it is written.
    """

    buffer: BufferId
    size: Register
    keep: bool = False


@frozen
class View:
    """Lets an `Alias` buffer begin `register[offset]` bytes after the start of buffer `base`."""

    buffer: BufferId
    base: BufferId
    offset: Register


@frozen
class Launch:
    """Runs the tiles `0 <= t < register[grid]` of kernel `kernel`, split over the threads.

    The kernel gets the addresses of `buffers`, the values of the registers `ints`, and the
    program's `scratch` bytes of memory, which are private to each thread.  The launch uses at most
    `register[grid] // n` threads, so that a thread has at least n tiles, and only the calling
    thread if that is less than two.  n is `register[least]`, or 1 if `least` is -1 or the register
    holds less than 1.

    `loc` is the launch's location in the model. Text and bytes of a program leave it out, and
    launches that differ in it alone are equal.
    """

    kernel: int
    grid: Register
    buffers: tuple[BufferId, ...]
    ints: Registers
    least: Register = -1
    loc: str = field(default="", compare=False)


@frozen
class TensorRef:
    """A buffer as a contiguous row-major array, for `CallOp`."""

    buffer: BufferId
    dtype: DType
    dims: Registers


@frozen
class CallOp:
    """Calls the C function `op` of runtime/src/ops (sort, top-k, NMS, ...).

    The C file documents the function's operands.  `results` are registers that the function writes.
    If the size of an output depends on data, a call of `<op>_count` with the same inputs and ints
    computes the size first.  The output of `thin` may start at the address of its input.
    """

    op: str
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    ints: tuple[int, ...]
    results: Registers = ()


@frozen
class Copy:
    """Copies `size` bytes; the two ranges are disjoint or the same range."""

    target: BufferId
    source: BufferId
    size: Register


@frozen
class Branch:
    """Runs `then` if the condition is true, else `otherwise`.

    The condition is the first byte of the buffer `condition`, a bool.  For a condition on sizes,
    `condition` is -1, and the condition is true unless the register `when` holds 0.
    """

    condition: BufferId
    then: Body
    otherwise: Body
    when: Register = -1


@frozen
class Loop:
    """Runs `body` for `counter = 0, 1, ...` while `counter < register[trips]` and `condition`.

    `condition` is a buffer with a bool, which is read before every trip, or -1 for no condition.
    After the loop the register `counter` holds the number of trips that ran.
    """

    trips: Register
    condition: BufferId
    counter: Register
    body: Body


@frozen
class PlanArena:
    """Plans an arena for buffers whose sizes depend on the inputs.

    Buffer i has `register[sizes[i]]` bytes.  Its live range begins at position `lives[3 * i]` and
    ends at position `lives[3 * i + 1]`, both included.  The instruction writes its offset, a
    multiple of 64, to `register[offsets[i]]`, and the size of the arena to `register[end]`.
    Buffers whose live ranges overlap get disjoint bytes.  If `lives[3 * i + 2]` is not -1, buffer i
    gets the offset of the buffer with this number, whose live range ends before that of buffer i
    begins.  Equal sizes give equal plans.
    """

    end: Register
    offsets: Registers
    sizes: Registers
    lives: tuple[int, ...]


@frozen
class Collective:
    """Starts a collective operation of all ranks of the instance's comm, or of a group of ranks.

    The operation is complete after a `Wait` with the same `ticket`.  Until then no other operation
    has the ticket, and no instruction reads or writes the memory of `send` and `receive`.

    `send` has a block for each rank in reduce_scatter and all_to_all, `receive` in all_gather and
    all_to_all; blocks are in the order of the ranks.  In all other cases a buffer is one block.
    `counts` are registers with numbers of elements.  A single register holds for all blocks.  The
    blocks of all_gather and all_to_all may differ in size; then there is a register for each block
    of `send`, followed by a register for each block of `receive`.  A rank receives from another
    rank as many elements as that rank sends to it.

    `ranks` is the number of ranks that take part; 0 allows any number if neither buffer has a block
    for each rank.  `reduction` is SUM for operations that do not reduce, and `root` is 0 for
    operations that do not broadcast.  If `group` is not -1, the operation runs among the ranks of
    each list of this `RankGroup`, and `root` is a position in the list.
    """

    kind: CollectiveKind
    reduction: Reduction
    send: BufferId
    receive: BufferId
    counts: Registers
    dtype: DType
    ranks: int
    root: int = 0
    ticket: int = 0
    group: int = -1


@frozen
class Wait:
    """Waits until the collective with this ticket, `send` and `receive` is complete.

    The same operations are in progress at the start and at the end of a loop's or branch's body. No
    operation is in progress at the end of the program.
    """

    ticket: int
    send: BufferId
    receive: BufferId


Instr: TypeAlias = (
    Let | ReadInt | Check | Allocate | View | Launch | CallOp | Copy | Branch | Loop | PlanArena
    | Collective | Wait
)  # fmt: skip
Body: TypeAlias = tuple[Instr, ...]


@frozen
class RankGroup:
    """A division of the comm's ranks into lists that run collectives independently.

    `members` are disjoint lists of ranks of equal length.  Every rank that runs the program is in a
    list and communicates with the ranks of this list only.  Its number within a collective is its
    position in the list.  A program that only some ranks run may omit the lists of other ranks.
    `name` is for messages.
    """

    name: str
    members: tuple[tuple[int, ...], ...]


@frozen
class Program:
    """The program of a model.

    `registers` is the number of registers, `scratch` the bytes of scratch memory per thread, and
    `arena` the register with the arena's size.  `kernels[n]` is the symbol of kernel n.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    registers: int
    buffers: tuple[Buffer, ...]
    kernels: tuple[str, ...]
    scratch: int
    arena: Register
    body: Body = field(default=())
    groups: tuple[RankGroup, ...] = ()


def prologue_length(program: Program) -> int:
    """Returns the number of instructions at the front of the body that are the prologue."""
    for number, instr in enumerate(program.body):
        at_entry = isinstance(instr, Let | Check | PlanArena) or (
            isinstance(instr, ReadInt) and isinstance(program.buffers[instr.buffer].place, Input)
        )
        if not at_entry:
            return number
    return len(program.body)


def constant_registers(program: Program) -> dict[int, int]:
    """Returns the values of the registers that CONST instructions write last, by register.

    Only instructions at the top level of the program count.
    """
    constants: dict[int, int] = {}
    for instr in program.body:
        if isinstance(instr, Let) and instr.op is IntOp.CONST:
            constants[instr.target] = instr.a
        elif isinstance(instr, Let):
            constants.pop(instr.target, None)
    return constants
