"""The search improves the storage orders between kernels where the rule is worse, and moves linked
values together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import as_int, const, free_vars, symbol
from tcc.ir.layout import Layout
from tcc.ir.types import BF16
from tcc.ops.algebra.activation import GeluAttrs
from tcc.ops.algebra.movement import ConcatAttrs
from tcc.ops.algebra.pad import PadAttrs
from tcc.ops.algebra.pool import PoolAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.composite.normalization import NormAttrs
from tcc.passes.layout import choose as module
from tcc.passes.layout.assign import Kernel, Placed
from tcc.passes.layout.choose import choose_layouts
from tcc.passes.pipeline import lower
from tcc.passes.place import LoweringContext
from tcc.passes.program.lower_graph import halo_widths
from tcc.passes.quantize.precision import Precision
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.runtime.module import Module
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.shipped_machines import shipped_machine
from tcc.schedule.nest import of_pairs, trips

from tests.passes.fuse.models import Model
from tests.passes.placing import place_graph

Run = Callable[[Graph], Module]
MACHINE = shipped_machine("icelake-server")


def planner() -> CoreChooser:
    core = CoreModel(MACHINE.lanes, MACHINE.registers, MACHINE.l2.size, MACHINE.cores)
    return CoreChooser(core, Pricer(MACHINE, 0))


def choose(placed: Placed, kernels: CoreChooser | None = None) -> Placed:
    return choose_layouts(placed, kernels or planner())


def kernels_of(placed: Placed) -> list[Kernel]:
    return [s.kernel for s in placed.steps if s.kernel is not None]


def order(where: Layout) -> tuple[int, ...]:
    """Returns the axes of a value, outermost in storage first."""
    axes = {v: n for n, v in enumerate(where.axes)}
    return tuple(axes[v] for i in where.indices for v in free_vars(i) if v in axes)


def seconds(placed: Placed) -> float:
    """Returns the price of all kernels, computed anew."""
    fresh, constants = planner(), placed.graph.constants
    return sum(fresh.seconds(k, placed.layouts, constants) for k in kernels_of(placed))


def moved(before: Placed, after: Placed) -> dict[str, tuple[int, ...]]:
    """Returns the new orders of the values whose order changed, by name."""
    assert list(before.layouts) == list(after.layouts)
    return {
        v.name: order(where) for v, where in after.layouts.items() if where != before.layouts[v]
    }


def blurred(size: int = 64, channels: int = 3) -> Graph:
    """Returns windows over images of few channels, where channels last would leave most lanes
    idle."""
    m = Model("blurred")
    pool = PoolAttrs((1, 1), (1, 1), (1, 1), (1, 1), (3, 3))
    x = m.input("x", 1, channels, size, size)
    first = m.op("average_pool", x, attrs=pool)
    second = m.op("max_pool", first, attrs=pool)
    return m.finish(m.op("average_pool", second, attrs=pool))


def scores(keys: int = 128) -> Graph:
    """Returns matmuls with keys: lanes are neighbouring keys, and each key is a row."""
    m = Model("scores")
    x = m.input("x", 2, keys, 32)
    k, q = m.op("matmul", x, m.weight(32, 32)), m.op("matmul", x, m.weight(32, 32))
    s = m.op("matmul", q, m.transpose(k, 0, 2, 1))
    return m.finish(m.op("reduce_max", s, attrs=ReduceAttrs((1,), False)))


def convolutions(channels: int = 32) -> Graph:
    m = Model("convolutions")
    x = m.op("relu", m.conv(m.input("x", 1, 16, 28, 28), channels, 3, pad=1))
    y = m.op("relu", m.conv(x, channels, 3, pad=1))
    return m.finish(m.conv(y, channels, 1))


def test_windows_over_few_channels_run_along_rows() -> None:
    placed = place_graph(blurred())
    choice = choose(placed)
    assert set(moved(placed, choice).values()) == {(0, 1, 2, 3)}
    assert len(moved(placed, choice)) == 3  # both results, and the padded copy of the input
    assert seconds(choice) < 0.5 * seconds(placed)


def test_halos_move_with_their_dimensions() -> None:
    placed = place_graph(blurred())
    choice = choose(placed)
    for value, where in choice.layouts.items():
        before = placed.layouts[value]
        assert where.fill == before.fill
        widths = halo_widths(value, before)
        pairs = dict(zip(order(before), zip(widths[::2], widths[1::2], strict=True), strict=True))
        expected = tuple(w for axis in order(where) for w in pairs[axis])
        assert halo_widths(value, where) == expected


def test_keys_of_scores_lie_as_their_products_run() -> None:
    placed = place_graph(scores())
    choice = choose(placed)
    assert list(moved(placed, choice).values()) == [(0, 2, 1)]
    assert seconds(choice) < 0.8 * seconds(placed)


def test_the_rule_stays_where_it_is_right() -> None:
    for graph in (convolutions(), convolutions(64)):
        placed = place_graph(graph)
        assert choose(placed) is placed


def test_a_small_gain_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = place_graph(blurred())
    monkeypatch.setattr(module, "_MARGIN", 100.0)  # no gain is that large
    assert choose(placed) is placed


def test_without_prices_or_budget_the_rule_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = place_graph(blurred())
    assert choose(placed, CoreChooser(CoreModel(16, 32))) is placed
    monkeypatch.setattr(module, "BUDGET", 0)
    assert choose(placed) is placed


def test_the_budget_limits_the_number_of_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = place_graph(blurred())
    rule, all_ = planner(), planner()
    for kernel in kernels_of(placed):
        rule.seconds(kernel, placed.layouts, placed.graph.constants)
    choose(placed, all_)
    monkeypatch.setattr(module, "BUDGET", 3)
    few = planner()
    choose(placed, few)
    # The search stops after it has priced all changes of a class.
    prices = [chooser.price_of.cache_info().currsize for chooser in (few, rule, all_)]
    assert prices[0] <= prices[1] + 3 + 2 < prices[2]


def test_visible_values_stay_row_major() -> None:
    choice = choose(place_graph(blurred()))
    for value in (*choice.graph.inputs, *choice.graph.outputs):
        assert order(choice.layouts[value]) == (0, 1, 2, 3)


def test_parts_move_with_their_wholes() -> None:
    m = Model("joined")
    pool = PoolAttrs((1, 1), (1, 1), (1, 1), (1, 1), (3, 3))
    x = m.input("x", 1, 2, 64, 64)
    parts = [m.op(f"{kind}_pool", x, attrs=pool) for kind in ("average", "max")]
    concatenated = m.op("concat", *parts, attrs=ConcatAttrs(1))
    placed = place_graph(m.finish(m.op("max_pool", concatenated, attrs=pool)))
    choice = choose(placed)
    assert placed.containers
    for part, container in choice.containers.items():
        assert order(choice.layouts[part]) == order(choice.layouts[container]) == (0, 1, 2, 3)
        assert choice.layouts[part].sizes == choice.layouts[container].sizes


def test_equal_graphs_get_equal_layouts_and_open_sizes_are_typical_ones() -> None:
    m = Model("open")
    pool = PoolAttrs((1, 1), (1, 1), (1, 1), (1, 1), (3, 3))
    n = symbol("n", 1)
    first = m.op("average_pool", m.input("x", n, 3, 64, 64), attrs=pool)
    graph = m.finish(m.op("max_pool", first, attrs=pool))
    one, two = (choose(place_graph(graph)) for _ in range(2))
    assert list(one.layouts.values()) == list(two.layouts.values())
    assert order(one.layouts[kernels_of(one)[0].results[0]])[-1] == 3


@pytest.mark.parametrize("graph", [blurred(24), scores(40), convolutions(8)], ids=lambda g: g.name)
@pytest.mark.parametrize("turn", [1, 2])
def test_any_order_gives_the_same_results(
    graph: Graph, turn: int, compiled: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every free value gets a random order, and the graph is compiled and run."""

    def turned(where: Layout) -> Layout:
        first, *sizes = where.sizes
        outer, *indices = where.indices
        at = min(turn, len(sizes) - 1)
        return replace(
            where,
            sizes=(first, *sizes[at:], *sizes[:at]),
            indices=(outer, *indices[at:], *indices[:at]),
        )

    def every(graph: Graph, *args: object, **named: object) -> Placed:
        placed = place_graph(graph)
        fixed = {*graph.inputs, *graph.outputs}
        layouts = {v: where if v in fixed else turned(where) for v, where in placed.layouts.items()}
        assert layouts != placed.layouts
        return replace(placed, layouts=layouts)

    rng = np.random.default_rng(3)
    feeds = {
        v.name: rng.standard_normal([as_int(n) or 1 for n in v.type.shape]).astype(np.float32)
        for v in graph.inputs
    }
    monkeypatch.setattr("tests.passes.conftest.place_graph", every)
    outputs, reference = compiled(graph).run(feeds), evaluate_graph(graph, feeds)
    for name, array in reference.items():
        np.testing.assert_allclose(outputs[name], array, rtol=0, atol=1e-5 * np.abs(array).max())


