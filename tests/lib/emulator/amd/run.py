"""Runs launches: programs of steps, and strands of waves that execute them."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tests.lib.emulator.device import Launch
from tests.lib.emulator.faults import Fault

from . import control, forms, loads, matrix, packed, scalar, vector
from .code import Kernel
from .decode import Instruction, instructions
from .operands import Operands
from .shared import Shared
from .waves import ARCHS, Array, Step, Strand

FORMS = (control, loads, matrix, packed, scalar, vector)
_TOGETHER = 1 << 13  # Lanes that run together.


@dataclass(frozen=True)
class Program:
    """A kernel's steps and the registers that each step touches.

    `places` maps the byte of an instruction to its number.
    """

    kernel: Kernel
    instructions: tuple[Instruction, ...]
    steps: tuple[Step, ...]
    touched: tuple[frozenset[int], ...]
    places: dict[int, int]
    granule: int


@lru_cache(256)
def program(kernel: Kernel) -> Program:
    """Decodes a kernel; raises Unknown for the first instruction that the emulator lacks."""
    arch = ARCHS[kernel.arch]
    code = tuple(instructions(kernel.image, kernel.entry, kernel.arch))
    steps, touched = [], []
    for i in code:
        operands = Operands(i, arch)
        steps.append(forms.step(i, operands))
        touched.append(frozenset(operands.touched))
    shared = [i.name for i in code if i.name.startswith("ds_")]
    granule = 1 if any("8" in n.split("_")[2] for n in shared if "128" not in n) else 4
    if granule == 4 and any("16" in name for name in shared):
        granule = 2
    places = {i.at: n for n, i in enumerate(code)}
    return Program(kernel, code, tuple(steps), tuple(touched), places, granule)


class Machine:
    """A set of workgroups that run.

    The strand furthest behind runs first, so that parted waves meet again. With `rng`, the waves of
    a workgroup run separately in random order, with preloaded parameters where possible.
    """

    def __init__(
        self, found: Program, launch: Launch, blocks: list[int], parameters: int,
        rng: random.Random | None,
    ) -> None:  # fmt: skip
        kernel = found.kernel
        self.program, self._rng = found, rng
        self.memory = launch.memory.with_span(parameters, len(launch.parameters))
        arch = ARCHS[kernel.arch]
        self._per_group = -(-launch.threads // arch.lanes)
        if launch.threads > kernel.most_threads or launch.threads % arch.lanes:
            raise Fault(f"{launch.threads} threads where {kernel.most_threads} are the most")
        self.shared = Shared(len(blocks), kernel.shared + launch.shared, found.granule)
        strand = Strand(arch, np.arange(len(blocks) * self._per_group), self._per_group)
        strand.scalars[0] = parameters & 0xFFFFFFFF
        strand.scalars[1] = parameters >> 32
        strand.scalars[kernel.user_registers] = np.array(blocks, np.uint32)[strand.groups]
        lane = np.arange(arch.lanes, dtype=np.uint32)
        strand.vectors[0] = lane + arch.lanes * strand.members[:, None].astype(np.uint32)
        if rng is not None and kernel.preloaded[1]:
            self._preload(strand, kernel, launch.parameters)
        self._ready = [strand]
        self._parked: list[Strand] = []
        if rng is not None:
            self._ready = [strand.take(strand.members == n) for n in range(self._per_group)]

    def _preload(self, s: Strand, kernel: Kernel, parameters: bytes) -> None:
        first, count = kernel.preloaded
        words = np.frombuffer(parameters[4 * first : 4 * (first + count)], np.uint32)
        s.scalars[2 : 2 + count] = words[:, None]
        s.pc = self.program.places[kernel.entry + 256]

    # ---- requests of steps ----------

    def divides(self, s: Strand, taken: Array, place: int) -> bool:
        left, gone = s.take(~taken), s.take(taken)
        gone.pc = place
        self._ready += [left, gone]
        return True

    def waits(self, s: Strand) -> bool:
        self._parked.append(s)
        return True

    def ended(self, s: Strand) -> bool:
        return True

    # ---- running --------------------------------------------------------------------------------

    def run(self) -> None:
        while self._ready or self._parked:
            if not self._ready:
                self._release()
            elif self._rng is not None:
                s = self._ready.pop(self._rng.randrange(len(self._ready)))
                self._advance(s, -1)
            else:
                self._run_last()

    def _run_last(self) -> None:
        self._ready.sort(key=lambda s: s.pc)
        first = self._ready.pop(0)
        peers = [s for s in self._ready if s.pc == first.pc and s.pending == first.pending]
        if peers:
            self._ready = [s for s in self._ready if s not in peers]
            first = Strand.joined([first, *peers])
        behind = [s.pc for s in self._ready if s.pc > first.pc]
        self._advance(first, min(behind, default=-1))

    def _advance(self, s: Strand, stop: int) -> None:
        """Runs the strand until it stands at `stop` or a step takes it over."""
        steps, touched = self.program.steps, self.program.touched
        with np.errstate(all="ignore"):
            while s.pc != stop:
                at = s.pc
                if s.pending:
                    self._check(s, touched[at])
                s.pc = at + 1
                try:
                    if steps[at](self, s):
                        return
                except Fault as fault:
                    raise Fault(f"{fault} ({self._place(at)})") from None
                if stop >= 0 and s.pc > stop:
                    break
        self._ready.append(s)

    def _check(self, s: Strand, touched: frozenset[int]) -> None:
        for pending in s.pending:
            if not pending.registers.isdisjoint(touched):
                code = min(pending.registers & touched)
                name = f"v{code - 256}" if code >= 256 else f"s{code}"
                raise Fault(
                    f"{name} is used before the load that writes it was waited for"
                    f" ({self._place(s.pc)})"
                )

    def _place(self, number: int) -> str:
        i = self.program.instructions[number]
        return f"{i.name} at byte {i.at - self.program.kernel.entry} of {self.program.kernel.name}"

    def _release(self) -> None:
        """Releases all waves from their barriers, when every remaining wave waits at one."""
        for s in self._parked:
            s.epochs = s.epochs + 1
        places = {s.pc for s in self._parked}
        epochs = [np.unique(s.epochs) for s in self._parked]
        if self._rng is None and len(places) == 1 and all(len(e) == 1 for e in epochs):
            pending = [s.pending for s in self._parked]
            if len(self._parked) > 1 and all(p == pending[0] for p in pending):
                self._parked = [Strand.joined(self._parked)]
        self._ready, self._parked = self._parked, []


def run(kernel: Kernel, launch: Launch, seed: int | None = None) -> None:
    """Runs all blocks, in random order with a seed; raises Fault and Unknown."""
    code = program(kernel)
    rng = None if seed is None else random.Random(seed)
    numbers = list(range(launch.blocks))
    if rng is not None:
        rng.shuffle(numbers)
    room = ctypes.create_string_buffer(len(launch.parameters) + 64)
    address = -(-ctypes.addressof(room) // 64) * 64
    ctypes.memmove(address, launch.parameters, len(launch.parameters))
    step = max(_TOGETHER // launch.threads, 1)
    for begin in range(0, launch.blocks, step):
        Machine(code, launch, numbers[begin : begin + step], address, rng).run()
