"""Joins the programs of buckets and the general program into one program, which chooses at its
start.

    general(seq), bucket(seq = 64)   ->   entry of general ; sizes that the bucket's arena needs
                                          r = (seq == 64)
                                          branch r { bucket } else { general }

A bucket is a choice of numbers for symbolic sizes of inputs, such as seq = 64; its program works
for these sizes only.  Requires programs of one model whose memory is planned.  Establishes one
program with the ports of the general program.  It checks all sizes first, stores weights with equal
layouts once, and has an arena for the largest program.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tcc.frozen import frozen
from tcc.ir.program import (
    Allocate,
    Arena,
    Body,
    Branch,
    Buffer,
    BufferId,
    Input,
    Instr,
    IntOp,
    Let,
    Output,
    Place,
    Program,
    Register,
    Symmetric,
    Weight,
    constant_registers,
    prologue_length,
)
from tcc.ir.program.operands import defined_registers, renumbered, used_registers
from tcc.passes.program.kernel_table import KernelTable
from tcc.passes.program.lowered import Lowered
from tcc.zipped import zip_equal


def join_programs(general: Lowered, specials: Sequence[Lowered]) -> Lowered:
    """Returns one program that runs the first of the buckets' programs `specials` that fits.

    A program fits if the run has its sizes.  If none does, `general` runs.  All kernels are in one
    table, where equal kernels are stored once.
    """
    if not specials:
        return general
    joining = _Joining(general)
    for special in specials:
        joining.add(special)
    return joining.lowered()


class _Joining:
    """The general program, to which the programs of buckets are added."""

    def __init__(self, general: Lowered) -> None:
        program = general.program
        length = prologue_length(program)
        self._general, self._program = general, program
        self._weights = general.weights
        self._entry, self._rest = list(program.body[:length]), program.body[length:]
        self._fixed = {r for i in self._entry for r in defined_registers(i)}
        self._constants = constant_registers(program)
        self._registers, self._arena = program.registers, program.arena
        self._buffers = list(program.buffers)
        self._groups = {group: number for number, group in enumerate(program.groups)}
        self._known = {b.place: n for n, b in enumerate(self._buffers) if _is_shared(b.place)}
        self._table = KernelTable(
            list(general.table.bounds),
            dict(general.table.numbers),
            list(general.table.locs),
            general.table.bodies,
        )
        self._kernels, self._alignments = list(general.kernels), list(general.alignments)
        self._branches: list[tuple[Register, Body]] = []

    def add(self, special: Lowered) -> None:
        """Adds the program of a bucket, with its registers, buffers and kernels renumbered."""
        program = special.program
        offsets = self._weights.adopt(special.weights)
        renumbering = _Renumbering(
            self._registers,
            [self._buffer(b, offsets) for b in program.buffers],
            [self._kernel(special, n) for n in range(len(special.kernels))],
            self._late_sizes(program),
            [self._groups.setdefault(group, len(self._groups)) for group in program.groups],
        )
        self._registers += program.registers
        length = prologue_length(program)
        early = _needed(program)
        entry = [(n in early, renumbering.instr(i)) for n, i in enumerate(program.body[:length])]
        self._entry += [i for is_early, i in entry if is_early]
        self._arena = self._let(IntOp.MAX, self._arena, renumbering.register(program.arena))
        late = [i for is_early, i in entry if not is_early]
        body = (*late, *renumbering.body(program.body[length:]))
        self._branches.append((self._size_condition(program), body))

    def lowered(self) -> Lowered:
        """Returns the joined program."""
        body = self._rest
        for condition, special in reversed(self._branches):
            body = (Branch(-1, special, body, condition),)
        program = replace(
            self._program,
            registers=self._registers,
            buffers=tuple(self._buffers),
            arena=self._arena,
            body=(*self._entry, *body),
            groups=tuple(self._groups),
        )
        return replace(
            self._general,
            program=program,
            kernels=tuple(self._kernels),
            table=self._table,
            alignments=tuple(self._alignments),
        )

    # ---- the parts of a bucket's program ---------------------------------------------------------

    def _buffer(self, buffer: Buffer, offsets: Mapping[int, int]) -> BufferId:
        """Returns the joined program's buffer for a buffer of a bucket's program.

        The caller's arrays, and weights that the joined program already has, get its existing
        buffers.
        """
        place = buffer.place
        if isinstance(place, Weight):
            place = Weight(offsets[place.offset], place.size)
        elif isinstance(place, Arena | Symmetric):
            offset, size = place.offset + self._registers, place.size + self._registers
            place = replace(place, offset=offset, size=size)
        if place in self._known:
            return self._known[place]
        self._buffers.append(replace(buffer, place=place))
        if _is_shared(place):
            self._known[place] = len(self._buffers) - 1
        return len(self._buffers) - 1

    def _kernel(self, special: Lowered, number: int) -> int:
        joined_number = self._table.number(special.table.bounds[number], special.table.locs[number])
        if joined_number == len(self._kernels):
            self._kernels.append(special.kernels[number])
            self._alignments += special.alignments[number : number + 1]
        return joined_number

    def _late_sizes(self, program: Program) -> dict[BufferId, list[tuple[Register, Register]]]:
        """Returns for each output's buffer the sizes that only the body of `program` computes.

        A size is a pair of registers: in the joined program, and in `program`.
        """
        late_sizes: dict[BufferId, list[tuple[Register, Register]]] = {}
        for number, buffer in enumerate(program.buffers):
            if isinstance(buffer.place, Output):
                port = buffer.place.port
                pairs = zip_equal(self._program.outputs[port].dims, program.outputs[port].dims)
                late_sizes[number] = [
                    (here, there) for here, there in pairs if here not in self._fixed
                ]
        return late_sizes

    def _size_condition(self, program: Program) -> Register:
        """Returns a register that is 1 if the run's inputs have the sizes of `program`, else 0."""
        sizes = constant_registers(program)
        pairs: dict[Register, int] = {}
        for port, fixed in zip_equal(self._program.inputs, program.inputs):
            for actual, size in zip_equal(port.dims, fixed.dims):
                if actual not in self._constants and size in sizes:
                    pairs[actual] = sizes[size]
        difference = self._let(IntOp.CONST, 0)
        for actual, size in pairs.items():
            due = self._let(IntOp.CONST, size)
            above = self._let(IntOp.SUB, actual, due)
            below = self._let(IntOp.SUB, due, actual)
            difference = self._let(IntOp.ADD, difference, self._let(IntOp.MAX, above, below))
        one = self._let(IntOp.CONST, 1)
        return self._let(IntOp.SUB, one, self._let(IntOp.MIN, one, difference))

    def _let(self, op: IntOp, a: int, b: int = 0) -> Register:
        self._registers += 1
        self._entry.append(Let(self._registers - 1, op, a, b))
        return self._registers - 1


