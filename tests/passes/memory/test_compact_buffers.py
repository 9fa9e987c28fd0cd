"""Values of which a strided reader uses a part are stored in part where it is safe."""

from __future__ import annotations

import pytest
from tcc.ir.graph import Graph
from tcc.ir.program import Arena, CallOp, IntOp, Let, Program
from tcc.passes.memory.compact_buffers import compacted
from tcc.schedule.cpu.core import CoreModel

from tests.passes.fuse.models import MODELS, Model, strided_shortcut
from tests.passes.placing import place_graph
from tests.passes.tile.cpu.test_programs import lowered


def program_of(graph: Graph) -> Program:
    return lowered(graph, CoreModel(16, 32))[0]


def test_a_shortcut_keeps_its_elements_at_the_front_of_its_operand() -> None:
    """The tests of all programs check that the results stay the same."""
    program = program_of(strided_shortcut())
    numbers = {i.target: i.a for i in program.body if isinstance(i, Let) and i.op is IntOp.CONST}
    (call,) = (i for i in program.body if isinstance(i, CallOp) and i.op == "thin")
    old, new = (program.buffers[t.buffer].place for t in (*call.inputs, *call.outputs))
    assert isinstance(old, Arena)
    assert isinstance(new, Arena)
    assert numbers[old.offset] == numbers[new.offset]
    assert [numbers[d] for t in (*call.inputs, *call.outputs) for d in t.dims] == [
        *(2, 9, 7, 16),
        *(2, 5, 4, 16),
    ]
    assert call.ints == (1, 2, 2, 1)


def test_the_arena_is_smaller_than_the_live_bytes_without_compaction() -> None:
    wide, narrow, strided = (4 * 2 * n for n in (16 * 9 * 7, 8 * 10 * 8, 8 * 5 * 4))
    program = program_of(strided_shortcut())
    numbers = {i.target: i.a for i in program.body if isinstance(i, Let) and i.op is IntOp.CONST}
    assert numbers[program.arena] < wide + narrow + strided


@pytest.mark.parametrize(
    "graph",
    [strided_shortcut(stride=1), strided_shortcut(shown=True), MODELS["residual_block"]()],
    ids=["all is read", "the caller sees it", "the most is live elsewhere"],
)
def test_other_values_stay_whole(graph: Graph) -> None:
    assert not any(step.every for step in compacted(place_graph(graph)).steps)


def test_a_value_that_only_one_kernel_reads_stays_whole() -> None:
    m = Model("only_reader")
    wide = m.op("relu", m.conv(m.input("x", 1, 4, 9, 9), 16, 3, pad=1))
    graph = m.finish(m.op("relu", m.conv(wide, 8, 1, stride=2)))
    assert not any(step.every for step in compacted(place_graph(graph)).steps)
