"""Results overwrite operands in a tile's scratch where that is safe and saves memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tcc.ir.expr.scalar import StageRef
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import as_int
from tcc.passes.derive.derive import derive
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.tile.cpu.alias_scratch import overlaid
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.cpu.scratch import resident_values
from tcc.passes.tile.plan import Bound
from tcc.schedule.cpu.core import CoreModel

from tests.lib.oracle.program.evaluate import evaluate_program
from tests.passes.derive.bilinear.products import FREE
from tests.passes.derive.bilinear.test_convolutions import Conv
from tests.passes.placing import place_graph

from .test_programs import inputs_of, lowered

WIDE = CoreModel(16, 32)


LARGE = Conv(high=23, wide=27, fused=True)
SMALL = Conv(high=15, wide=27, images=1, fused=True)  # two tiles, each of several blocks


def transformed(channels: int, filters: int, case: Conv = LARGE) -> Graph:
    """Returns a convolution as transforms and 36 matmuls between them, all in one kernel."""
    return derive(replace(case, channels=channels, filters=filters).graph(), FREE)


def bound_of(graph: Graph) -> Bound:
    program, table, _ = lower_program(place_graph(graph), CoreChooser(WIDE), lower_node)
    assert program.body
    return max(table.bounds, key=lambda b: sum(as_int(x.sizes[0]) or 0 for x in b.kernel.locals))


def scratch(graph: Graph) -> list[int]:
    """Returns the number of scratch elements of the kernel with the matmuls."""
    kernels = lowered(graph, WIDE)[1]
    return max(([as_int(b.sizes[0]) or 0 for b in k.locals] for k in kernels), key=sum)


def test_37_parts_hold_36_products_and_their_operands() -> None:
    (scratch_of_square,) = scratch(transformed(32, 32))
    scratch_of_wide = scratch(transformed(32, 48))
    assert scratch_of_square % (37 * 32) == 0
    assert scratch_of_wide == [
        scratch_of_square // 37 * 36,
        scratch_of_square // 37 * 36 // 32 * 48,
    ]


def test_results_are_those_of_the_graph() -> None:
    graph = transformed(16, 16, SMALL)
    program, kernels, weights = lowered(graph, WIDE)
    # The kernel with the matmuls has the most scratch.
    largest = max(kernels, key=lambda k: sum(as_int(b.sizes[0]) or 0 for b in k.locals))
    assert len(largest.locals) == 1
    inputs = inputs_of(graph, 1)
    (output,) = evaluate_program(program, kernels, [inputs[v.name] for v in graph.inputs], weights)
    (reference,) = evaluate_graph(graph, inputs).values()
    np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("channels", "filters"), [(16, 32), (32, 16), (20, 20)])
def test_parts_that_differ_or_are_no_lines_stay_apart(channels: int, filters: int) -> None:
    assert len(scratch(transformed(channels, filters))) == 2


def test_values_shared_by_tiles_and_reordered_loops_stay() -> None:
    bound = bound_of(transformed(32, 32))
    group, schedule = bound.group, bound.schedule
    resident = resident_values(group, schedule)
    assert overlaid(group, schedule, resident, ()) != resident
    assert overlaid(group, schedule, resident, (0,)) == resident
    nests = [
        replace(n, order=(*n.order[1:], n.order[0])) if n.stages == (1,) else n
        for n in schedule.nests
    ]
    reordered = replace(schedule, nests=tuple(nests))
    assert overlaid(group, reordered, resident, ()) == resident
    laid = overlaid(group, schedule, resident, ())
    assert laid[StageRef(0, 0)].start == 32
    assert laid[StageRef(0, 0)].buffer is laid[StageRef(1, 0)].buffer
