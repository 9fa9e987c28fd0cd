"""Contractions that share an operand are merged if the merged price is lower, and stay separate
otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tcc.backends.cpu.backend import CpuBackend
from tcc.backends.cpu.detect import detect
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import index_value
from tcc.ir.graph import Graph, GraphBuilder, Value, walk_nodes
from tcc.ir.graph.rewrite import without_dead
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.ops.shapes import AxisAttrs
from tcc.options import Options
from tcc.passes.derive.candidate import MARGIN
from tcc.passes.derive.merge import Bundle, MergePrices, bundles, merge_contractions
from tcc.passes.derive.sites import scopes
from tcc.passes.fuse.compose import node_expr
from tcc.passes.graph.emit import emit, express
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.shipped_machines import shipped_machine
from tcc.target import parse_target

from tests.draws import RNG, seeded
from tests.lib.oracle.calls import calls_of
from tests.passes.fuse.models import Model

Agree = Callable[..., None]


class All(MergePrices):
    """Prices that merge everything that may be merged."""

    def __init__(self) -> None:
        super().__init__(CoreChooser(CoreModel(16, 16)))

    def _seconds(self, graph: Graph, groups: Sequence[Bundle]) -> float:
        return float(len(groups))


class Sizes(All):
    """Prices under which merged nodes of two or three parts are cheapest: (parts - 2.5)**2 + 1."""

    def _seconds(self, graph: Graph, groups: Sequence[Bundle]) -> float:
        return sum((len(group) - 2.5) ** 2 + 1 for group in groups)


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in walk_nodes(graph)]


def heads(rows: int, widths: Sequence[int] = (16, 4, 8)) -> Graph:
    """Returns matmuls of different widths, each read in a different shape."""
    m = Model("heads")
    x = m.input("x", 1, rows, 12)

    def project(width: int) -> Value:
        y = m.op("matmul", x, m.weight(12, width))
        return m.op("exp", m.reshape(y, rows, width // 4, 4))

    return m.finish(*map(project, widths))


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_products_of_the_same_rows_become_one(rows: int, agree: Agree) -> None:
    before = heads(rows)
    after = merge_contractions(before, All())
    assert names(after).count("matmul") == names(after).count("split") == 1
    agree(before, after, tolerance=1e-6)
    assert merge_contractions(after, All()) is after


def test_prices_tell_which_parts_become_one(agree: Agree) -> None:
    before = heads(3, (4, 8, 12, 16))
    after = merge_contractions(before, Sizes())
    assert [n.outputs[0].type.shape[-1].const for n in after.nodes if n.op.name == "matmul"] == [
        12,
        28,
    ]
    agree(before, after, tolerance=1e-6)


def test_merges_that_save_less_than_the_margin_are_not_made() -> None:
    class Near(All):
        saved = MARGIN

        def _seconds(self, graph: Graph, groups: Sequence[Bundle]) -> float:
            return 1.0 if len(groups) == 3 else 1.0 - self.saved

    graph = heads(3)
    assert merge_contractions(graph, Near()) is graph
    Near.saved = MARGIN * 1.01
    assert merge_contractions(graph, Near()) is not graph


# ---- kinds of nodes -----------------------------------------------------------------------------


def pair(
    op: str, x: tuple[int, ...], *weights: tuple[int, ...], named: bool = True, **attrs: Any
) -> Graph:
    """Returns two nodes of one input; the first axis of the second node's weights is twice as
    long."""
    b = GraphBuilder("g")
    value = b.input("x", tensor(F32, *x))
    results = []
    for times in (1, 2):
        longer = [(times * first, *rest) for first, *rest in weights]
        arrays = [b.constant(RNG.standard_normal(s).astype(np.float32), "w") for s in longer]
        (y,) = b.add(OPS[op], [value, *arrays], OPS[op].attrs(**attrs))
        if not named:
            producer = b.producer(y)
            assert producer is not None
            expr = node_expr(producer)
            assert expr is not None
            (y,) = express(b, expr, value, *arrays)
        results.append(emit(b, "relu", y))
    return without_dead(b.finish(results))


CONV = {"strides": (2, 1), "before": (1, 0), "after": (0, 1), "dilations": (1, 2)}
with seeded("test_merge: pairs"):
    PAIRS = {
        "convolutions": pair("conv", (2, 4, 5, 6), (3, 4, 3, 2), (3,), group=1, **CONV),
        "expressions": pair("conv", (2, 4, 5, 6), (3, 4, 3, 2), (3,), named=False, group=1, **CONV),
        "transposed": pair("einsum", (5, 4), (3, 4), equation="ij,kj->ik"),
        "heads": pair("einsum", (5, 8), (2, 8, 3), equation="sd,hde->hse"),
    }
    APART = {
        "groups": pair("conv", (2, 4, 5, 6), (4, 2, 3, 2), group=2, **CONV),
        "summed": pair("einsum", (5, 8), (2, 8, 3), equation="sd,hde->se"),
    }


@pytest.mark.parametrize("name", PAIRS)
def test_any_sums_of_products_are_merged(name: str, agree: Agree) -> None:
    before = PAIRS[name]
    after = merge_contractions(before, All())
    assert len(after.nodes) == 4
    assert after.nodes[0].op is before.nodes[0].op
    agree(before, after, tolerance=1e-5)


@pytest.mark.parametrize("name", APART)
def test_contractions_without_a_common_result_stay(name: str) -> None:
    assert merge_contractions(APART[name], All()) is APART[name]


def of_rows(stage: Callable[..., Any], after: Any = None, count: int = 4) -> Graph:
    """Returns two expressions of x[4] and separate 4 x 4 weights: `stage(b, j, k)` summed over k,
    then `after(b, sums, j)`."""
    b, kind = GraphBuilder("g"), tensor(F32, 4, 4)
    x, results = b.input("x", tensor(F32, 4)), []
    for _ in range(2):
        made = ExprBuilder(x.type, kind)
        (j,), (k,) = made.iters(count), made.iters(4)
        sums = made.stage((j,), stage(made, j, k), over=(k,), monoid="sum")
        if after is not None:
            (j,) = made.iters(count)
            sums = made.stage((j,), after(made, sums, j))
        w = b.constant(RNG.standard_normal((4, 4)).astype(np.float32), "w")
        results += express(b, made.done(sums), x, w)
    return b.finish(results)


def term(b: ExprBuilder, j: Any, k: Any) -> Any:
    return b.read(0, k) * b.read(1, k, j)


with seeded("test_merge: other"):
    OTHER: dict[str, Graph] = {
        "a part of an axis": of_rows(term, count=3),
        "read twice": of_rows(lambda b, j, k: b.read(0, k) * b.read(1, k, j) * b.read(1, j, k)),
        "at another place": of_rows(term, lambda b, sums, j: b.read(sums, 3 - j)),
        "by the place": of_rows(lambda b, j, k: term(b, j, k) * index_value(j + 1, F32)),
    }


@pytest.mark.parametrize("name", OTHER)
def test_contractions_that_a_longer_loop_would_change_stay(name: str) -> None:
    assert merge_contractions(OTHER[name], All()) is OTHER[name]


def test_other_windows_on_the_same_image_stay() -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, 1, 4, 6, 6))
    results = []
    for stride in (1, 2):
        attrs = OPS["conv"].attrs((stride,) * 2, (1, 1), (1, 1), (1, 1), 1)
        w = b.constant(RNG.standard_normal((3, 4, 3, 3)).astype(np.float32), "w")
        results += b.add(OPS["conv"], [x, w], attrs)
    graph = b.finish(results)
    assert merge_contractions(graph, All()) is graph


def test_shared_matrices_and_other_rows_stay() -> None:
    m = Model("kept")
    x, z = m.input("x", 2, 12), m.input("z", 2, 12)
    shared = m.weight(12, 8)
    a = m.op("exp", m.reshape(m.op("matmul", x, shared), 16))
    b = m.op("exp", m.reshape(m.op("matmul", z, shared), 16))
    graph = m.finish(a, b, m.op("matmul", x, m.weight(12, 4)), m.op("matmul", z, m.weight(12, 4)))
    assert merge_contractions(graph, All()) is graph


def test_products_in_a_body_are_merged_there(read: Callable[..., Graph], agree: Agree) -> None:
    before = read(
        """\
