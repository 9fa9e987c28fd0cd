"""The bar of orders: whether another order of launches needs less memory than the compiler's.

The search is none of the compiler's.  It looks at each program as it is before results go over
operands, and takes every result that may do so as if it did where its operand dies: so no order
of an artifact has a lower peak than the search sees.  It ends with a lower order, when it has seen
all orders, or when its time is up.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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

from bars.figures import Figure, at_most, say
from models.build import DEFAULT_OUT, build
from models.manifest import manifest

SHARE = 0.97  # of our arena: no order is to need less
MOST_SETS = 4 << 20  # of launches, that are remembered


@dataclass
class Case:
    """A program before results go over operands, and the arena that it came to; by kernel the
    positions of what launches write, and of operands over which a result may lie."""

    program: Program
    results: Sequence[Sequence[int]]
    pairs: Sequence[Sequence[tuple[int, int]]]
    arena: int = 0


@dataclass
class Step:
    """An instruction: the memory that it touches and writes, by numbers of buffers, the pairs of
    which the second may lie over the first, and the bytes that its bodies need for themselves.
    None passes a fixed one."""

    touched: set[int]
    written: set[int]
    pairs: Sequence[tuple[int, int]]
    inside: int
    fixed: bool


def lowered(path: Path) -> Case:
    """The program of a model; its arena is 0 where inputs decide sizes."""
    cases: list[Case] = []
    update, plan = pipeline.update_in_place, pipeline.plan_arena

    def updated(program, bounds):  # type: ignore[no-untyped-def]
        kernels = [(bound.kernel, bound.group) for bound in bounds]
        pairs = [replaceable(kernel, group) for kernel, group in kernels]
        cases.append(Case(program, [kernel.results for kernel, _ in kernels], pairs))
        return update(program, bounds)

    def planned(program, planner):  # type: ignore[no-untyped-def]
        found = plan(program, planner)
        cases[-1].arena = constant_registers(found).get(found.arena, 0)
        return found

    options = read_options({"stop_after": "plan-arena"})
    with (
        patch.object(pipeline, "update_in_place", updated),
        patch.object(pipeline, "plan_arena", planned),
        tempfile.TemporaryDirectory(prefix="tcc-orders-") as folder,
        suppress(Stopped),
    ):
        compile_model(path, options, Path(folder) / "model.so")
    return cases[-1]


def steps_of(case: Case, sizes: dict[int, int]) -> list[Step]:
    """The instructions that take time or that others may count on."""
    program = case.program
    shared = shared_memory(program)
    body = [i for i in program.body if not isinstance(i, Let | Allocate | View)]
    named = [{b for i in walk_instructions([instr]) for b in buffers_of(i)} for instr in body]
    outside = [set[int]().union(*named[:n], *named[n + 1 :]) for n in range(len(body))]

    def home(buffer: int) -> int:
        return min(shared.get(buffer, (buffer,)))

    def step(instr: Instr, touched: set[int], elsewhere: set[int]) -> Step:
        inner = list(walk_instructions([instr]))[1:]
        users = {b: [n for n, i in enumerate(inner) if b in buffers_of(i)] for b in touched}
        lives = [(b, at[0], at[-1]) for b, at in users.items() if at and b not in elsewhere]
        inside = max(
            sum(sizes.get(b, 0) for b, first, last in lives if first <= n <= last)
            for n in range(len(inner) + 1)
        )
        memory = {home(b) for b in (touched & elsewhere if inner else touched)}
        written, pairs = memory, ()
        match instr:
            case Launch(kernel, _, buffers):
                written = {home(buffers[n]) for n in case.results[kernel]}
                pairs = tuple((home(buffers[a]), home(buffers[b])) for a, b in case.pairs[kernel])
            case Copy(target):
                written = {home(target)}
            case CallOp(op, inputs, outputs):
                written = {home(ref.buffer) for ref in outputs}
                if op == "thin":
                    pairs = ((home(inputs[0].buffer), home(outputs[0].buffer)),)
        moves = isinstance(instr, Launch | Copy) or (
            isinstance(instr, CallOp) and instr.outputs and not instr.results
        )
        return Step(memory, written, pairs, inside, not moves)

    return list(map(step, body, named, outside))


class Search:
    """Orders of steps, by the sets of those that are done first, as bits."""

    def __init__(self, case: Case) -> None:
        known = constant_registers(case.program)
        places = ((n, b.place) for n, b in enumerate(case.program.buffers))
        self.sizes = {n: known[p.size] for n, p in places if isinstance(p, Arena)}
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
        return a.fixed or b.fixed or bool(a.written & b.touched or b.written & a.touched)

    def step(self, done: int, live: int, n: int) -> tuple[int, int]:
        """The bytes live at a step and behind it."""
        step, rest = self.steps[n], ~(done | 1 << n)
        new = [b for b in step.touched if not self.users[b] & done]
        gone = [b for b in step.touched if not self.users[b] & rest]
        over = {b for a, b in step.pairs if a in gone and b in new and self._fits(a, b)}
        spared = sum(self.sizes[b] for b in over)
        grown = live + sum(self.sizes.get(b, 0) for b in new)
        return grown - spared + step.inside, grown - sum(self.sizes.get(b, 0) for b in gone)

    def _fits(self, operand: int, result: int) -> bool:
        return self.sizes.get(operand, 0) >= self.sizes.get(result, 1)

    def below(self, most: int, seconds: float) -> str:
        """Whether an order keeps below `most` bytes: "found", "none", or "open" as time is up."""
        end, count = time.monotonic() + seconds, len(self.steps)
        stack = [(0, 0)]
        while stack:
            if time.monotonic() > end:
                return "open"
            done, live = stack.pop()
            if done in self.dead:
                continue
            if len(self.dead) < MOST_SETS:
                self.dead.add(done)
            if done.bit_count() == count:
                return "found"
            ready = (n for n in range(count) if not done >> n & 1 and not self.needs[n] & ~done)
            tried = ((n, *self.step(done, live, n)) for n in ready)
            ways = [(left, n) for n, high, left in tried if high < most]
            free = [way for way in ways if way[0] <= live]  # in nobody's way
            stack += [(done | 1 << n, left) for left, n in sorted(free[:1] or ways, reverse=True)]
        return "none"


def orders(folder: Path, seconds: float) -> Iterator[Figure]:
    """Models of the manifest for which the search finds an order below SHARE of our arena, with so
    many seconds for each."""
    del folder
    found: dict[str, list[str]] = {"found": [], "none": [], "open": []}
    for name in manifest():
        case = lowered(build(name, DEFAULT_OUT))
        verdict = Search(case).below(int(SHARE * case.arena), seconds) if case.arena else "none"
        say(f"orders: {name} {case.arena} {verdict}")
        found[verdict].append(name)
    note = f"of {sum(map(len, found.values()))}, {len(found['none'])} proved"
    less = ", ".join(found["found"])
    what = f"models with an order below {SHARE} of ours"
    yield at_most(what, len(found["found"]), 0, note=less or f"({note})")