def _is_shared(place: Place) -> bool:
    """Returns True for a place that all programs use: a caller's array or a weight."""
    return isinstance(place, Input | Output | Weight)


def _needed(program: Program) -> set[int]:
    """Returns the positions of the instructions that compute sizes and offsets of the arena.

    They are in the prologue: the instructions at the front of `program` that compute and check
    sizes.
    """
    registers = {program.arena}
    for buffer in program.buffers:
        if isinstance(buffer.place, Arena | Symmetric):
            registers |= {buffer.place.offset, buffer.place.size}
    numbers: set[int] = set()
    for number in reversed(range(prologue_length(program))):
        instr = program.body[number]
        if defined_registers(instr) & registers:
            numbers.add(number)
            registers |= used_registers(instr)
    return numbers


# ---- new numbers --------------------------------------------------------------------------------


@frozen
class _Renumbering:
    """Rewrites instructions of a bucket's program to the numbers of the joined program.

    `offset` is added to the numbers of registers.  `buffers`, `kernels` and `groups` (of ranks) map
    old numbers to new numbers.  `late` maps an output's buffer to pairs (register that the caller
    reads, register of the bucket's program): a size of the output, copied before its `Allocate`.
    """

    offset: int
    buffers: Sequence[BufferId]
    kernels: Sequence[int]
    late: Mapping[BufferId, Sequence[tuple[Register, Register]]]
    groups: Sequence[int]

    def register(self, register: Register) -> Register:
        return register + self.offset

    def body(self, body: Iterable[Instr]) -> Body:
        return tuple(new for instr in body for new in (*self._sizes(instr), self.instr(instr)))

    def _sizes(self, instr: Instr) -> Iterable[Instr]:
        """Yields copies of an output's sizes to the registers that the caller reads."""
        if isinstance(instr, Allocate):
            for here, there in self.late.get(instr.buffer, ()):
                yield Let(here, IntOp.MAX, self.register(there), self.register(there))

    def instr(self, instr: Instr) -> Instr:
        """Returns `instr` with the numbers of the joined program."""
        moves: dict[str, Callable[[int], int]] = {
            "r": self.register,
            "b": self.buffers.__getitem__,
            "k": self.kernels.__getitem__,
            "g": self.groups.__getitem__,
        }
        return renumbered(instr, moves, self.body)
