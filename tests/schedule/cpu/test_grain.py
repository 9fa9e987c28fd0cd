"""Symbolic sizes get as many tiles per thread as known sizes, at all sizes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import inf, prod

import pytest
from tcc.ir.expr import extent
from tcc.ir.graph import Graph
from tcc.ir.index import Index, IndexLike, const, evaluate, free_vars, symbol
from tcc.ir.program import Instr, IntOp, Let
from tcc.ir.program.arithmetic import let_values
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.program.lower_sizes import SizeRegisters
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.plan import PlannedKernel
from tcc.schedule.cpu.core import CoreModel

from tests.passes.fuse.models import Model
from tests.passes.placing import place_graph
from tests.passes.tile.cpu.test_plan import plans

PLANNER = CoreChooser(CoreModel(16, 32))
SIZES = (0, 1, 3, 77, 4096, 1 << 20, 1 << 31, 1 << 62)


def softmax(n: IndexLike) -> Graph:
    m = Model("softmax")
    return m.finish(m.op("softmax", m.input("x", 64, n), attrs=AxisAttrs(1)))


def planes(n: IndexLike) -> Graph:
    m = Model("planes")
    return m.finish(m.op("reduce_sum", m.input("x", 64, n, n), attrs=ReduceAttrs((1, 2), False)))


def product(n: IndexLike) -> Graph:
    """Returns rows of a known length, each multiplied by a square matrix."""
    m = Model("product")
    return m.finish(m.op("matmul", m.input("x", 128, n), m.input("y", n, n)))


def apart(n: IndexLike) -> Graph:
    """Returns maxima over n + 7 columns, so that the extent of a loop is no product."""
    m = Model("apart")
    x = m.op("exp", m.input("x", 64, n + 7))
    return m.finish(m.op("reduce_max", x, attrs=ReduceAttrs((1,), False)))


GRAPHS = (softmax, planes, product, apart)


def threads(graph: Graph, n: int) -> Fraction:
    """Returns how many threads get enough work at size `n`, in the kernel that gets the most."""
    threads_at_sizes = []
    for plan in plans(graph):
        units = prod(int(evaluate(extent(v), {"n": n})) for v in plan.bound.kernel.axes)
        threads_at_sizes.append(Fraction(units, value(least_units(plan), n)))
    return max(threads_at_sizes)


def least_units(plan: PlannedKernel) -> Index:
    return PLANNER.least_units(plan.bound) or const(1)


def value(index: Index, n: int) -> int:
    """Returns the run-time value of an index; fails if a register cannot hold a number."""
    out: list[Instr] = [Let(0, IntOp.CONST, n)]
    registers = SizeRegisters()
    registers.bind("n", registers.fresh())
    target = registers.load(index, out)
    return let_values(out, {})[target]


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("n", [1, 3, 7, 28, 77, 199])
def test_symbolic_sizes_get_the_threads_of_fixed_sizes(
    graph: Callable[[IndexLike], Graph], n: int
) -> None:
    opened, fixed = threads(graph(symbol("n", 1)), n), threads(graph(n), n)
    assert min(fixed, 8) / 2 <= opened <= max(fixed * 2, 1)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_run_can_compute_the_number_at_all_sizes(graph: Callable[[IndexLike], Graph]) -> None:
    (plan,) = plans(graph(symbol("n", 0)))
    least = least_units(plan)
    assert free_vars(least)
    last = inf
    for n in SIZES:
        assert 1 <= value(least, n) <= last
        last = value(least, n)
    assert last == 1


@pytest.mark.parametrize("graph", [softmax, planes])
def test_a_part_of_a_vector_is_worth_as_much_as_all_of_it(
    graph: Callable[[IndexLike], Graph],
) -> None:
    opened = graph(symbol("n", 0))
    placed, planner = place_graph(opened), CoreChooser(CoreModel(16, 32, masked=True))
    (step,) = placed.steps
    assert step.kernel is not None
    least = least_units(planner.plan(step.kernel, placed.layouts, opened.constants))
    full = 16 if graph is softmax else 4
    assert value(least, 1) == value(least, full) > value(least, 4 * full)
