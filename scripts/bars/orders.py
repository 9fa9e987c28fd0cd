"""Limits for orders: no other order of launches needs less memory than the compiler's order.

The search shares no code with the compiler. It takes each program before results are placed over
operands. It assumes that every result that may overwrite an operand does so when the operand dies.
So no order of an artifact has a lower peak than the search counts. The search ends when it has
found a lower order, has tried all orders, or has used up its time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tcc.debug import Stopped
from tcc.driver import compile_model
from tcc.ir.program import (
    Allocate,
    Arena,
    CallOp,
    Copy,
    Instr,
    Launch,
    Let,
    Program,
    View,
    constant_registers,
)
from tcc.ir.program.operands import buffers_of, shared_memory, walk_instructions
from tcc.options import read_options
from tcc.passes import pipeline
from tcc.passes.memory.in_place import replaceable
from tcc.passes.tile.plan import Bound

from bars.figures import Figure, at_most, say
from models.build import DEFAULT_OUT, build
from models.manifest import manifest

SHARE = 0.97  # no order of steps may need less than this share of the compiler's arena
MAX_SETS = 4 << 20  # the search remembers at most this many sets of finished steps


@dataclass
class OrderCase:
    """A program before results are placed over operands, and the size of its arena in bytes.

    `results` has, for each kernel, the positions in its buffer list of the buffers that it writes.
    `pairs` has, for each kernel, pairs (position of an operand, position of a result that may
    overwrite it).
    """

    program: Program
    results: Sequence[Sequence[int]]
    pairs: Sequence[Sequence[tuple[int, int]]]
    arena: int = 0


@dataclass
class OrderStep:
    """An instruction with what the search needs.

    `touched` has the ids of the buffers that it reads or writes, `writes` the ids of those that it
    writes. `pairs` are pairs (operand, result that may overwrite it) of ids. `inside` is how many
    bytes the bodies of the instruction need. No step moves past a `fixed` step.
    """

    touched: set[int]
    writes: set[int]
    pairs: Sequence[tuple[int, int]]
    inside: int
    fixed: bool


def lowered(path: Path) -> OrderCase:
    """Returns the program of a model; `arena` is 0 if its size depends on inputs."""
    cases: list[OrderCase] = []
    update, plan = pipeline.update_in_place, pipeline.plan_arena

    def updated(program: Program, bounds: Sequence[Bound]) -> Any:
        kernels = [(bound.kernel, bound.group) for bound in bounds]
        pairs = [replaceable(kernel, group) for kernel, group in kernels]
        cases.append(OrderCase(program, [kernel.results for kernel, _ in kernels], pairs))
        return update(program, bounds)

    def planned(program: Program, planner: Any, *, shared: bool) -> Program:
        planned_program = plan(program, planner, shared=shared)
        cases[-1].arena = constant_registers(planned_program).get(planned_program.arena, 0)
        return planned_program

    options = read_options({"stop_after": "plan-arena"})
    with (
        patch.object(pipeline, "update_in_place", updated),
        patch.object(pipeline, "plan_arena", planned),
        tempfile.TemporaryDirectory(prefix="tcc-orders-") as folder,
        suppress(Stopped),
    ):
        compile_model(path, options, Path(folder) / "model.so")
    return cases[-1]


def steps_of(case: OrderCase, sizes: dict[int, int]) -> list[OrderStep]:
    """Returns a step for each instruction of the body, except Let, Allocate and View.

    `sizes` has the bytes of buffers in the arena by id.
    """
    program = case.program
    shared = shared_memory(program)
    body = [i for i in program.body if not isinstance(i, Let | Allocate | View)]
    named = [{b for i in walk_instructions([instr]) for b in buffers_of(i)} for instr in body]
    outside = [set[int]().union(*named[:n], *named[n + 1 :]) for n in range(len(body))]

    def home(buffer: int) -> int:
        return min(shared.get(buffer, (buffer,)))

    def step(instr: Instr, touched: set[int], elsewhere: set[int]) -> OrderStep:
        inner = list(walk_instructions([instr]))[1:]
        users = {b: [n for n, i in enumerate(inner) if b in buffers_of(i)] for b in touched}
        lives = [
            (b, positions[0], positions[-1])
            for b, positions in users.items()
            if positions and b not in elsewhere
        ]
        inside = max(
            sum(sizes.get(b, 0) for b, first, last in lives if first <= n <= last)
            for n in range(len(inner) + 1)
        )
        memory = {home(b) for b in (touched & elsewhere if inner else touched)}
        writes, pairs = memory, ()
        match instr:
            case Launch(kernel, _, buffers):
                writes = {home(buffers[n]) for n in case.results[kernel]}
                pairs = tuple((home(buffers[a]), home(buffers[b])) for a, b in case.pairs[kernel])
            case Copy(target):
                writes = {home(target)}
            case CallOp(op, inputs, outputs):
                writes = {home(ref.buffer) for ref in outputs}
                if op == "thin":
                    pairs = ((home(inputs[0].buffer), home(outputs[0].buffer)),)
        moves = isinstance(instr, Launch | Copy) or (
            isinstance(instr, CallOp) and instr.outputs and not instr.results
        )
        return OrderStep(memory, writes, pairs, inside, not moves)

    return list(map(step, body, named, outside))


class Search:
    """Searches the orders of steps; a state is the set of finished steps, one bit per step."""

    def __init__(self, case: OrderCase) -> None:
        registers = constant_registers(case.program)
        places = ((n, b.place) for n, b in enumerate(case.program.buffers))
        self.sizes = {n: registers[p.size] for n, p in places if isinstance(p, Arena)}
        self.steps = steps_of(case, self.sizes)
        self.users: dict[int, int] = {}
        for n, step in enumerate(self.steps):
            for buffer in step.touched:
                self.users[buffer] = self.users.get(buffer, 0) | 1 << n
        count = range(len(self.steps))
        self.needs = [sum(1 << m for m in range(n) if self._tied(m, n)) for n in count]
        self.dead: set[int] = set()

    def _tied(self, m: int, n: int) -> bool:
        a, b = self.steps[m], self.steps[n]
        return a.fixed or b.fixed or bool(a.writes & b.touched or b.writes & a.touched)

    def step(self, finished: int, live: int, n: int) -> tuple[int, int]:
        """Returns (bytes live during step `n`, bytes live after it).

        `finished` is the set of finished steps, and `live` the bytes that are live after them.
        """
        step, pending = self.steps[n], ~(finished | 1 << n)
        new = [b for b in step.touched if not self.users[b] & finished]
        gone = [b for b in step.touched if not self.users[b] & pending]
        placed_over = {b for a, b in step.pairs if a in gone and b in new and self._fits(a, b)}
        saved = sum(self.sizes[b] for b in placed_over)
        grown = live + sum(self.sizes.get(b, 0) for b in new)
        return grown - saved + step.inside, grown - sum(self.sizes.get(b, 0) for b in gone)

    def _fits(self, operand: int, result: int) -> bool:
        return self.sizes.get(operand, 0) >= self.sizes.get(result, 1)

    def below(self, limit: int, seconds: float) -> str:
        """Searches for an order whose peak is below `limit` bytes.

        Returns "found", "none" if there is no such order, or "open" if the time is up.
        """
        end, count = time.monotonic() + seconds, len(self.steps)
        stack = [(0, 0)]
        while stack:
            if time.monotonic() > end:
                return "open"
            finished, live = stack.pop()
            if finished in self.dead:
                continue
            if len(self.dead) < MAX_SETS:
                self.dead.add(finished)
            if finished.bit_count() == count:
                return "found"
            ready = (
                n for n in range(count) if not finished >> n & 1 and not self.needs[n] & ~finished
            )
            candidates = ((n, *self.step(finished, live, n)) for n in ready)
            choices = [(live_after, n) for n, high, live_after in candidates if high < limit]
            # If a step does not increase the live bytes, an order with it next is as good as any
            # other. So the search tries no other step here.
            free = [choice for choice in choices if choice[0] <= live]
            stack += [
                (finished | 1 << n, live_after)
                for live_after, n in sorted(free[:1] or choices, reverse=True)
            ]
        return "none"


def orders(folder: Path, seconds: float) -> Iterator[Figure]:
    """Yields how many models of the manifest have an order of steps that needs less memory.

    The memory must be below SHARE of the compiler's arena. The search may take `seconds` for each
    model.
    """
    del folder
    models: dict[str, list[str]] = {"found": [], "none": [], "open": []}
    for name in manifest():
        case = lowered(build(name, DEFAULT_OUT))
        verdict = Search(case).below(int(SHARE * case.arena), seconds) if case.arena else "none"
        say(f"orders: {name} {case.arena} {verdict}")
        models[verdict].append(name)
    note = f"of {sum(map(len, models.values()))}, {len(models['none'])} proved"
    less = ", ".join(models["found"])
    what = f"models with an order below {SHARE} of ours"
    yield at_most(what, len(models["found"]), 0, note=less or f"({note})")
