"""Launches write results over operands where that is allowed, and results stay correct."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.ir.program import (
    Allocate,
    Arena,
    Buffer,
    BufferId,
    Copy,
    Instr,
    IntOp,
    Launch,
    Let,
    Output,
    Program,
)
from tcc.ir.program.operands import buffers_of
from tcc.ir.tile.verify import verify_kernel
from tcc.passes.memory.in_place import update_in_place
from tcc.passes.memory.plan_arena import plan_arena
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.plan import Bound
from tcc.schedule.cpu.core import CoreModel

from tests.lib.oracle.program.evaluate import evaluate_program
from tests.passes.fuse.models import Model
from tests.passes.placing import place_graph

COUNT = 100


def chain(*, read_again: bool = False, copied: bool = False) -> tuple[Program, list[Bound]]:
    """Returns a program that doubles x to a, a to b, and b to the output.

    `read_again`: a is read after b was written. `copied`: a is also copied to b.
    """
    m = Model("twice")
    x = m.input("x", COUNT)
    graph = m.finish(m.op("add", x, x))
    lowered_program, table, _ = lower_program(
        place_graph(graph), CoreChooser(CoreModel(16, 16)), lower_node
    )
    (launch,) = (i for i in lowered_program.body if isinstance(i, Launch))
    source, target = launch.buffers
    size = lowered_program.registers
    a, b = len(lowered_program.buffers), len(lowered_program.buffers) + 1
    body: list[Instr] = [i for i in lowered_program.body if not isinstance(i, Launch | Allocate)]
    body.append(Let(size, IntOp.CONST, 4 * COUNT))
    body += [_run(launch, source, a), _run(launch, a, b)]
    body += [Copy(b, a, size)] if copied else []
    body += [i for i in lowered_program.body if isinstance(i, Allocate)]
    body.append(_run(launch, a if read_again else b, target))
    arenas = (Buffer(Arena(-1, size), "a"), Buffer(Arena(-1, size), "b"))
    program = replace(
        lowered_program,
        buffers=(*lowered_program.buffers, *arenas),
        registers=size + 1,
        body=tuple(body),
        kernels=("k",),
    )
    return program, table.bounds


def _run(launch: Launch, source: BufferId, target: BufferId) -> Launch:
    return replace(launch, buffers=(source, target))


def arena_buffers(program: Program) -> int:
    """Returns the number of arena buffers that an instruction touches."""
    buffers = dict.fromkeys(b for i in program.body for b in buffers_of(i))
    return sum(isinstance(program.buffers[b].place, Arena) for b in buffers)


@pytest.mark.parametrize(
    ("program", "buffers", "factor"),
    [
        (chain(), 1, 8),
        (chain(read_again=True), 2, 4),
        (chain(copied=True), 2, 4),
    ],
    ids=["dies", "read again", "copied"],
)
def test_a_result_lies_over_an_operand_that_dies(
    program: tuple[Program, list[Bound]], buffers: int, factor: int
) -> None:
    merged, kernels = update_in_place(*program)
    assert arena_buffers(merged) == buffers
    assert kernels[0].in_place == (((0, 1),) if buffers == 1 else ())
    assert verify_kernel(kernels[0]) == ()
    x = np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)
    (output,) = evaluate_program(
        plan_arena(merged, arena_planner()), kernels, [x], np.zeros(0, np.uint8)
    )
    np.testing.assert_array_equal(output, factor * x)


def test_the_callers_arrays_stay_apart() -> None:
    merged, _ = update_in_place(*chain())
    outputs = [n for n, b in enumerate(merged.buffers) if isinstance(b.place, Output)]
    last = [i for i in merged.body if isinstance(i, Launch)][-1]
    assert last.buffers[1] in outputs
    assert last.buffers[0] not in outputs


def test_operands_that_functions_made_do_not_share_a_buffer() -> None:
    m = Model("sum")
    x, y = m.input("x", 4, 4), m.input("y", 4, 4)
    factor = m.op("add", m.op("cholesky", x), m.op("cholesky", y))
    graph = m.finish(m.op("cholesky", factor))
    program, table, _ = lower_program(
        place_graph(graph), CoreChooser(CoreModel(16, 16)), lower_node
    )
    merged, _ = update_in_place(program, table.bounds)
    (launch,) = (i for i in merged.body if isinstance(i, Launch))
    first, second, total = launch.buffers
    assert first != second
    assert total in (first, second)
