"""Concatenations without a kernel: which qualify, where their operands lie, and correct results in
every form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tcc.ir.graph import Graph, Value
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import Index, as_index, symbol
from tcc.ir.layout import Layout, part_of, row_major
from tcc.ops.algebra.movement import ConcatAttrs, SliceAttrs
from tcc.passes.graph.nest_concats import nest_concats
from tcc.passes.layout import assign as layouts_module
from tcc.passes.layout.assign import Placed
from tcc.passes.program.lower_graph import halo_widths
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.runtime.module import Module
from tcc.schedule.cpu.core import CoreModel

from tests.passes.fuse.models import MODELS, Model
from tests.passes.placing import place_graph
from tests.passes.tile.cpu.test_programs import check, inputs_of, lowered

Compiled = Callable[[Graph], Module]
CHANNELS = ConcatAttrs(1)
JOINED = [name for name in MODELS if name.startswith("joined")]


def kernels(placed: Placed) -> list[tuple[list[str], list[str]]]:
    """Returns the names of the values that each kernel reads (except constants) and stores."""
    constants = placed.graph.constants
    return [
        ([v.name for v in k.operands if v not in constants], [v.name for v in k.results])
        for k in (s.kernel for s in placed.steps)
        if k is not None
    ]


def skip(*, shown: bool = False) -> Graph:
    """Returns two convolutions, concatenated for a third; with `shown`, one of them is an
    output."""
    m = Model("skip")
    x = m.input("x", 1, 3, 6, 6)
    a, b = (m.op("relu", m.conv(x, n, 1)) for n in (4, 5))
    result = m.conv(m.op("concat", a, b, attrs=CHANNELS), 2, 3, pad=1)
    return m.finish(result, *([b] if shown else []))


def test_kernels_store_into_parts_of_the_result() -> None:
    placed = place_graph(skip())
    assert len(kernels(placed)) == 3
    (a, container), (b, _) = placed.containers.items()
    where = placed.layouts[container]
    assert halo_widths(container, where) == (0, 0, 1, 1, 1, 1, 0, 0)
    assert placed.layouts[a] == part_of(where, a.type.shape, 1, as_index(0))
    assert placed.layouts[b] == part_of(where, b.type.shape, 1, as_index(4))
    assert placed.layouts[b].sizes == where.sizes


def test_outputs_of_the_graph_are_copied() -> None:
    placed = place_graph(skip(shown=True))
    (output,) = placed.graph.outputs[1:]
    assert placed.layouts[output] == row_major(output.type.shape)
    assert ([output.name], ["concat.part1"]) in kernels(placed)
    assert len(kernels(placed)) == 4


def test_an_operand_has_one_place() -> None:
    """One value occurs in two concats, and twice in one concat."""
    m = Model("places")
    x = m.input("x", 1, 3, 6, 6)
    a, b, c = (m.conv(x, 16, 1) for _ in range(3))
    first = m.op("concat", a, b, a, attrs=CHANNELS)
    second = m.op("concat", c, a, attrs=CHANNELS)
    placed = place_graph(m.finish(m.conv(first, 2, 1), m.conv(second, 2, 1)))
    copies = [k for k in kernels(placed) if "part" in k[1][0]]
    assert copies == [([a.name], ["concat.part2"]), ([a.name], ["concat.1.part1"])]


def test_pointwise_operands_stay_one_kernel() -> None:
    """In a rotary embedding, no kernel computes the halves anyway."""
    m = Model("rotary")
    x, angle = m.input("x", 2, 64), m.input("angle", 2, 64)
    starts = (tuple(map(as_index, (0, n))) for n in (0, 32))
    shape = tuple(map(as_index, (2, 32)))
    low, high = (m.op("slice", x, attrs=SliceAttrs(s, (1, 1), shape)) for s in starts)
    rotated = m.op("concat", m.op("neg", high), low, attrs=CHANNELS)
    graph = m.finish(m.op("add", x, m.op("mul", rotated, angle)))
    assert [k[0] for k in kernels(place_graph(graph))] == [["x", "angle"]]


def test_many_small_copies_are_not_worth_it() -> None:
    m = Model("copies")
    x, *other_inputs = (m.input(f"x{n}", 1, 3, 4, 4) for n in range(9))
    concatenated = m.op("concat", m.conv(x, 2, 1), *other_inputs, attrs=CHANNELS)
    placed = place_graph(m.finish(m.op("exp", concatenated)))
    assert not placed.containers


def test_a_launch_of_a_gpu_is_worth_more_bytes() -> None:
    """The alternatives are two more launches, or a copy of 64 KiB."""
    m = Model("launches")
    x, *other_inputs = (m.input(f"x{n}", 1, 3, 32, 32) for n in range(3))
    concatenated = m.op("concat", m.conv(x, 16, 1), *other_inputs, attrs=CHANNELS)
    graph = m.finish(m.op("exp", concatenated))
    assert place_graph(graph).containers
    assert not place_graph(graph, model=BlockChooser()).containers


def test_states_and_sizes_that_data_decide_keep_their_kernels() -> None:
    m = Model("state")
    past, x = m.input("past", 4, 8), m.input("x", 2, 6)
    rows = m.op("matmul", x, m.weight(6, 8))
    tail = SliceAttrs(tuple(map(as_index, (2, 0))), (1, 1), tuple(map(as_index, (2, 8))))
    new = m.op("concat", m.op("slice", past, attrs=tail), rows, attrs=ConcatAttrs(0))
    graph = m.finish(new)
    assert place_graph(graph).containers
    assert not place_graph(replace(graph, aliases=((new, past),))).containers


def test_joined_outputs_are_written_in_place() -> None:
    m = Model("shown")
    x = m.input("x", symbol("n", 1), 3, 6, 6)
    concatenated = m.op("concat", m.conv(x, 4, 1), m.conv(x, 5, 1), attrs=CHANNELS)
    placed = place_graph(m.finish(concatenated))
    assert placed.layouts[concatenated] == row_major(concatenated.type.shape)
    assert len(kernels(placed)) == 2
    program, _, _ = lowered(placed.graph, CoreModel(16, 32))
    assert len(program.buffers) == len({b.label for b in program.buffers})


@pytest.mark.parametrize("name", JOINED)
def test_compiled_kernels_agree(name: str, compiled: Compiled) -> None:
    graph = MODELS[name]()
    module = compiled(graph)
    for size in (1, 5, 17):
        inputs = inputs_of(graph, size)
        outputs = module.run(inputs)
        for output, reference in evaluate_graph(graph, inputs).items():
            np.testing.assert_allclose(outputs[output], reference, rtol=0, atol=2e-5)


def _unshared(container: Layout, shape: tuple[Index, ...], axis: int, start: Index) -> Layout:
    return replace(part_of(container, shape, axis, start), shared=())


def _unmoved(container: Layout, shape: tuple[Index, ...], axis: int, _start: Index) -> Layout:
    return part_of(container, shape, axis, as_index(0))


@pytest.mark.parametrize("bug", [_unshared, _unmoved])
def test_bugs_in_the_layout_of_parts_are_seen(
    bug: Callable[..., Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = MODELS["joined_along_windows"]()
    check(graph, lowered(graph, CoreModel(16, 32)), 1)
    monkeypatch.setattr(layouts_module, "part_of", bug)
    with pytest.raises(AssertionError):
        check(graph, lowered(graph, CoreModel(16, 32)), 1)


# ---- nested concatenations ----------------------------------------------------------------------


def test_concats_are_built_on_those_before(
    read: Callable[..., Graph], agree: Callable[..., None]
) -> None:
    before = read("""\
