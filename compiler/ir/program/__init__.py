"""Program: the code that the host runs, one form for every target, interpreted by the C runtime.

A program is straight-line code with structured branches and loops over *registers* (int64, one per
integer value: sizes, offsets, trip counts) and *buffers* (byte ranges).  Kernels appear as indices
into the artifact's kernel table; there are no addresses.

    program  = registers, buffers, ports, body
    instr    = Let | ReadInt | Check | Allocate | View | Launch | CallOp | Copy | Branch | Loop
             | PlanArena | Collective | Wait

Semantics.  A register is written before it is read.  A buffer's address is fixed by its `Place`:
arena and symmetric ranges live as long as the run; `Dynamic` ones from their `Allocate` to the end
of the run or their next `Allocate`; `View`s are re-aimed by the `View` instruction.  Sizes and
offsets are bytes.  The host computes sizes and nothing else.

The *prologue* is the body's leading `Let`s, `Check`s, `PlanArena`s and `ReadInt`s of inputs.  It
writes all registers that the arenas need (size; offset and size of every range), and no later
instruction changes them.  After the prologue the arenas are allocated and their buffers get
addresses. Kernels may rely on 64-byte aligned arenas, state, scratch and dynamic memory, and on
weights as aligned as their offsets; the caller's arrays are aligned to one element.
`verify_program` proves all this.
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

    CONST = 0  # a is the immediate value
    DIM = 1  # a is the port (inputs in order), b the dimension, of the caller's array
    ADD = 2
    SUB = 3
    MUL = 4
    FLOORDIV = 5
    MOD = 6
    MIN = 7
    MAX = 8
    RANK = 9  # this process's number in the comm, from 0 on
    SEED = 10  # the run's seed, constant during a run; all 64 bits count


class Relation(Enum):
    """The relation that `Check` tests."""

    EQ = 0
    LE = 1
    LT = 2
    DIVIDES = 3  # a divides b


class CollectiveKind(Enum):
    """The operations that the ranks of a comm do together; tcc_comm.h defines a function for
    each."""

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
    """The combination of the ranks' elements, with the numbers of tcc_comm_reduction."""

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
    """A range of the planned arena; both are registers, so the plan may depend on sizes."""

    offset: Register
    size: Register


@frozen
class Symmetric:
    """A range of memory that lies at the same place on all ranks, for ranks to read and write each
    other's. Its ranges are planned separately, from offset 0 on; both fields are registers, as of
    `Arena`."""

    offset: Register
    size: Register


@frozen
class State:
    """Bytes that live as long as the instance; zero at creation."""

    size: int


@frozen
class Dynamic:
    """Memory from the pool allocator, by `Allocate`."""


@frozen
class Alias:
    """A part of another buffer, aimed by `View`; invalid before its `View`."""


Place: TypeAlias = Input | Output | Weight | Arena | State | Dynamic | Alias | Symmetric


@frozen
class Buffer:
    """A byte range.  `label` is for people (`tcc inspect`), never for the machine."""

    place: Place
    label: str = ""


@frozen
class Port:
    """An input or output as the caller sees it.

    `dims[i]` is the register with the size of dimension i.  For inputs it is the size that the
    body's checks demand, written in the prologue; for outputs the size that the run computed,
    written before the output's `Allocate`.  A fixed size is a register set by one CONST, so the
    port's shape is known without a run.  `text` shows the symbolic shape to people.  `state` names
    the input port whose caller array this output updates in place, or is -1.
    """

    name: str
    dtype: DType
    dims: Registers
    text: str
    state: int = -1


# ---- instructions -------------------------------------------------------------------------------


@frozen
class Let:
    """`register[target] = op(a, b)`; CONST and DIM have immediates, RANK and SEED no operands."""

    target: Register
    op: IntOp
    a: int = 0
    b: int = 0


@frozen
class ReadInt:
    """`register[target] = buffer[element]`, an integer or bool buffer of `dtype`."""

    target: Register
    buffer: BufferId
    dtype: DType
    element: int = 0


@frozen
class Check:
    """Ends the run with the user's error `message` (both values appended) unless a REL b."""

    relation: Relation
    a: Register
    b: Register
    message: str


@frozen
class Allocate:
    """Gives a `Dynamic` or `Output` buffer at least `size` bytes.

    With `keep`, its old bytes stay at its front (growing scan outputs).  For an `Output`, the
    caller's array is checked here, or its allocator called; every output is allocated once on every
    path before it is written.
    """

    buffer: BufferId
    size: Register
    keep: bool = False


