"""The blocks of a launch: registers, shared memory, and strands with their program counters.

A strand is a set of warps (sometimes lanes) that run together. Branches divide strands; strands at
the same place join. The seed decides which strand runs next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tests.lib.emulator.device import Launch
from tests.lib.emulator.faults import Fault
from tests.lib.emulator.memory import UNSIGNED

from .order import Order
from .shared import Shared

if TYPE_CHECKING:
    from .program import Program

Array = np.ndarray[Any, np.dtype[Any]]
LANES = 32
_MOST = 20_000_000  # A set of blocks that executes more instructions does not end.


@dataclass(eq=False)
class Strand:
    """Warps `rows` at `pc`; `lanes` are the active lanes, or None for all.

    `bits` has a bit for each warp.
    """

    rows: Array
    pc: int
    lanes: Array | None = None
    bits: int = 0
    at: Any = None  # The index of the register rows, a slice where possible.

    def __post_init__(self) -> None:
        first, last = int(self.rows[0]), int(self.rows[-1])
        together = last - first + 1 == len(self.rows)
        self.at = slice(first, last + 1) if together else self.rows
        self.bits = sum(1 << int(row) for row in self.rows)


class Register:
    """The values of one register in all warps, and the warps and lanes that have written it."""

    __slots__ = ("_lanes", "known", "name", "value")

    def __init__(self, name: str, width: int, warps: int) -> None:
        self.name, self.known = name, 0
        self.value = np.zeros((warps, LANES), UNSIGNED[width] if width else np.bool_)
        self._lanes: Array | None = None

    def check(self, strand: Strand, active: Array | None) -> None:
        """Raises Fault if a lane reads a register that it has not written."""
        bits = [(self.known >> int(row)) & 1 for row in strand.rows]
        defined = np.broadcast_to(np.array(bits, np.bool_)[:, None], (len(bits), LANES))
        if self._lanes is not None:
            defined = defined | self._lanes[strand.rows]
        if not (defined if active is None else defined | ~active).all():
            raise Fault(f"register {self.name} is read before it is written")

    def write(self, strand: Strand, values: Array, active: Array | None) -> None:
        if active is None:
            self.value[strand.at] = values
            self.known |= strand.bits
            return
        self.value[strand.at] = np.where(active, values, self.value[strand.at])
        if strand.bits & ~self.known:
            if self._lanes is None:
                self._lanes = np.zeros(self.value.shape, np.bool_)
            self._lanes[strand.rows] |= active


Blocked: TypeAlias = "tuple[Strand, Callable[[], bool], str]"


@dataclass
class Machine:
    """Some blocks of a launch, from their first instruction to their last."""

    program: Program
    launch: Launch
    blocks: Sequence[int]
    parameters: int  # The address of the parameters.
    rng: random.Random
    registers: list[Register] = field(default_factory=list)
    ready: list[Strand] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    copies: list[Callable[[], None]] = field(default_factory=list)  # Pending copies.
    # Descriptions of the strands that wait at barriers.
    waits: list[Callable[[], list[str]]] = field(default_factory=list)
    spent: int = 0  # Executed instructions.
    # The state of barriers, groups of copies and other parts.
    state: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.warps = self.launch.threads // LANES
        total = self.warps * len(self.blocks)
        self.registers = [
            Register(name, width, total) for name, width in self.program.registers.items()
        ]
        self.block_of = np.repeat(np.arange(len(self.blocks)), self.warps)
        self.order = Order(len(self.blocks), self.warps)
        self.shared = Shared(self.launch.shared, len(self.blocks), self.order, self.program.grain)
        self.ready = [Strand(np.arange(total), 0)]
        self.leader = self.rng.randrange(LANES)  # `elect` may choose any lane.

    def run(self) -> None:
        with np.errstate(all="ignore"):
            while self.ready or self.blocked or self.copies:
                self._wake()
                self._step()
        self._end()

    def _end(self) -> None:
        self._assert_nobody_waits()
        for check in self.program.at_end:
            check(self)

    def _assert_nobody_waits(self) -> None:
        waits = {why for _, _, why in self.blocked} | {
            why for describe in self.waits for why in describe()
        }
        if waits:
            raise Fault(f"all warps wait: {'; '.join(sorted(waits))}")

    def _wake(self) -> None:
        still = []
        for strand, can, why in self.blocked:
            if can():
                self.ready.append(strand)
            else:
                still.append((strand, can, why))
        self.blocked = still

    def _step(self) -> None:
        """Runs a strand, or completes a copy."""
        if self.copies and (not self.ready or self.rng.random() < 0.3):
            self.copies.pop(self.rng.randrange(len(self.copies)))()
            return
        if not self.ready:
            self._assert_nobody_waits()
        if self.spent > _MOST:
            raise Fault(f"kernel {self.program.name} does not end")
        self._join()
        partial = [s for s in self.ready if s.lanes is not None]
        # Divided lanes meet again soonest if the strand furthest behind runs first.
        strand = min(partial, key=lambda s: s.pc) if partial else self.rng.choice(self.ready)
        self.ready.remove(strand)
        limit = min((s.pc for s in partial if s is not strand), default=1 << 30)
        is_last = not self.ready and not self.copies
        self.advance(strand, limit, _MOST if is_last or partial else self.rng.randrange(1, 400))

    def _join(self) -> None:
        by_place: dict[int, list[Strand]] = {}
        for strand in self.ready:
            by_place.setdefault(strand.pc, []).append(strand)
        if len(by_place) < len(self.ready):
            self.ready = [self._joined(pc, group) for pc, group in by_place.items()]

    def _joined(self, pc: int, group: list[Strand]) -> Strand:
        if len(group) == 1:
            return group[0]
        lanes = np.zeros((len(self.block_of), LANES), np.bool_)
        for strand in group:
            lanes[strand.rows] |= True if strand.lanes is None else strand.lanes
        return self.strand(lanes, pc)

    def strand(self, lanes: Array, pc: int) -> Strand:
        """Returns the strand of the given lanes of all warps."""
        rows = np.flatnonzero(lanes.any(axis=1))
        part = lanes[rows]
        return Strand(rows, pc, None if part.all() else part)

    def advance(self, strand: Strand, limit: int, steps: int) -> None:
        """Runs a strand until it waits, ends, divides, passes `limit`, or has executed `steps`."""
        code = self.program.code
        for _ in range(steps):
            self.spent += 1
            operation = code[strand.pc]
            strand.pc += 1
            try:
                gone = operation(self, strand)
            except Fault as fault:
                where = self.program.texts[strand.pc - 1]
                raise Fault(f"{fault}\n  at {where}\n  of kernel {self.program.name}") from None
            if gone:
                return
            if strand.pc >= limit:
                break
        self.ready.append(strand)

    def wait(self, strand: Strand, can: Callable[[], bool], why: str) -> bool:
        """Blocks the strand until `can()` is true."""
        self.blocked.append((strand, can, why))
        return True

    def divide(self, strand: Strand, taken: Array, target: int) -> bool:
        """Divides the strand: the lanes `taken` go on at `target`, the others at the next
        instruction."""
        active_lanes = np.ones(taken.shape, np.bool_) if strand.lanes is None else strand.lanes
        for part, pc in ((active_lanes & taken, target), (active_lanes & ~taken, strand.pc)):
            lanes = np.zeros((len(self.block_of), LANES), np.bool_)
            lanes[strand.rows] = part
            if part.any():
                self.ready.append(self.strand(lanes, pc))
        return True