graph g(%a : f32[1,2], %b : f32[1,3], %c : f32[1,4]) {
  %d = concat(%a, %b) {axis=1} : f32[1,5]
  %e = concat(%c, %a, %b) {axis=1} : f32[1,9]
  %f = concat(%c, %a, %b, %a, %b) {axis=1} : f32[1,14]
  %g = concat(%b, %a, %c) {axis=1} : f32[1,9]
  return %d, %e, %f, %g
}
""")
    after = nest_concats(before)
    input_names = [[v.name for v in n.inputs if v] for n in after.nodes]
    assert input_names == [["a", "b"], ["c", "d"], ["e", "d"], ["b", "a", "c"]]
    agree(before, after)
    assert nest_concats(after) is after


def test_growing_features_have_one_place_each() -> None:
    """In DenseNet, every layer concatenates all features so far."""
    m = Model("dense")
    features: list[Value] = [m.conv(m.input("x", 1, 3, 6, 6), 4, 1)]
    for _ in range(3):
        concatenated = (
            m.op("concat", *features, attrs=CHANNELS) if len(features) > 1 else features[0]
        )
        features.append(m.conv(m.op("relu", concatenated), 3, 3, pad=1))
    graph = m.finish(m.op("relu", m.op("concat", *features, attrs=CHANNELS)))
    placed = place_graph(nest_concats(graph))
    assert not [k for k in kernels(placed) if "part" in k[1][0]]
    assert len(placed.containers) == 6
    check(graph, lowered(nest_concats(graph), CoreModel(16, 32)), 1)
