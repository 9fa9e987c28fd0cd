"""Programs for single sizes and the general one become one, which chooses at the start of a run.

    general(seq), special(seq = 64)   ->   entry of general ; what the arena of special needs
                                           r = seq is 64
                                           branch r { special } else { general }

Requires programs of one model whose memory is planned, of which the specials fix sizes of inputs.
Establishes one program with the ports of the general one: all sizes are checked first, weights that
are stored alike lie there once, and the arena suits the largest need.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

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
from tcc.passes.program.lower_graph import KernelTable
from tcc.passes.program.lowered import Lowered
from tcc.record import record


def join_programs(general: Lowered, specials: Sequence[Lowered]) -> Lowered:
    """One program that runs the first of `specials` whose sizes are those of the run, or `general`.

    The kernels of all are in one table, those of equal structure once.
    """
    if not specials:
        return general
    joined = _Joined(general)
    for special in specials:
        joined.add(special)
    return joined.lowered()


class _Joined:
    """The general program, and what others add to it."""

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
            list(general.table.bounds), dict(general.table.numbers), list(general.table.locs)
        )
        self._kernels, self._alignments = list(general.kernels), list(general.alignments)
        self._sides: list[tuple[Register, Body]] = []

    def add(self, special: Lowered) -> None:
        """Takes `special` over: its numbers become those of here."""
        program = special.program
        moved = _Moved(
            self._registers,
            self._place_buffers(special),
            [self._kernel(special, n) for n in range(len(special.kernels))],
            self._late_sizes(program),
            [self._groups.setdefault(group, len(self._groups)) for group in program.groups],
        )
        self._registers += program.registers
        length = prologue_length(program)
        early = _needed(program)
        entry = [(n in early, moved.instr(i)) for n, i in enumerate(program.body[:length])]
        self._entry += [i for first, i in entry if first]
        self._arena = self._let(IntOp.MAX, self._arena, moved.register(program.arena))
        late = [i for first, i in entry if not first]
        body = (*late, *moved.body(program.body[length:]))
        self._sides.append((self._asked(program), body))

    def lowered(self) -> Lowered:
        """All as one."""
        body = self._rest
        for asked, side in reversed(self._sides):
            body = (Branch(-1, side, body, asked),)
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

    # ---- what a special brings ----------------------------------------------------------------

    def _place_buffers(self, special: Lowered) -> list[BufferId]:
        """Its buffers by number; the caller's arrays and equal weights are those that are there."""
        offsets = self._weights.adopt(special.weights)
        return [self._buffer(b, offsets) for b in special.program.buffers]

    def _buffer(self, buffer: Buffer, offsets: Mapping[int, int]) -> BufferId:
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
        found = self._table.number(special.table.bounds[number], special.table.locs[number])
        if found == len(self._kernels):
            self._kernels.append(special.kernels[number])
            self._alignments += special.alignments[number : number + 1]
        return found

    def _late_sizes(self, program: Program) -> dict[BufferId, list[tuple[Register, Register]]]:
        """Sizes of outputs that only the body knows: registers here, and those of `program`."""
        found: dict[BufferId, list[tuple[Register, Register]]] = {}
        for number, buffer in enumerate(program.buffers):
            if isinstance(buffer.place, Output):
                port = buffer.place.port
                pairs = zip(
                    self._program.outputs[port].dims, program.outputs[port].dims, strict=True
                )
                found[number] = [(here, there) for here, there in pairs if here not in self._fixed]
        return found

    def _asked(self, program: Program) -> Register:
        """A register that is not 0 where the run's inputs have the sizes that `program` fixes."""
        sizes = constant_registers(program)
        pairs: dict[Register, int] = {}
        for port, fixed in zip(self._program.inputs, program.inputs, strict=True):
            for given, size in zip(port.dims, fixed.dims, strict=True):
                if given not in self._constants and size in sizes:
                    pairs[given] = sizes[size]
        apart = self._let(IntOp.CONST, 0)
        for given, size in pairs.items():
            due = self._let(IntOp.CONST, size)
            more, less = self._let(IntOp.SUB, given, due), self._let(IntOp.SUB, due, given)
            apart = self._let(IntOp.ADD, apart, self._let(IntOp.MAX, more, less))
        one = self._let(IntOp.CONST, 1)
        return self._let(IntOp.SUB, one, self._let(IntOp.MIN, one, apart))

    def _let(self, op: IntOp, a: int, b: int = 0) -> Register:
        self._registers += 1
        self._entry.append(Let(self._registers - 1, op, a, b))
        return self._registers - 1


def _is_shared(place: Place) -> bool:
    """Whether buffers of equal place are one and the same."""
    return isinstance(place, Input | Output | Weight)


def _needed(program: Program) -> set[int]:
    """Which instructions of the prologue compute what the arena needs."""
    wanted = {program.arena}
    for buffer in program.buffers:
        if isinstance(buffer.place, Arena | Symmetric):
            wanted |= {buffer.place.offset, buffer.place.size}
    found: set[int] = set()
    for number in reversed(range(prologue_length(program))):
        instr = program.body[number]
        if defined_registers(instr) & wanted:
            found.add(number)
            wanted |= used_registers(instr)
    return found


# ---- numbers ------------------------------------------------------------------------------------


@record
class _Moved:
    """Rewrites instructions: registers by an offset, buffers, kernels and groups by tables.

    `late` are copies of sizes, by the number of the output's buffer, due before its `Allocate`.
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
        """An output's sizes as the caller will see them."""
        if isinstance(instr, Allocate):
            for here, there in self.late.get(instr.buffer, ()):
                yield Let(here, IntOp.MAX, self.register(there), self.register(there))

    def instr(self, instr: Instr) -> Instr:
        """`instr` with the numbers of the joined program."""
        moves: dict[str, Callable[[int], int]] = {
            "r": self.register,
            "b": self.buffers.__getitem__,
            "k": self.kernels.__getitem__,
            "g": self.groups.__getitem__,
        }
        return renumbered(instr, moves, self.body)