@frozen
class View:
    """Aims an `Alias` buffer at `base + register[offset]` bytes."""

    buffer: BufferId
    base: BufferId
    offset: Register


@frozen
class Launch:
    """Runs the tiles `0 <= t < register[grid]` of kernel `kernel`, split over the threads.

    The kernel gets the buffers' addresses and the registers' values in this order, and `scratch`
    bytes of memory private to each thread.  A thread needs at least `register[least]` tiles, or one
    if `least` is -1 or the register holds less.  A launch runs on at most `register[grid]` divided
    by this number of threads; below two, it runs on the calling thread alone.
    """

    kernel: int
    grid: Register
    buffers: tuple[BufferId, ...]
    ints: Registers
    least: Register = -1


@frozen
class TensorRef:
    """A buffer as a contiguous row-major array, for `CallOp`."""

    buffer: BufferId
    dtype: DType
    dims: Registers


@frozen
class CallOp:
    """Calls the C function `op` of runtime/src/ops (sort, top-k, NMS, ...), which documents its
    operands.

    `results` are registers that the function writes.  For a data-dependent size, `<op>_count` with
    the same inputs and ints computes the size, and the outputs are allocated before `<op>` is
    called.  The output of `thin` may start at the address of its input.
    """

    op: str
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    ints: tuple[int, ...]
    results: Registers = ()


@frozen
class Copy:
    """Copies `size` bytes; ranges do not overlap, or are the same."""

    target: BufferId
    source: BufferId
    size: Register


@frozen
class Branch:
    """Runs `then` if the bool at the front of `condition` is true, else `otherwise`.

    For a condition on sizes, `condition` is -1 and `when` a register: `then` runs unless it holds
    0.
    """

    condition: BufferId
    then: Body
    otherwise: Body
    when: Register = -1


@frozen
class Loop:
    """Runs `body` for `counter = 0, 1, ...` while `counter < register[trips]` and `condition`.

    `condition` (a bool buffer, or -1) is read before every trip.  After the loop `counter` holds
    the number of trips that ran.
    """

    trips: Register
    condition: BufferId
    counter: Register
    body: Body


@frozen
class PlanArena:
    """Plans an arena for buffers whose sizes the inputs decide.

    Buffer i has `register[sizes[i]]` bytes and lives from position `lives[3 * i]` to position
    `lives[3 * i + 1]`, both included.  `register[offsets[i]]` becomes its offset, a multiple of 64.
    It is the offset of buffer `lives[3 * i + 2]`, dead before it, unless that is -1.  Buffers that
    live at one position get disjoint ranges below `register[end]`.  Equal sizes give equal plans.
    """

    end: Register
    offsets: Registers
    sizes: Registers
    lives: tuple[int, ...]


@frozen
class Collective:
    """Starts one collective operation of all ranks of the instance's comm, or of a group of ranks.

    `Wait` for `ticket` completes it.  Until then nothing else touches `send`, `receive` or memory
    that they share with other buffers, and no other operation has the ticket.  For reduce_scatter
    and all_to_all, `send` has `ranks` blocks, in the order of the ranks; for all_gather and
    all_to_all, `receive` has; otherwise they have one block.  `counts` are numbers of elements: one
    number for every block, or, for all_gather and all_to_all, the numbers of the blocks of `send`
    and then of `receive`.  A rank receives from another rank as many elements as that rank sends to
    it.

    `ranks` is the size that the comm must have; 0 stands for any size where neither buffer has
    several blocks.  `reduction` is SUM where nothing is reduced, and `root` 0 where nothing is
    broadcast.  With a `group` number, the operation is among the ranks of a list of the group;
    there are `ranks`, and `root` counts among them.
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
    """Returns when the collective with this ticket, `send` and `receive` is complete.

    A body ends with the same operations in progress with which it began, the program with none.
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
    """Ranks of the comm that have their own collectives.

    `members` are disjoint lists of ranks, all of one length.  A rank that runs the program is in
    one of them.  It takes part with the ranks of its list, numbered in the order of the list.  A
    program for some ranks may leave out the lists of other ranks.  `name` is for people.
    """

    name: str
    members: tuple[tuple[int, ...], ...]


@frozen
class Program:
    """A whole model for the host.  `kernels` names the symbols behind kernel numbers, in order."""

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
    """Returns the registers that the program's top-level code sets to constants, with their
    values."""
    constants: dict[int, int] = {}
    for instr in program.body:
        if isinstance(instr, Let) and instr.op is IntOp.CONST:
            constants[instr.target] = instr.a
        elif isinstance(instr, Let):
            constants.pop(instr.target, None)
    return constants