graph g(%x : f32[3,2], %c : bool[]) {
  %y = if(%c) {then=graph t() {
    %a = const @a : f32[2,4]
    %b = const @b : f32[2,4]
    %p = matmul(%x, %a) : f32[3,4]
    %q = matmul(%x, %b) : f32[3,4]
    %s = sub(%p, %q) : f32[3,4]
    return %s
  }, otherwise=graph o() {
    %k = const @k : f32[2,4]
    %z = matmul(%x, %k) : f32[3,4]
    return %z
  }, types=(f32[3,4])} : f32[3,4]
  return %y
}
""",
        **{n: RNG.standard_normal((2, 4)).astype(np.float32) for n in "abk"},
    )
    after = merge_contractions(before, All())
    assert names(after) == ["if", "matmul", "split", "sub", "matmul"]
    agree(before, after, tolerance=1e-6)


# ---- decisions ----------------------------------------------------------------------------------


def layers(count: int) -> Graph:
    m = Model("layers")
    x = m.input("x", 2, 12)
    for _ in range(count):
        a, b = (m.op("exp", m.op("matmul", x, m.weight(12, 12))) for _ in range(2))
        x = m.op("matmul", m.op("add", a, b), m.weight(12, 12))
    return m.finish(m.op("exp", x))


def test_equal_layers_are_priced_once_and_work_grows_with_the_layers() -> None:
    class Counted(All):
        priced = 0

        def _seconds(self, graph: Graph, groups: Sequence[Bundle]) -> float:
            self.priced += 1
            return super()._seconds(graph, groups)

    few, many = layers(20), layers(40)
    prices = Counted()
    assert names(merge_contractions(few, prices)).count("split") == 20
    assert prices.priced <= 6  # the first, the last and those between, separate and merged
    first = calls_of(lambda: merge_contractions(few, All()))
    assert calls_of(lambda: merge_contractions(many, All())) < 2.2 * first


def test_constants_that_were_merged_for_one_size_are_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = heads(2)
    prices = Sizes()
    first = merge_contractions(graph, prices)
    monkeypatch.setattr(prices, "_seconds", lambda *_: 1.0)
    assert names(merge_contractions(graph, prices)) == names(first)


def parts(graph: Graph) -> list[int]:
    return [len(bundle) for scope in scopes(graph) for bundle in bundles(scope)]


def test_many_parts_are_looked_at_a_few_at_a_time(agree: Agree) -> None:
    before = heads(2, (4,) * 9)
    assert parts(before) == [4, 4]
    agree(before, merge_contractions(before, All()), tolerance=1e-6)


# ---- real prices --------------------------------------------------------------------------------


def test_prices_merge_only_matmuls_that_share_streamed_weights() -> None:
    """A token's queries, keys and values share streamed weights; the result of the first matmul
    waits for a gate, which the second matmul finishes."""
    server = shipped_machine("icelake-server")
    core = CoreModel(16, 32, server.l2.size, server.cores)
    planner = CoreChooser(core, Pricer(server))
    m = Model("token")
    x = m.op("softmax", m.input("x", 1, 512), attrs=AxisAttrs(1))
    wide = [m.op("exp", m.op("matmul", x, m.weight(512, n))) for n in (512, 64, 64)]
    assert names(merge_contractions(m.finish(*wide), MergePrices(planner))).count("split") == 1
    m = Model("gated")
    x = m.input("x", 256, 256)
    gate, up = (m.op("matmul", x, m.weight(256, 512)) for _ in range(2))
    graph = m.finish(m.op("mul", m.op("sigmoid", gate), up))
    assert merge_contractions(graph, MergePrices(planner)) is graph


def test_options_leave_the_pass_out() -> None:
    for options, found in (
        (Options(), True),
        (Options(numerics="strict"), True),  # merging moves data only
        (Options(derive=False), False),
        (Options(level=1), False),
    ):
        backend = CpuBackend(parse_target("cpu", "host", detect), options, 0)
        assert (backend.settings.merges is not None) == found
