"""Partition groups the nodes of small graphs as expected, and keeps its rules for every graph."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, captures
from tcc.ir.index import IndexLike, free_vars, symbol
from tcc.ir.types import BOOL, F32, tensor
from tcc.ops import OPS
from tcc.ops.algebra.activation import GeluAttrs
from tcc.ops.algebra.movement import ExpandAttrs
from tcc.ops.algebra.pool import PoolAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.algebra.window import ConvTransposeAttrs
from tcc.ops.composite.normalization import NormAttrs
from tcc.ops.control import IfAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.fuse.node_kinds import NodeKind, classify
from tcc.passes.fuse.partition import Group, partition
from tcc.passes.tile.cpu.plan import CoreChooser

from tests.passes.fuse.models import MODELS, Model, row_ranges, shared_heads
from tests.passes.layout.test_choose import planner
from tests.passes.placing import TYPICAL, place_graph


def names(graph: Graph) -> list[list[str]]:
    """Returns the ops of each group, in the order in which the groups run."""
    return [[n.op.name for n in g.members] for g in partition(graph, planner())]


def test_nothing_joins_an_end_or_completes_its_sums() -> None:
    graph = MODELS["conv_norm_relu"]()
    for end in graph.nodes:
        groups = partition(graph, planner(), ends=[end])
        (group_of_end,) = (g for g in groups if end in g.members)
        assert group_of_end.members == [end]


def last_axis(rank: int) -> AxisAttrs:
    return AxisAttrs(rank - 1)


# ---- epilogues and prologues --------------------------------------------------------------------


def test_convolution_norm_relu_and_residual_are_one_kernel() -> None:
    m = Model("residual")
    x, skip = m.input("x", 1, 3, 9, 9), m.input("skip", 1, 5, 9, 9)
    y = m.conv(x, 5, 3, pad=1)
    scaled = m.op("add", m.op("mul", y, m.weight(5, 1, 1)), m.weight(5, 1, 1))
    graph = m.finish(m.op("relu", m.op("add", scaled, skip)))
    assert names(graph) == [["conv", "mul", "add", "add", "relu"]]
    assert names(MODELS["conv_norm_relu"]()) == [["conv", "batch_normalization", "relu"]]


def test_a_transposed_convolution_is_one_kernel_with_its_readers() -> None:
    m = Model("up")
    attrs = ConvTransposeAttrs((2, 2), (1, 1), (1, 1), (1, 1), (0, 0), 1)
    up = m.op("conv_transpose", m.input("x", 1, 3, 4, 5), m.weight(3, 6, 4, 4), attrs=attrs)
    graph = m.finish(m.op("tanh", m.op("mul", up, m.weight(6, 1, 1))))
    assert names(graph) == [["conv_transpose", "mul", "tanh"]]


def test_slices_and_swapped_halves_join_their_readers() -> None:
    graph = MODELS["split_concat"]()
    assert names(graph) == [["split", "sigmoid"], ["split", "concat", "add"]]


def test_a_value_used_twice_in_the_epilogue_is_computed_once() -> None:
    """An explicit GELU reads the biased matmul in two places."""
    m = Model("gelu")
    x = m.input("x", symbol("n", 1), 12)
    biased = m.op("add", m.op("matmul", x, m.weight(12, 20)), m.weight(20))
    bell = m.op("erf", m.op("mul", biased, m.scalar(0.7)))
    half = m.op("mul", m.op("add", bell, m.scalar(1)), m.scalar(0.5))
    graph = m.finish(m.op("mul", biased, half))
    (group,) = partition(graph, TYPICAL)
    assert group.anchor is not None
    assert group.anchor.op.name == "matmul"
    assert len(group.members) == len(graph.nodes)


def test_scale_and_mask_join_the_softmax_that_reads_them() -> None:
    m = Model("masked")
    x, mask = m.input("x", 4, 12, 512, 512), m.input("mask", 4, 1, 512, 512, dtype=BOOL)
    masked = m.op("where", mask, m.op("mul", x, m.scalar(0.5)), m.scalar(-1e9))
    graph = m.finish(m.op("softmax", masked, attrs=last_axis(4)))
    assert names(graph) == [["mul", "where", "softmax"]]


@pytest.mark.parametrize("width", [4, 64])
def test_keys_are_transposed_first_where_a_product_would_read_across_them(width: int) -> None:
    m = Model("scores")
    q, k = m.input("q", 2, 128, width), m.input("k", 2, 128, width)
    graph = m.finish(m.op("matmul", q, m.transpose(k, 0, 2, 1)))
    assert names(graph) == [["transpose"], ["matmul"]]


@pytest.mark.parametrize(
    ("rows", "wide", "joined"),
    # Each call of a matmul kernel prepares all rows, and a range of many tiles has several calls.
    [(16, 64, False), (16, 4096, False), (2, 128, True)],
)
def test_a_cheap_norm_is_recomputed_for_each_matmul(rows: int, wide: int, joined: bool) -> None:
    m = Model("norms")
    x = m.input("x", rows, 64)
    norm = m.op("layer_normalization", x, m.weight(64), m.weight(64), attrs=NormAttrs(1))
    a, b = (m.op("matmul", norm, m.weight(64, wide)) for _ in range(2))
    groups = names(m.finish(a, m.op("relu", b)))
    norm_name = "layer_normalization"
    assert ([norm_name] in groups) is not joined
    assert sum(norm_name in group for group in groups) == (2 if joined else 1)


# Pointwise work joins the matmul that it completes, even if few columns leave vectors partly empty.
NARROW = {"conv_norm_relu", "joined_maps", "matmul_gelu"}


@pytest.mark.parametrize("name", sorted(MODELS.keys() - NARROW))
def test_no_partition_is_predicted_to_take_longer_than_a_kernel_for_each_node(name: str) -> None:
    graph, prices = MODELS[name](), planner()
    # Schedules of symbolic sizes are chosen for several sets of sizes, not for the typical set
    # alone.
    part = 0.03 if free_vars(*(n for v in graph.inputs for n in v.type.shape)) else 0.0
    assert seconds(graph, prices, ()) <= (1 + part) * seconds(graph, prices, graph.nodes)


def seconds(graph: Graph, prices: CoreChooser, ends: Collection[Node]) -> float:
    placed = place_graph(graph, model=prices, ends=ends)
    return sum(prices.seconds(k, placed.layouts, graph.constants) for k in placed.kernels)


def test_pointwise_work_does_not_join_a_product_that_reads_it() -> None:
    """A matmul reads each element of an operand once per row block, so even an addition would be
    repeated."""
    m = Model("factor")
    x = m.input("x", 8, 16)
    graph = m.finish(m.op("matmul", m.op("add", x, x), m.weight(16, 4)))
    assert names(graph) == [["add"], ["matmul"]]


def test_reshapes_and_transposes_join_producers_and_readers() -> None:
    m = Model("heads")
    x = m.input("x", 4, 6, 8)
    q = m.transpose(m.reshape(m.op("matmul", x, m.weight(8, 8)), 4, 6, 2, 4), 0, 2, 1, 3)
    k = m.transpose(m.reshape(m.op("matmul", x, m.weight(8, 8)), 4, 6, 2, 4), 0, 2, 3, 1)
    graph = m.finish(m.op("softmax", m.op("matmul", q, k), attrs=last_axis(4)))
    groups = names(graph)
    movement = {"reshape", "transpose"}
    assert not any(set(group) <= movement for group in groups)
    assert sum("matmul" in group for group in groups) == 3


@pytest.mark.parametrize("rows", [1, 12, 40])
def test_heads_that_share_keys_read_them_where_they_lie(rows: int) -> None:
    """The loop over heads is split at the shared heads, in softmax and sums too, so that no key is
    copied."""
    (group,) = partition(shared_heads(rows), TYPICAL)
    assert [a.op.name for a in group.anchors] == ["matmul", "softmax", "matmul"]


# ---- separate kernels ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [60, symbol("n", 2)], ids=["fixed", "open"])
def test_costly_work_is_not_repeated_for_a_larger_result(n: IndexLike) -> None:
    def spread(op: str) -> Graph:
        m = Model("spread")
        x, y = m.input("x", 800), m.input("y", n, 800)
        return m.finish(m.op("add", m.op(op, x), y))

    assert names(spread("atan")) == [["atan"], ["add"]]
    assert names(spread("neg")) == [["neg", "add"]]


@pytest.mark.parametrize("n", [128, symbol("n", 1)], ids=["fixed", "open"])
def test_a_norm_joins_the_product_before_it(n: IndexLike) -> None:
    m = Model("normed")
    x = m.op("add", m.op("matmul", m.input("x", n, 256), m.weight(256, 64)), m.input("r", n, 64))
    scale, bias = m.weight(64), m.weight(64)
    graph = m.finish(m.op("layer_normalization", x, scale, bias, attrs=NormAttrs(1, 1e-5)))
    assert names(graph) == [["matmul", "add", "layer_normalization"]]


@pytest.mark.parametrize("n", [60, symbol("n", 2)], ids=["fixed", "open"])
def test_costly_work_joins_a_reader_of_its_size(n: IndexLike) -> None:
    m = Model("chain")
    x = m.input("x", n, 8)
    graph = m.finish(m.op("add", m.op("tanh", m.op("exp", x)), x))
    assert names(graph) == [["exp", "tanh", "add"]]


def test_a_value_of_two_kernels_is_stored() -> None:
    m = Model("two")
    x = m.input("x", 8, 16)
    y = m.op("sigmoid", x)
    a = m.op("matmul", y, m.weight(16, 4))
    b = m.op("matmul", y, m.weight(16, 4))
    graph = m.finish(a, b)
    assert names(graph) == [["sigmoid"], ["matmul"], ["matmul"]]


def test_a_movement_of_two_kernels_joins_both() -> None:
    m = Model("moved")
    x = m.input("x", 16, 8)
    transposed = m.transpose(m.op("exp", x), 1, 0)
    graph = m.finish(m.op("relu", transposed), m.op("neg", transposed))
    assert names(graph) == [["exp"], ["transpose", "relu"], ["transpose", "neg"]]


def test_a_normalised_sum_is_stored_by_the_kernel_that_normalises_it() -> None:
    """The sum is no epilogue, so storing it in its first reader loses nothing."""
    m = Model("residual")
    sum_of_inputs = m.op("add", m.input("x", 300, 64), m.input("y", 300, 64))
    norm = m.op(
        "layer_normalization", sum_of_inputs, m.weight(64), m.weight(64), attrs=NormAttrs(1)
    )
    result = m.op("add", sum_of_inputs, m.op("matmul", m.op("exp", norm), m.weight(64, 64)))
    groups = names(m.finish(result, norm))
    assert groups[0] == ["add", "layer_normalization"]
    assert groups[-1] == ["matmul", "add"]


RANGES = ["layer_normalization", "reduce_max", "reciprocal", "mul", "round"]


def test_the_range_of_a_row_is_computed_by_the_kernel_that_rounds_the_row() -> None:
    """The kernel also stores the ranges and the norm, which later kernels read."""
    graph = row_ranges(96, columns=512, wide=512)
    first, *later = partition(graph, planner())
    assert [n.op.name for n in first.members] == RANGES
    producers = graph.producers()
    stored = {producers[v].op.name for v in first.results(graph, graph.users())}
    assert stored == {"round", "reduce_max", "layer_normalization"}
    assert [[n.op.name for n in g.members] for g in later].count(["matmul", "mul"]) == 2


def test_a_norm_joins_its_ranges_if_the_product_before_it_is_faster_alone() -> None:
    graph = row_ranges(128, depth=3072, columns=768, wide=512)
    assert names(graph)[:2] == [["matmul"], RANGES]


@pytest.mark.parametrize("is_first", [True, False])
def test_pointwise_work_joins_the_stage_between_two_products_that_reads_it(is_first: bool) -> None:
    m = Model("between")

    def spread() -> Value:
        return m.op("mul", m.input("rows", 4, 128, 1), m.weight(128))

    earlier = [spread()] if is_first else []
    scores = m.op("matmul", m.input("q", 4, 128, 64), m.input("k", 4, 64, 128))
    (factors,) = earlier or [spread()]
    weights = m.op("relu", m.op("mul", scores, factors))
    (group,) = names(m.finish(m.op("matmul", weights, m.input("v", 4, 128, 64))))
    assert sorted(group) == ["matmul", "matmul", "mul", "mul", "relu"]


def test_an_operand_of_the_second_of_two_products_is_computed_before() -> None:
    m = Model("values")
    scores = m.op("matmul", m.input("q", 4, 256, 64), m.input("k", 4, 64, 256))
    values = m.op("mul", m.input("v", 4, 256, 64), m.weight(64))
    graph = m.finish(m.op("matmul", m.op("relu", scores), values))
    assert names(graph) == [["mul"], ["matmul", "relu", "matmul"]]


def test_the_result_of_a_window_is_not_stored_by_its_first_reader() -> None:
    m = Model("pooled")
    window = PoolAttrs((2, 2), (1, 1), (0, 0), (1, 1), (3, 3))
    pooled = m.op("max_pool", m.input("x", 1, 8, 16, 16), attrs=window)
    graph = m.finish(m.op("relu", pooled), m.op("matmul", pooled, m.weight(8, 16)))
    assert names(graph) == [["max_pool"], ["relu"], ["matmul"]]


def test_outputs_are_stored_even_where_others_read_them() -> None:
    m = Model("outputs")
    x = m.input("x", 8, 16)
    y = m.op("add", m.op("matmul", x, m.weight(16, 16)), m.weight(16))
    z = m.op("relu", y)
    graph = m.finish(z, y)
    assert names(graph) == [["matmul", "add"], ["relu"]]
    users = graph.users()
    assert [g.results(graph, users) for g in partition(graph, TYPICAL)] == [(y,), (z,)]


def test_values_that_bodies_read_are_stored() -> None:
    b = GraphBuilder("captured")
    x, flag = b.input("x", tensor(F32, 4)), b.input("flag", tensor(BOOL))
    (y,) = b.add(OPS["exp"], [x])

    def body(name: str, op: str) -> Graph:
        inner = GraphBuilder(name, parent=b)
        return inner.finish(inner.add(OPS[op], [y]))

    attrs = IfAttrs(body("then", "neg"), body("otherwise", "relu"), (tensor(F32, 4),))
    (z,) = b.add(OPS["if"], [flag], attrs)
    (w,) = b.add(OPS["relu"], [y])
    graph = b.finish([z, w])
    assert captures(graph.nodes[1]) == (y,)
    assert names(graph) == [["exp"], ["if"], ["relu"]]


def test_unread_nodes_are_left_out() -> None:
    m = Model("unread")
    x = m.input("x", 4, 4)
    exponential = m.op("exp", x)
    m.op("matmul", m.op("neg", exponential), m.weight(4, 4))
    assert names(m.finish(exponential)) == [["exp"]]


def test_unread_results_of_a_node_are_not_stored() -> None:
    m = Model("parts")
    x = m.input("x", 4, 6)
    graph = MODELS["split_concat"]()
    users = graph.users()
    results = [v for g in partition(graph, TYPICAL) for v in g.results(graph, users)]
    assert all(v in graph.outputs or users.get(v) for v in results)
    mean = m.op("reduce_mean", x, attrs=ReduceAttrs((1,), True))
    spread = m.op("expand", mean, attrs=ExpandAttrs(x.type.shape))
    one = m.finish(m.op("sub", x, spread))
    (result,) = partition(one, TYPICAL)[-1].results(one, one.users())
    assert result is one.outputs[0]


# ---- rules for every graph ----------------------------------------------------------------------


@pytest.mark.parametrize("name", list(MODELS))
def test_groups_are_cones_that_can_run_in_order(name: str) -> None:
    graph = MODELS[name]()
    users = graph.users()
    groups = partition(graph, TYPICAL)
    ready: set[Value] = {*graph.inputs, *graph.constants}
    for group in groups:
        assert group.members[-1] is group.sink
        _check_cone(group, ready)
        ready.update(group.results(graph, users))
    assert ready >= set(graph.outputs)
    assert {n for g in groups for n in g.members} == set(graph.nodes)


def _check_cone(group: Group, ready: set[Value]) -> None:
    """Checks that members read stored values or each other, that all values lead to the sink, and
    that the anchors are known."""
    anchors = (NodeKind.REDUCTION, NodeKind.CONTRACTION)
    assert group.anchors == [n for n in group.members if classify(n) in anchors]
    inside: set[Value] = set()
    for node in group.members:
        assert {v for v in node.inputs if v} <= ready | inside
        inside.update(node.outputs)
    for node in group.members[:-1]:
        assert any(v in m.inputs for m in group.members for v in node.outputs)


def test_kinds_of_ops() -> None:
    def kind(name: str, *shapes: tuple[int, ...], attrs: object = None) -> NodeKind:
        m = Model("kind")
        inputs = [m.input(f"x{n}", *shape) for n, shape in enumerate(shapes)]
        return classify(m.finish(m.op(name, *inputs, attrs=attrs)).nodes[0])

    assert kind("matmul", (4, 4), (4, 4)) is NodeKind.CONTRACTION
    assert kind("reduce_sum", (4, 4), attrs=ReduceAttrs((1,), True)) is NodeKind.REDUCTION
    assert kind("reduce_sum_square", (4, 4), attrs=ReduceAttrs((1,), True)) is NodeKind.REDUCTION
    assert kind("softmax", (4, 4), attrs=last_axis(2)) is NodeKind.REDUCTION
    assert kind("gelu", (4,), attrs=GeluAttrs("none")) is NodeKind.POINTWISE
    assert kind("expand", (4, 1), attrs=ExpandAttrs(tensor(F32, 4, 3).shape)) is NodeKind.MAP
