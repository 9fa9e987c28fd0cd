"""The operands of a contraction whose terms share scales are found."""

from __future__ import annotations

import pytest
from tcc.ir.expr import known_extent
from tcc.ir.tile.group import GroupStage
from tcc.ir.types import BF16, F32
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.quantize.precision import Precision
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.gpu.axes import factors
from tcc.schedule.nest import anchor, contraction_factors, of_pairs, plain_factors

from tests.passes.placing import place_graph
from tests.passes.quantize.test_level_pairs import PAIRS_OF_BITS, with_levels


def stage_of(precision: Precision, depth: int = 128) -> GroupStage:
    graph, _, _ = with_levels(3, depth, 512)
    planner = CoreChooser(CoreModel(16, 32))
    placed = place_graph(graph, precision)
    _, table, _ = lower_program(placed, planner, lower_node, precision)
    return anchor(table.bounds[-1].group)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_scale_belongs_to_the_sum_of_its_group(bits: int) -> None:
    stage = stage_of(PAIRS_OF_BITS[bits])
    pair = contraction_factors(stage)
    assert pair is not None
    assert pair.scale is not None
    assert [x.dtype for x in pair.operands] == [BF16, BF16]
    inner = pair.scaled_loops(stage)
    size = 1
    for loop in inner:
        size *= known_extent(loop) or 0
    assert size == 32
    assert inner == stage.reduce[-len(inner) :] != stage.reduce
    assert of_pairs(stage)


def test_without_pairs_a_scale_is_a_part_of_a_factor() -> None:
    stage = stage_of(Precision(bits=8))
    pair = contraction_factors(stage)
    assert pair is not None
    assert (pair, pair.scaled_loops(stage)) == (plain_factors(stage), ())
    assert [x.dtype for x in pair.operands] == [F32, F32]


def test_gpus_take_no_scale_apart() -> None:
    stage = stage_of(PAIRS_OF_BITS[8])
    assert factors(stage) == plain_factors(stage) != contraction_factors(stage)
