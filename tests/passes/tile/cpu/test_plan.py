"""Weights are stored as kernels need them, and equal layers share kernels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.graph import Graph, Value
from tcc.ir.index import IndexLike, as_int, const, symbol
from tcc.ir.layout import Layout, row_major
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.text import kernel_text
from tcc.ir.types import F32, tensor
from tcc.passes.fuse.structure import build_group
from tcc.passes.layout.assign import Kernel
from tcc.passes.tile.cpu import plan as plan_kernels
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.plan import PlannedKernel
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.shipped_machines import machine_for
from tcc.schedule.cpu.work import group_work
from tcc.target import parse_target

from tests.lib.oracle.tile.evaluate import evaluate_kernel
from tests.passes.fuse.models import Model
from tests.passes.layout.test_choose import planner
from tests.passes.moe.experts import layer
from tests.passes.placing import place_graph

MACHINE = machine_for(parse_target("cpu", "x86-64-v4", lambda: None).profile)


def plans(graph: Graph) -> list[PlannedKernel]:
    placed, plain = place_graph(graph, model=planner()), CoreChooser(CoreModel(16, 32))
    kernels = [s.kernel for s in placed.steps if s.kernel is not None]
    return [plain.plan(k, placed.layouts, graph.constants) for k in kernels]


def weights(graph: Graph) -> list[Layout]:
    """Returns the layouts of constants in the last kernel, in order of use."""
    return [where for v, where in plans(graph)[-1].operands if v in graph.constants]


def spelled(where: Layout) -> tuple[list[str], list[str]]:
    plain = [i.key.strip("()").replace(" ", "") for i in where.indices]
    return [s.key for s in where.sizes], plain


def product(depth: int, columns: int) -> Graph:
    m = Model("product")
    return m.finish(m.op("matmul", m.input("x", 32, depth), m.weight(depth, columns)))


def gemm(trans_b: bool) -> Graph:
    m = Model("gemm")
    w = m.transpose(m.weight(256, 96), 1, 0) if trans_b else m.weight(96, 256)
    return m.finish(m.op("gemm", m.input("x", 32, 96), w, m.weight(256)))


def test_a_factor_is_stored_in_panels_of_the_vector_block() -> None:
    (where,) = weights(product(96, 256))
    assert spelled(where) == (["4", "96", "64"], ["i1//64", "i0", "i1%64"])


def test_a_transposed_factor_gets_the_same_panels() -> None:
    straight, bias = weights(gemm(False))
    transposed_weights, _ = weights(gemm(True))
    assert spelled(straight) == (["4", "96", "64"], ["i1//64", "i0", "i1%64"])
    assert spelled(transposed_weights) == (["4", "96", "64"], ["i0//64", "i1", "i0%64"])
    assert bias.indices == row_major(bias.sizes).indices


def test_matrices_that_data_choose_get_panels_and_hints() -> None:
    """Panels lie in the order in which tiles read them, and a prefetch hint stays in the same
    matrix."""
    up, _ = plans(layer(3, 40, 512, 640))
    assert spelled(up.operands[2][1]) == (["8", "10", "512", "64"], ["i0", "i2//64", "i1", "i2%64"])
    lines = [n.strip() for n in kernel_text(up.bound.kernel).splitlines()]
    hints = [n for n in lines if n.startswith("prefetch %b2")]
    assert hints
    assert all("+327680*t0" in n and "t0: 0..8" in n for n in hints)


def test_choosing_a_matrix_is_no_work_of_each_product() -> None:
    choosing, plain = plans(layer(3, 40, 512, 640))[1], plans(product(512, 640))[0]
    works = [group_work(kernel.bound.group, MACHINE)[0] for kernel in (choosing, plain)]
    assert (works[0].ops, works[0].lanes) == (works[1].ops, works[1].lanes)


def test_a_last_panel_that_is_not_full_is_padded() -> None:
    (where,) = weights(product(96, 100))
    assert spelled(where)[0] == ["2", "96", "64"]
    assert where.fill == 0


def test_convolutions_keep_output_channels_innermost() -> None:
    m = Model("conv")
    y = m.op("relu", m.conv(m.input("x", 1, 8, 12, 12), 16, 1))
    graph = m.finish(m.op("relu", m.conv(m.op("relu", m.conv(y, 128, 3)), 8, 1)))
    where = next(
        w for v, w in plans(graph)[1].operands if v in graph.constants and len(v.type.shape) == 4
    )
    assert spelled(where) == (
        ["2", "3", "3", "16", "64"],
        ["i0//64", "i2", "i3", "i1", "i0%64"],
    )


def test_depthwise_weights_keep_channels_innermost() -> None:
    m = Model("depthwise")
    y = m.op("relu", m.conv(m.input("x", 1, 8, 12, 12), 64, 1))
    deep = m.op("relu", m.conv(y, 64, 3, group=64))
    graph = m.finish(m.conv(deep, 8, 1))
    where = next(
        w for v, w in plans(graph)[1].operands if v in graph.constants and len(v.type.shape) == 4
    )
    assert where.indices[-1].key.startswith("i0")
    assert "i0" not in [i.key for i in where.indices[:-1]]


@pytest.mark.parametrize(("width", "panel"), [(64, 64), (80, 16)])
def test_panels_do_not_cross_heads(width: int, panel: int) -> None:
    """Heads split the axis into two loops, and a panel must lie in one head."""
    m = Model("heads")
    s = symbol("s", 1)
    side = 12 * width
    y = m.op("matmul", m.input("x", s, 96), m.weight(96, side))
    graph = m.finish(m.transpose(m.reshape(y, s, 12, width), 1, 0, 2))
    (where,) = weights(graph)
    assert spelled(where) == (
        [str(side // panel), "96", str(panel)],
        [f"i1//{panel}", "i0", f"i1%{panel}"],
    )


def test_equal_layers_share_a_kernel() -> None:
    m = Model("layers")
    value = m.input("x", 1, 8, 12, 12)
    for _ in range(4):
        value = m.op("relu", m.conv(value, 8, 3, pad=1))
    graph = m.finish(m.conv(value, 8, 1))
    plans_of_products = [p for p in plans(graph) if len(p.operands) == 3]
    assert len(plans_of_products) == 5
    middle = [
        p.bound for p in plans_of_products[1:3]
    ]  # the first reads a padded copy of the caller's array
    assert all(a is b for a, b in pairwise(middle))
    assert plans_of_products[-1].bound is not middle[0]


def test_small_constants_stay_as_they_are() -> None:
    (where,) = weights(product(3, 20))
    assert where == row_major(where.sizes)
    m = Model("small")
    scaled = m.op("mul", m.input("x", 8, 16), m.weight(16))
    (where,) = weights(m.finish(m.op("add", scaled, scaled)))
    assert where == row_major(where.sizes)


def test_operands_that_are_not_constant_keep_their_layout() -> None:
    m = Model("inputs")
    x, w = m.input("x", 32, 96), m.input("w", 96, 256)
    (planned,) = plans(m.finish(m.op("matmul", x, w)))
    assert dict(planned.operands)[w] == row_major(w.type.shape)


@pytest.mark.parametrize("depth", [4, 32, 512])
def test_tiles_of_symbolic_rows_are_worth_a_thread_like_tiles_of_fixed_rows(depth: int) -> None:
    """The rows are `n` images of 12544 places: the work of a tile is known, but not the number of
    tiles."""

    def least(rows: IndexLike) -> int:
        m = Model("rows")
        (plan,) = plans(m.finish(m.op("matmul", m.input("x", rows, depth), m.weight(depth, 16))))
        assert isinstance(plan.bound.schedule, Schedule)
        elements = plan.bound.schedule.tile_size(plan.bound.group.common[0].name)
        units = as_int(CoreChooser(CoreModel(16, 32)).least_units(plan.bound) or const(1))
        assert units is not None
        return units * elements  # the rows that are worth a thread

    fixed_tiles = least(12544)
    assert fixed_tiles / 3 <= least(symbol("n", 1) * 12544) <= fixed_tiles * 3


def test_no_group_is_built_twice_for_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search varies about ten knobs, which pack the weights in three ways."""
    built: list[tuple[object, ...]] = []

    def counted(*parts: Any, **options: Any) -> TileGroup:
        built.append((*map(tuple, parts[1:]), *options.items()))
        return build_group(*parts, **options)

    monkeypatch.setattr(plan_kernels, "build_group", counted)
    graph = product(2048, 1000)
    placed, planner = place_graph(graph), CoreChooser(CoreModel(16, 32), Pricer(MACHINE))
    (kernel,) = [s.kernel for s in placed.steps if s.kernel is not None]
    planner.plan(kernel, placed.layouts, graph.constants)
    assert planner.priced >= 6
    assert 3 <= len(built) == len(set(built)) <= 5


