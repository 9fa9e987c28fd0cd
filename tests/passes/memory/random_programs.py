"""Random programs, and tagged memory on which planned programs run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tcc.backends.artifact.toolchain import planner_library
from tcc.ir.program import (
    Alias,
    Arena,
    Branch,
    Buffer,
    BufferId,
    Copy,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Place,
    PlanArena,
    Port,
    Program,
    Register,
    View,
)
from tcc.ir.types import F32
from tcc.runtime.planner import Life, Planner

UNIT = 64  # bytes that carry one tag


@dataclass
class Writer:
    """A builder of programs. A launch reads all its buffers but the last, and writes the last."""

    out: list[Instr] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    registers: int = 0
    sizes: list[Instr] = field(default_factory=list)
    known: dict[tuple[int, bool], Register] = field(default_factory=dict)

    def register(self) -> Register:
        self.registers += 1
        return self.registers - 1

    def const(self, value: int) -> Register:
        self.sizes.append(Let(self.register(), IntOp.CONST, value))
        return self.registers - 1

    def size(self, units: int, open_: bool = False) -> Register:
        """Returns a register of `units` times 64 bytes, times the input's size if `open_`."""
        if (units, open_) not in self.known:
            number = self.const(units * UNIT)
            if open_:
                dim, product = self.register(), self.register()
                self.sizes.append(Let(dim, IntOp.DIM, 0, 0))
                self.sizes.append(Let(product, IntOp.MUL, dim, number))
                number = product
            self.known[units, open_] = number
        return self.known[units, open_]

    def buffer(self, place: Place) -> BufferId:
        self.buffers.append(Buffer(place))
        return len(self.buffers) - 1

    def arena(self, units: int, open_: bool = False) -> BufferId:
        return self.buffer(Arena(-1, self.size(units, open_)))

    def launch(self, *buffers: BufferId) -> None:
        self.out.append(Launch(0, self.size(1), buffers, ()))

    def program(self) -> Program:
        one = self.const(1)
        port = Port("x", F32, (one,), "[1]")
        body = (*self.sizes, *self.out)
        return Program((port,), (), self.registers, tuple(self.buffers), ("k",), 0, -1, body)


