"""The memory plan is safe for random programs on tagged memory and slots of symbolic sizes, and its
peaks equal a search."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcc.backends.artifact.planner import arena_planner
from tcc.ir.program import (
    Alias,
    Arena,
    BufferId,
    Input,
    IntOp,
    Let,
    Program,
    ReadInt,
    View,
    prologue_length,
)
from tcc.ir.program.verify import verify_program
from tcc.ir.types import I64
from tcc.passes.memory.plan_arena import plan_arena

from .random_programs import UNIT, Author, Memory, Writer


@pytest.mark.parametrize("open_", [False, True])
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_no_buffer_is_overwritten_while_it_is_needed(open_: bool, seed: int) -> None:
    planned = plan_arena(Author(random.Random(seed), open_).program(), arena_planner())
    verify_program(planned)
    for dim in (1, 3):
        for run in range(2):
            Memory(planned, dim, random.Random(run)).run()


# ---- peaks --------------------------------------------------------------------------------------


def straight(steps: Sequence[tuple[int, Sequence[int]]]) -> Program:
    """Returns a program with one buffer per step: (size in units, steps that it reads)."""
    writer = Writer()
    for size, sources in steps:
        writer.launch(*sources, writer.arena(size))
    return writer.program()


def spans(steps: Sequence[tuple[int, Sequence[int]]]) -> list[tuple[int, int, int]]:
    return [
        (size, n, max([n, *(m for m, (_, read) in enumerate(steps) if n in read)]))
        for n, (size, _) in enumerate(steps)
    ]


def best_peak(steps: Sequence[tuple[int, Sequence[int]]]) -> int:
    """Returns the least peak of any order in which buffers take the lowest free place."""
    best = sum(size for size, _ in steps)
    for order in permutations(spans(steps)):
        placed: list[tuple[int, int, int, int]] = []
        for size, first, last in order:
            busy = [(o, o + s) for o, s, f, to in placed if f <= last and first <= to]
            starts = [0, *(end for _, end in busy)]
            free = (a for a in starts if all(a + size <= b or a >= e for b, e in busy))
            placed.append((min(free), size, first, last))
        best = min(best, max(o + s for o, s, _, _ in placed))
    return best


def peak(program: Program) -> int:
    return Memory(plan_arena(program, arena_planner()), 1, random.Random(0)).run() // UNIT


@pytest.mark.parametrize(
    ("steps", "least"),
    [
        ([(4, []), (4, [0]), (4, [1]), (4, [2])], 8),
        ([(1, []), (8, [0]), (1, [1]), (8, [2])], 9),
        ([(2, []), (3, [0]), (4, [0, 1]), (5, [2])], 9),
        ([(3, []), (3, []), (3, []), (3, [0, 1, 2])], 12),
        ([(1, []), (5, []), (4, [0, 1]), (1, [0, 1]), (4, [1, 3])], 10),  # 11 by size alone
    ],
)
def test_chains_and_fans_take_the_least_memory(
    steps: list[tuple[int, list[int]]], least: int
) -> None:
    assert best_peak(steps) == least
    assert peak(straight(steps)) == least


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_peaks_of_small_programs(rng: random.Random) -> None:
    steps = [(rng.randint(1, 5), rng.sample(range(n), rng.randint(0, min(n, 2)))) for n in range(5)]
    assert peak(straight(steps)) == best_peak(steps)


# ---- particular lives ---------------------------------------------------------------------------


def offsets(program: Program, dim: int = 1) -> Mapping[BufferId, int]:
    memory = Memory(program, dim, random.Random(0))
    memory.run()
    places = {n: b.place for n, b in enumerate(program.buffers)}
    return {n: memory.values[p.offset] for n, p in places.items() if isinstance(p, Arena)}


def test_a_view_keeps_its_base() -> None:
    w = Writer()
    base, view, inner = w.arena(2), w.buffer(Alias()), w.buffer(Alias())
    other, last = w.arena(2), w.arena(1)
    w.launch(base)
    w.out.append(View(view, base, w.const(0)))
    w.out.append(View(inner, view, w.const(0)))
    w.launch(other)
    w.launch(inner, other, last)
    at = offsets(plan_arena(w.program(), arena_planner()))
    assert len({at[base], at[other], at[last]}) == 3


def test_symbolic_sizes_take_the_live_bytes() -> None:
    w = Writer()
    chain = [w.arena(1, open_=True) for _ in range(4)]
    odd = w.arena(3, open_=True)
    w.launch(chain[0])
    for a, b in pairwise(chain):
        w.launch(a, b)
    w.launch(chain[-1], odd)
    planned = plan_arena(w.program(), arena_planner())
    verify_program(planned)
    for dim in (1, 5, 1000):
        assert Memory(planned, dim, random.Random(0)).run() == (1 + 3) * dim * UNIT
    at = offsets(planned, dim=0)
    assert at[odd] != at[chain[-1]], "an empty buffer has an address of its own"


def test_a_buffer_that_nothing_touches_takes_no_memory() -> None:
    w = Writer()
    buffer = w.arena(1)
    w.arena(1000)
    w.arena(1000, open_=True)
    w.launch(buffer)
    planned = plan_arena(w.program(), arena_planner())
    verify_program(planned)
    assert Memory(planned, 1, random.Random(0)).run() == UNIT


def test_sizes_come_before_all_work() -> None:
    """A size that is computed between launches moves to the entry; a data-dependent size stays."""
    w = Writer()
    source, result = w.arena(1), w.arena(1)
    w.launch(source)
    given_size = w.buffer(Input(0))
    read, late = w.register(), w.register()
    w.out.append(ReadInt(read, given_size, I64))
    two = w.register()
    w.out += [Let(two, IntOp.CONST, 2), Let(late, IntOp.MUL, read, two)]
    w.launch(source, result)
    planned = plan_arena(w.program(), arena_planner())
    length = prologue_length(planned)
    entry = [i.target for i in planned.body[:length] if isinstance(i, Let)]
    assert two in entry
    assert late not in entry
    places = [b.place for b in planned.buffers if isinstance(b.place, Arena)]
    assert all(p.offset in entry and p.size in entry for p in places)
    order = [i.target for i in planned.body if isinstance(i, Let | ReadInt)]
    assert order.index(late) > order.index(read)


def test_planning_is_deterministic() -> None:
    program = Author(random.Random(5), True).program()
    assert plan_arena(program, arena_planner()) == plan_arena(replace(program), arena_planner())