def scaled() -> Kernel:
    """Returns the kernel of x[i, j] * b[j] for 96 x 768 elements; its loops stay apart."""
    b = ExprBuilder(tensor(F32, 96, 768), tensor(F32, 768))
    i, j = b.iters(96, 768)
    b.stage((i, j), apply("mul", b.read(0, i, j), b.read(1, j)))
    expr = b.done()
    operands = tuple(Value(f"x{n}", t) for n, t in enumerate(expr.params) if t)
    return Kernel(expr, operands, (Value("y", expr.types[0]),), "y")


@pytest.mark.parametrize(
    ("period", "grid"),
    [
        (None, [0]),  # nothing is known
        (4 * 768 * 96, [0]),  # rows of other threads
        (4 * 768, [1]),  # columns
    ],
)
def test_tiles_run_along_those_of_the_writer(period: float | None, grid: list[int]) -> None:
    kernel, model = scaled(), planner()
    x, _ = kernel.operands
    bound, other = (model.plan(kernel, {}, {}, {x: period}).bound for _ in range(2))
    assert bound is other  # equal layers share the kernel
    assert isinstance(bound.schedule, Schedule)
    places = {v.name: n for n, v in enumerate(bound.group.common)}
    assert [places[name] for name in bound.schedule.parallel] == grid
    x_array = np.linspace(-1, 1, 96 * 768, dtype=np.float32)
    b_array = np.linspace(2, 3, 768, dtype=np.float32)
    y_array = np.zeros_like(x_array)
    evaluate_kernel(bound.kernel, [x_array, b_array, y_array], {})
    np.testing.assert_array_equal(y_array.reshape(96, 768), x_array.reshape(96, 768) * b_array)
