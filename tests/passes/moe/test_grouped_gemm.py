"""Matmuls with data-dependent matrices give the same results by tiles, and other matmuls stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tcc.ir.graph import Graph, Value
from tcc.ir.index import as_index, const
from tcc.ir.types import F32, I64, tensor
from tcc.ops.algebra.movement import SliceAttrs, SplitAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.moe.grouped_gemm import GroupedMatmul, group_gemms
from tcc.passes.moe.price import GroupedGemmPrices
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import TYPICAL_CORE
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.shipped_machines import machine_for
from tcc.target import parse_target

from tests.passes.fuse.models import Model

Agree = Callable[..., None]
TOKENS, TOP, EXPERTS, DEPTH, WIDTH = 9, 2, 4, 6, 8


def tile_of_four(_: GroupedMatmul) -> int:
    return 4


def ops(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


class Layer(Model):
    """A builder of an expert layer; an input selects the experts."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # Inputs of zero and one select the last matrix but one and the second.
        drawn = self.input("drawn", TOKENS, TOP, dtype=I64)
        three, two = (self.builder.constant(np.int64(n)) for n in (3, 2))
        self.index = self.op("sub", self.op("mul", drawn, three), two)
        self.x = self.input("x", TOKENS, 1, 1, DEPTH)

    def chosen(self, *shape: int) -> Value:
        return self.op("gather", self.weight(EXPERTS, *shape), self.index, attrs=AxisAttrs(0))

    def product(self, rows: Value, *shape: int) -> Value:
        return self.op("matmul", rows, self.chosen(*shape))


def test_a_chain_of_products_stays_in_tiles(agree: Agree) -> None:
    m = Layer("chain")
    up = m.product(m.x, DEPTH, WIDTH)
    up = m.op("add", up, m.reshape(m.chosen(WIDTH), TOKENS, TOP, 1, WIDTH))
    hidden = m.op("mul", m.op("relu", up), m.weight(WIDTH))
    down = m.product(m.reshape(hidden, TOKENS, TOP, 1, WIDTH), WIDTH, DEPTH)
    graph = m.finish(m.reshape(down, TOKENS, TOP, DEPTH))
    grouped = group_gemms(graph, tile_of_four)
    # Places, rows, rows to tiles, and one expression back.
    assert ops(grouped).count("expression") == 4
    agree(graph, grouped, tolerance=1e-6)


@pytest.mark.parametrize("how", ["split", "slice"])
def test_gates_are_cut_in_tiles(how: str, agree: Agree) -> None:
    m = Layer("gated")
    gate_and_up = m.reshape(m.product(m.x, DEPTH, 2 * WIDTH), TOKENS * TOP, 2 * WIDTH)
    if how == "split":
        gate, up = m.ops("split", gate_and_up, attrs=SplitAttrs(1, (const(WIDTH), const(WIDTH))))
    else:
        size = (const(TOKENS * TOP), const(WIDTH))
        gate, up = (
            m.op("slice", gate_and_up, attrs=SliceAttrs((const(0), const(n)), (1, 2), size))
            for n in range(2)
        )
    met = m.op("mul", m.op("sigmoid", gate), up)
    down = m.product(m.reshape(met, TOKENS, TOP, 1, WIDTH), WIDTH, DEPTH)
    graph = m.finish(down)
    grouped = group_gemms(graph, tile_of_four)
    assert ops(grouped).count("expression") == 4
    agree(graph, grouped, tolerance=1e-6)


def test_matrices_on_the_left_and_transposed(agree: Agree) -> None:
    m = Layer("left")
    columns = m.reshape(m.x, TOKENS, 1, DEPTH, 1)
    lhs = m.op("matmul", m.chosen(WIDTH, DEPTH), columns)
    transposed = m.transpose(m.chosen(WIDTH, DEPTH), 0, 1, 3, 2)
    right = m.op("matmul", m.x, transposed)
    graph = m.finish(lhs, right)
    grouped = group_gemms(graph, tile_of_four)
    assert ops(grouped).count("expression") == 6
    agree(graph, grouped, tolerance=1e-6)


def test_readers_in_another_order_get_the_original_rows(agree: Agree) -> None:
    m = Layer("mixed")
    up = m.product(m.x, DEPTH, WIDTH)
    other = m.input("other", TOKENS, TOP, 1, WIDTH)
    scaled = m.op("mul", up, m.input("share", TOKENS, TOP, 1, 1))
    graph = m.finish(m.op("add", up, other), m.product(scaled, WIDTH, DEPTH))
    grouped = group_gemms(graph, tile_of_four)
    agree(graph, grouped, tolerance=1e-6)


def test_other_matmuls_stay() -> None:
    m = Layer("others")
    several = m.op("matmul", m.input("rows", TOKENS, TOP, 3, DEPTH), m.chosen(DEPTH, WIDTH))
    fixed = m.op("matmul", m.x, m.weight(DEPTH, WIDTH))
    graph = m.finish(several, fixed)
    assert group_gemms(graph, tile_of_four) is graph
    graph = (n := Layer("dear")).finish(n.product(n.x, DEPTH, WIDTH))
    assert group_gemms(graph, lambda _: None) is graph


def test_another_index_has_an_order_of_its_own(agree: Agree) -> None:
    m = Layer("two")
    first = m.product(m.x, DEPTH, WIDTH)
    m.index = m.input("second", TOKENS, TOP, dtype=I64)
    graph = m.finish(m.product(first, WIDTH, DEPTH))
    grouped = group_gemms(graph, tile_of_four)
    assert ops(grouped).count("expression") == 8
    agree(graph, grouped, tolerance=1e-6)


def test_indices_are_checked_once_where_that_is_asked(agree: Agree) -> None:
    m = Layer("checked")
    graph = m.finish(m.op("relu", m.product(m.x, DEPTH, WIDTH)))
    assert "check_indices" not in ops(group_gemms(graph, tile_of_four))
    grouped = group_gemms(graph, tile_of_four, checks=True)
    (check,) = (n for n in grouped.nodes if n.op.name == "check_indices")
    (index,) = check.inputs
    assert index is not None
    assert (index.name, check.attrs.size) == (m.index.name, const(EXPERTS))
    agree(graph, grouped, tolerance=1e-6)


def test_prices_take_tiles_where_matrices_would_be_read_often() -> None:
    machine = machine_for(parse_target("cpu", "x86-64-v4", lambda: None).profile)
    prices = GroupedGemmPrices(CoreChooser(TYPICAL_CORE, Pricer(machine, 1 << 26)), (16, 32))

    def tile(tokens: int, depth: int, width: int) -> int | None:
        rows, index = tensor(F32, tokens, 1, 1, depth), tensor(I64, tokens, 2)
        matrices = tensor(F32, *map(as_index, (8, depth, width)))
        return prices.tile_of(GroupedMatmul(rows, matrices, index, False))

    assert tile(1, 1024, 2048) is None
    assert tile(128, 1024, 2048) is not None
    assert tile(2, 16, 16) is None