class Memory:
    """Runs a planned program on memory that holds tags, and checks that each read of a buffer finds
    the last write to it."""

    def __init__(self, program: Program, dim: int, branches: random.Random) -> None:
        self.program, self.dim, self.branches = program, dim, branches
        self.values: dict[Register, int] = {}
        self.tags: dict[int, int] = {}
        self.wrote: dict[tuple[BufferId, int], int] = {}
        self.views: dict[BufferId, tuple[BufferId, int]] = {}
        self.count = self.peak = 0

    def run(self) -> int:
        self.body(self.program.body)
        assert self.peak <= self.values[self.program.arena]
        return self.values[self.program.arena]

    def body(self, body: Sequence[Instr]) -> None:
        for instr in body:
            match instr:
                case Let(target, op, a, b):
                    self.values[target] = self.let(op, a, b)
                case Launch(_, _, buffers):
                    for buffer in buffers[:-1]:
                        self.read(buffer)
                    self.write(buffers[-1])
                case Copy(target, source):
                    self.read(source)
                    self.write(target)
                case View(buffer, base, offset):
                    self.views[buffer] = (base, self.values[offset])
                case Branch(condition, then, otherwise):
                    self.read(condition)
                    self.body(then if self.branches.random() < 0.5 else otherwise)
                case Loop(trips, condition, counter, inner):
                    for trip in range(self.values[trips]):
                        if condition >= 0:
                            self.read(condition)
                        self.values[counter] = trip
                        self.body(inner)
                case PlanArena():
                    self.plan(instr)
                case _:
                    raise AssertionError(instr)

    def plan(self, node: PlanArena) -> None:
        """Plans by the greedy planner, as the runtime does."""
        spans = [node.lives[at : at + 3] for at in range(0, len(node.lives), 3)]
        lives = [
            Life(first, last + 1, max(self.values[size], 1), UNIT, over)
            for size, (first, last, over) in zip(node.sizes, spans, strict=True)
        ]
        arena = Planner(planner_library()).plan(lives, steps=0)
        self.values.update(zip(node.offsets, arena.offsets, strict=True))
        self.values[node.end] = arena.peak

    def let(self, op: IntOp, a: int, b: int) -> int:
        if op is IntOp.CONST:
            return a
        if op is IntOp.DIM:
            return self.dim
        x, y = self.values[a], self.values[b]
        return {IntOp.ADD: x + y, IntOp.MUL: x * y, IntOp.FLOORDIV: x // max(y, 1)}[op]

    def units(self, buffer: BufferId) -> list[tuple[tuple[BufferId, int], int]]:
        """Returns, for each unit of a buffer, (its owner, its place in memory)."""
        count, base, skip = None, buffer, 0
        while base in self.views:
            base, offset = self.views[base]
            count, skip = 1, skip + offset // UNIT  # views are one unit long
        place = self.program.buffers[base].place
        assert isinstance(place, Arena)
        start, size = self.values[place.offset], self.values[place.size]
        assert start % UNIT == 0
        self.peak = max(self.peak, start + size)
        units = range(skip, size // UNIT if count is None else skip + count)
        return [((base, n), start // UNIT + n) for n in units]

    def read(self, buffer: BufferId) -> None:
        for owner, unit in self.units(buffer):
            if owner in self.wrote:
                assert self.tags[unit] == self.wrote[owner], f"{owner} was overwritten"

    def write(self, buffer: BufferId) -> None:
        self.count += 1
        for owner, unit in self.units(buffer):
            self.tags[unit] = self.wrote[owner] = self.count


class Author:
    """Writes random programs in which every buffer is written before it is read."""

    def __init__(self, rng: random.Random, open_: bool) -> None:
        self.rng, self.open = rng, open_
        self.w = Writer()

    def program(self) -> Program:
        first = self.w.arena(1)
        self.w.launch(first)
        ready = self.body([first], 0)
        for buffer in ready:
            if self.rng.random() < 0.5:
                self.w.launch(buffer, self.fresh())
        return self.w.program()

    def fresh(self) -> BufferId:
        return self.w.arena(self.rng.randint(1, 4), self.open and self.rng.random() < 0.5)

    def some(self, ready: Sequence[BufferId]) -> list[BufferId]:
        return self.rng.sample(list(ready), self.rng.randint(1, min(3, len(ready))))

    def body(self, ready: list[BufferId], depth: int) -> list[BufferId]:
        ready = list(ready)
        for _ in range(self.rng.randint(1, 6)):
            kind = self.rng.choice(["new", "new", "new", "copy", "view", "loop", "scan", "branch"])
            if kind in ("loop", "scan", "branch") and depth < 2:
                ready += getattr(self, kind)(ready, depth)
            elif kind == "copy":
                self.w.out.append(Copy(self.rng.choice(ready), self.rng.choice(ready), 0))
            elif kind == "view":
                view = self.w.buffer(Alias())
                self.w.out.append(View(view, self.rng.choice(ready), self.w.const(0)))
                ready.append(view)
            else:
                target = self.fresh()
                self.w.launch(*self.some(ready), target)
                ready.append(target)
        return ready

    def nested(self, ready: list[BufferId], depth: int) -> tuple[list[Instr], list[BufferId]]:
        """Returns the instructions of a body, and the buffers that are written at its end."""
        outer, self.w.out = self.w.out, []
        inside = self.body(ready, depth + 1)
        instructions, self.w.out = self.w.out, outer
        return instructions, inside

    def loop(self, ready: list[BufferId], depth: int) -> list[BufferId]:
        """Adds a loop with a carried value, which is set before the loop, used in a trip, and set
        again at its end."""
        carried = self.fresh()
        self.w.launch(self.rng.choice(ready), carried)
        instructions, inside = self.nested([*ready, carried], depth)
        instructions.append(Launch(0, self.w.size(1), (*self.some(inside), carried), ()))
        trips = self.w.const(self.rng.randint(0, 3))
        condition = self.rng.choice([-1, *ready])
        self.w.out.append(Loop(trips, condition, self.w.register(), tuple(instructions)))
        return [carried]

    def scan(self, ready: list[BufferId], depth: int) -> list[BufferId]:
        """Adds a loop that stacks rows from every trip; nothing touches the stack before the
        loop."""
        trips = self.rng.randint(1, 4)
        stack, row = self.w.arena(trips), self.w.buffer(Alias())
        counter, offset = self.w.register(), self.w.register()
        instructions, inside = self.nested(ready, depth)
        unit = self.w.const(UNIT)
        instructions.append(Let(offset, IntOp.MUL, counter, unit))
        instructions.append(View(row, stack, offset))
        instructions.append(Launch(0, self.w.size(1), (*self.some(inside), row), ()))
        self.w.out.append(Loop(self.w.const(trips), -1, counter, tuple(instructions)))
        return [stack]

    def branch(self, ready: list[BufferId], depth: int) -> list[BufferId]:
        result = self.fresh()
        bodies = []
        for _ in range(2):
            instructions, inside = self.nested(ready, depth)
            instructions.append(Launch(0, self.w.size(1), (*self.some(inside), result), ()))
            bodies.append(tuple(instructions))
        self.w.out.append(Branch(self.rng.choice(ready), bodies[0], bodies[1]))
        return [result]