def windows(channels: int, size: int, count: int = 1) -> Graph:
    """Returns depthwise windows over an input."""
    m = Model(f"windows_{channels}_{size}")
    x = m.input("x", 2, channels, size, size)
    conv_results = [m.conv(x, channels, 3, stride=2, pad=1, group=channels) for _ in range(count)]
    return m.finish(*(m.op("relu", y) for y in conv_results))


@pytest.mark.parametrize("graph", [windows(48, 56), windows(37, 112)], ids=lambda g: g.name)
def test_a_padded_copy_is_made_by_the_window_that_alone_reads_it(
    graph: Graph, compiled: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = place_graph(graph)
    choice = choose(placed)
    assert len(kernels_of(placed)) == 2
    (kernel,) = kernels_of(choice)
    assert kernel.operands[0] is graph.inputs[0]
    assert seconds(choice) < seconds(placed)
    monkeypatch.setattr("tests.passes.conftest.place_graph", lambda g: choose(place_graph(g)))
    shape = [as_int(n) or 1 for n in graph.inputs[0].type.shape]
    feeds = {"x": np.random.default_rng(5).standard_normal(shape).astype(np.float32)}
    outputs, reference = compiled(graph).run(feeds), evaluate_graph(graph, feeds)
    for name, array in reference.items():
        np.testing.assert_allclose(outputs[name], array, rtol=0, atol=1e-5 * np.abs(array).max())


def pooled(op: str, size: int) -> Graph:
    m = Model(f"{op}_{size}")
    attrs = PoolAttrs((2, 2), (1, 1), (1, 1), (1, 1), (3, 3))
    return m.finish(m.op(op, m.input("x", 1, 64, size, size), attrs=attrs))


def windows_of(x: np.ndarray[Any, Any], fill: float) -> np.ndarray[Any, Any]:
    """Returns the windows of 3 x 3 elements at every second row and column, as f64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]


@pytest.mark.parametrize("size", [97, 112])
@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
def test_a_padded_copy_is_made_by_the_pool_that_alone_reads_it(
    op: str, size: int, compiled: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors run along the rows of a strip, which fits the first-level cache."""
    kernels = planner()
    graph = pooled(op, size)
    placed, joined = place_graph(graph), choose(place_graph(graph))
    assert [len(kernels_of(p)) for p in (placed, joined)] == [2, 1]
    (kernel,) = kernels_of(joined)
    schedule = kernels.plan(kernel, joined.layouts, graph.constants).bound.schedule
    assert isinstance(schedule, Schedule)
    ((_, rows),) = schedule.tile_sizes
    assert 4 * (2 * rows + 1) * (size + 2) < kernels.core.l1 / 2
    monkeypatch.setattr("tests.passes.conftest.place_graph", lambda g: choose(place_graph(g)))
    x = np.random.default_rng(size).standard_normal((1, 64, size, size)).astype(np.float32)
    x[0, 0, 0, 0], x[0, 1, 5, 7], x[0, 2, -1, -1], x[0, 3] = np.nan, np.inf, -np.inf, -np.inf
    got = next(iter(compiled(graph).run({"x": x}).values()))
    if op == "max_pool":
        want = windows_of(x, -np.inf).max((-2, -1))
    else:
        want = windows_of(x, 0).sum((-2, -1)) / windows_of(np.ones_like(x), 0).sum((-2, -1))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_copy_that_two_kernels_read_stays() -> None:
    placed = place_graph(windows(48, 56, 2))
    assert kernels_of(choose(placed)) == kernels_of(placed)
    assert len(kernels_of(placed)) == 3


def test_a_copy_that_is_a_result_stays() -> None:
    """The caller gets the padded image, and the window reads it in place."""
    m = Model("result")
    pads = (const(0), const(0), const(1), const(1))
    wide = m.op("pad", m.input("x", 2, 48, 56, 56), attrs=PadAttrs(pads, pads, "constant"))
    placed = place_graph(m.finish(m.conv(wide, 48, 3, stride=2, group=48), wide))
    assert kernels_of(choose(placed)) == kernels_of(placed)
    assert len(kernels_of(placed)) == 2


def test_a_copy_that_is_a_part_of_a_concatenation_stays() -> None:
    m = Model("part")
    pads = (const(0), const(0), const(1), const(1))
    x = m.input("x", 2, 48, 56, 56)
    wide = m.op("pad", x, attrs=PadAttrs(pads, pads, "constant"))
    window = m.conv(wide, 48, 3, stride=2, group=48)
    concatenated = m.op("concat", wide, m.conv(x, 48, 3, pad=2), attrs=ConcatAttrs(1))
    placed = place_graph(m.finish(window, m.conv(concatenated, 8, 3)))
    choice = choose(placed)
    assert choice.containers
    assert choice.containers.keys() <= {v for k in kernels_of(choice) for v in k.results}


def test_operands_of_pair_matmuls_have_the_chosen_order() -> None:
    """The graph is a depthwise window, a norm over channels and two matmuls. The rule gives rows
    between the matmuls the order of the window's image, in which pairs are not adjacent."""
    m = Model("block")
    x = m.op("relu", m.conv(m.input("x", 1, 64, 14, 14), 64, 1))
    rows = m.transpose(m.conv(x, 64, 7, pad=3, group=64), 0, 2, 3, 1)
    rows = m.op("layer_normalization", rows, m.weight(64), m.weight(64), attrs=NormAttrs(3))
    wide = m.op("add", m.op("matmul", rows, m.weight(64, 256)), m.weight(256))
    wide = m.op("gelu", wide, attrs=GeluAttrs("none"))
    graph = m.finish(
        m.op("add", m.transpose(m.op("matmul", wide, m.weight(256, 64)), 0, 3, 1, 2), x)
    )
    core = CoreModel(MACHINE.lanes, MACHINE.registers, MACHINE.l2.size, MACHINE.cores)
    plan = LoweringContext(
        CoreChooser(core, Pricer(MACHINE, 0, pairs=True)),
        arena_planner(),
        Precision(BF16, pairs=True),
    )
    bounds = lower(graph, plan, Trace()).table.bounds
    depths = [prod(map(trips, s.reduce)) for b in bounds for s in b.group.stages if of_pairs(s)]
    assert sorted(depths) == [64, 256]
