"""The derive pass replaces sites in graphs, and leaves other nodes unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tcc.backends.cpu.backend import CpuBackend
from tcc.backends.cpu.detect import detect
from tcc.errors import InternalError
from tcc.ir.expr import ExprBuilder
from tcc.ir.graph import Graph, Value, constant_bytes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import graph_text
from tcc.ir.index import as_index, symbol
from tcc.ir.region import Region
from tcc.ir.region.check import Unchecked
from tcc.ir.types import F16
from tcc.ops.algebra.levels import LevelsAttrs, nibbles
from tcc.ops.algebra.movement import SliceAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.options import Options
from tcc.passes.derive import rewritten as module
from tcc.passes.derive.algebra.fold import fold
from tcc.passes.derive.algebra.instance import agree as same
from tcc.passes.derive.algebra.reassociate import Rewrites, reassociated
from tcc.passes.derive.candidate import MARGIN
from tcc.passes.derive.derive import Option, SiteOptions, decisions, derive
from tcc.passes.derive.sites import DerivationSite, composed, scopes
from tcc.passes.graph.emit import express
from tcc.passes.program.price import priced_kernels
from tcc.schedule.limits import Rates
from tcc.target import parse_target

from tests.passes.fuse.models import MODELS, Model

from .site_cases import (
    GRAPHS,
    SITES,
    is_exact,
    is_reached,
    limits,
    linear_attention,
    low_rank,
    mean_of_rows,
    updated,
)

Array = np.ndarray[Any, np.dtype[Any]]
Agree = Callable[..., None]


def sites(graph: Graph) -> list[DerivationSite]:
    """Returns the sites of contractions in a graph and its bodies."""
    return [site for scope in scopes(graph) for site in scope.sums()]


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def chains(graph: Graph) -> list[str]:
    """Returns the chains of the chosen replacements."""
    found = decisions(graph, limits())
    return [d.chosen.candidate.chain for d in found if d.chosen is not None]


PAYS = (
    "3x3 of 56",
    "2x2 phases",
    "linear attention",
    "low rank",
    "update of inputs",
    "diag(AB)",
    "trace(AB)",
    "sum(AB)",
    "mean of rows",
    "mean of image",
    "mean of windows",
    "mean between",
)


@pytest.mark.parametrize("name", SITES)
def test_sites_are_derived_exactly(name: str) -> None:
    case = SITES[name]
    found = case.decision()
    candidates = [o.candidate for o in found.options if case.goal in o.candidate.chain]
    assert candidates
    assert all(is_exact(found.site, candidate) for candidate in candidates)


@pytest.mark.parametrize("name", GRAPHS)
def test_products_are_merged_and_grouped_exactly(name: str) -> None:
    assert is_reached(GRAPHS[name])


@pytest.mark.parametrize("name", PAYS)
def test_cheaper_orders_are_taken(name: str, agree: Agree) -> None:
    graph, goal = SITES[name].graph(), SITES[name].goal
    (chain,) = chains(graph)
    assert goal in chain
    after = derive(graph, limits())
    agree(graph, after, tolerance=1e-5)
    planner = limits().prices.planner
    before, then = (sum(s for _, s in priced_kernels(g, planner)) for g in (graph, after))
    assert then < (1 - MARGIN) * before
    assert graph_text(derive(graph, limits())) == graph_text(after)


def test_a_sum_of_a_bias_counts_its_rows() -> None:
    (site,) = sites(mean_of_rows(rows=1024, width=768))
    region = composed(site.nodes)
    chosen, *_ = reassociated(region, site.constants, Rates()).candidates
    assert "multiply out" in chosen.chain
    assert same(region, chosen.region)
    rows = mean_of_rows(rows=1023, width=768)
    (other,) = sites(rows)
    wrong, *_ = reassociated(composed(other.nodes), other.constants, Rates()).candidates
    params = region.params
    stages = tuple(
        stage._replace(sums=tuple(1024 if n == 1023 else n for n in stage.sums))
        for stage in wrong.region.stages
    )
    # The divisor, or the multiplicity of the bias, still belongs to 1,023 rows.
    with pytest.raises(Unchecked):
        same(region, wrong.region._replace(params=params, stages=stages))


def test_low_rank_updates_of_constants_are_one_matrix() -> None:
    graph = low_rank()
    after = derive(graph, limits())
    assert ops(after) == ["expression"]
    shapes = (192, 192), (192, 24), (24, 192)
    by_shape = {v.type.static_shape: np.asarray(graph.constant(v)) for v in graph.constants}
    w, a, b = (by_shape[shape].astype(np.float64) for shape in shapes)
    (made,) = (after.constant(v) for v in after.constants)
    assert np.array_equal(made, (w + a @ b).astype(np.float32))


def test_weights_grow_within_bounds() -> None:
    m = Model("shared")
    x, a, b, w = m.input("x", 64, 192), m.weight(192, 24), m.weight(24, 192), m.weight(192, 192)
    side = m.op("matmul", m.op("matmul", x, a), b)
    both = m.op("add", side, m.op("matmul", x, w))
    graph = m.finish(both, *(m.op("relu", v) for v in (a, b, w)))
    assert derive(graph, limits(growth=4.0)) is not graph
    assert derive(graph, limits(growth=1.0)) is graph


def parallel(channels: int = 64, size: int = 28) -> Graph:
    """Returns two convolutions of the same windows of an image, added."""
    m = Model("parallel")
    x = m.op("relu", m.input("x", 1, channels, size, size))
    return m.finish(m.op("add", *(m.conv(x, channels, 3, pad=1) for _ in range(2))))


def test_a_node_is_replaced_by_one_site_alone(agree: Agree) -> None:
    """The sum is one convolution of added weights; each convolution alone has bilinear forms
    too."""
    graph = parallel()
    found = decisions(graph, limits())
    whole, *parts = found
    assert [len(d.site.nodes) for d in found] == [3, 1, 1]
    assert all(any(o.seconds for o in d.options) for d in found)
    assert (whole.chosen is None) != all(d.chosen is None for d in parts)
    agree(graph, derive(graph, limits()), tolerance=1e-4)


# ---- unchanged graphs ---------------------------------------------------------------------------


def dearer_order() -> Graph:
    m = Model("dearer")
    x = m.input("x", 4, 64)
    return m.finish(m.op("matmul", m.op("matmul", x, m.input("a", 64, 64)), m.input("b", 64, 64)))


def between(name: str) -> Graph:
    """Returns linear attention with a function between the matmuls."""
    m = Model("between")
    q, k, v = m.input("q", 512, 16), m.input("k", 16, 512), m.input("v", 512, 16)
    return m.finish(m.op("matmul", m.op(name, m.op("matmul", q, k)), v))


def read_twice() -> Graph:
    m = Model("twice")
    q, k, v = m.input("q", 512, 16), m.input("k", 16, 512), m.input("v", 512, 16)
    scores = m.op("matmul", q, k)
    return m.finish(m.op("matmul", scores, v), scores)


def squared() -> Graph:
    m = Model("squared")
    q, k, v = m.input("q", 512, 16), m.input("k", 16, 512), m.input("v", 512, 16)
    scores = m.op("matmul", q, k)
    return m.finish(m.op("matmul", m.op("mul", scores, scores), v))


def halves() -> Graph:
    m = Model("halves")
    q, k, v = (m.input(n, 512, 512, dtype=F16) for n in "qkv")
    v = m.op("reduce_sum", v, attrs=ReduceAttrs((1,), True))
    return m.finish(m.op("matmul", m.op("matmul", q, k), v))


def far_number() -> Graph:
    """Returns a scale that keeps matmuls from overflowing."""
    m = Model("far")
    q, k, v = m.input("q", 512, 16), m.input("k", 16, 512), m.input("v", 512, 16)
    small = m.op("mul", m.op("matmul", q, k), m.scalar(1e-30))
    return m.finish(m.op("matmul", small, v))


def far_literal() -> Graph:
    """Returns `far_number` with the scale inside an expression."""
    m = Model("far")
    q, k, v = m.input("q", 512, 16), m.input("k", 16, 512), m.weight(512, 16)
    b = ExprBuilder(q.type, k.type)
    i, j = b.iters(512, 512)
    (depth,) = b.iters(16)
    sums = b.sum((i, j), b.read(0, i, depth) * b.read(1, depth, j), over=(depth,))
    i, j = b.iters(512, 512)
    (small,) = express(m.builder, b.finish((i, j), b.read(sums, i, j) * 1e-30), q, k)
    return m.finish(m.op("matmul", small, v))


def difference() -> Graph:
    """Returns `x(W - AB)` of few rows, where the subtraction before the matmul cancels."""
    m = Model("difference")
    x, w = m.input("x", 1, 192), m.input("w", 192, 192)
    side = m.op("matmul", m.input("a", 192, 8), m.input("b", 8, 192))
    return m.finish(m.op("matmul", x, m.op("sub", w, side)))


def padded() -> Graph:
    """Returns a convolution that reads zeros around the result of another convolution with a
    bias."""
    m = Model("padded")
    return m.finish(m.conv(m.conv(m.input("x", 1, 8, 12, 12), 2, 1), 8, 3, pad=1))


STAYS = {
    "dearer order": dearer_order(),
    "relu between": between("relu"),
    "exp between": between("exp"),
    "read twice": read_twice(),
    "squared": squared(),
    "halves": halves(),
    "far number": far_number(),
    "far literal": far_literal(),
    "difference": difference(),
    "padded": padded(),
    "many rows": updated(rows=400),
}


@pytest.mark.parametrize("name", STAYS)
def test_graphs_without_a_cheaper_form_stay(name: str) -> None:
    assert derive(STAYS[name], limits()) is STAYS[name]


@pytest.mark.parametrize("first", [0, 8])
def test_parts_of_a_value_are_a_common_factor_where_they_are_the_same(first: int) -> None:
    m = Model("parts")
    x = m.input("x", 64, 16)

    def part(start: int) -> Value:
        starts, sizes = (tuple(map(as_index, part)) for part in ((0, start), (64, 8)))
        return m.op("slice", x, attrs=SliceAttrs(starts, (1, 1), sizes))

    a, b = (m.op("matmul", m.transpose(part(n), 1, 0), m.weight(64, 64)) for n in (0, first))
    (site,) = sites(m.finish(m.op("add", a, b)))
    region = composed(site.nodes)
    found = reassociated(region, site.constants, Rates()).candidates
    assert all(same(region, candidate.region) for candidate in found)
    assert ("out of two terms" in found[0].chain) == (first == 0)


@pytest.mark.parametrize("name", MODELS)
def test_small_models_compute_the_same(name: str, agree: Agree) -> None:
    graph = MODELS[name]()
    agree(
        graph,
        derive(graph, limits()),
        tolerance=1e-5,
        n=4 if name == "slices" else 2,
        s=5,
        h=6,
        w=7,
        t=4,
    )


# ---- random sites -------------------------------------------------------------------------------


def random_graph(rng: np.random.Generator) -> Graph:
    """Returns matmuls, sums, scales and maps of small matrices in any nesting."""
    m = Model("random")
    sizes = [int(n) for n in rng.integers(1, 7, 3)]

    def leaf(rows: int, columns: int) -> Value:
        if rng.random() < 0.4:
            array = rng.integers(-3, 4, (rows, columns)).astype(np.float32)
            return m.builder.constant(array, "c")
        return m.input(f"x{rng.integers(1 << 40)}", rows, columns)

    def made(rows: int, columns: int, depth: int) -> Value:
        if depth == 0:
            return leaf(rows, columns)
        kind = rng.integers(7)
        if kind < 3:
            middle = int(rng.choice(sizes))
            return m.op("matmul", made(rows, middle, depth - 1), made(middle, columns, depth - 1))
        if kind == 3:
            name = str(rng.choice(["add", "sub", "mul"]))
            return m.op(name, made(rows, columns, depth - 1), made(rows, columns, depth - 1))
        if kind == 4:
            row = made(1, columns, depth - 1) if rng.random() < 0.5 else made(rows, 1, depth - 1)
            return m.op("mul", made(rows, columns, depth - 1), row)
        if kind == 5:
            whole = m.transpose(made(columns, rows, depth - 1), 1, 0)
            return m.op("mul", whole, m.scalar(float(rng.choice([2, -1, 3]))))
        flat = m.reshape(made(rows, 2 * columns, depth - 1), rows, 2, columns)
        return m.op("reduce_sum", flat, attrs=ReduceAttrs((1,), False))

    rows, columns = (int(rng.choice(sizes)) for _ in range(2))
    return m.finish(m.op("neg", made(rows, columns, 3)))


@pytest.mark.parametrize("seed", range(10))
def test_random_sites_are_the_same_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = Rates(1.0, 1e3, 1e3)
    compared = 0
    for _ in range(5):
        for site in sites(random_graph(rng)):
            region = composed(site.nodes)
            arrays = [
                rng.integers(-2, 3, [int(repr(d)) for d in v.type.shape]).astype(np.float64)
                for v in site.operands
            ]
            (want,) = evaluated(region, arrays)
            for candidate in reassociated(region, site.constants, rates).candidates:
                assert same(region, candidate.region), candidate.chain
                (got,) = evaluated(candidate.region, arrays)
                assert np.array_equal(got, want), candidate.chain
                compared += 1
    assert compared > 4


def evaluated(region: Region, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Evaluates a region of f32 in f64, where integers are exact."""
    made = fold(region, (True,) * len(region.params), arrays)
    return tuple(made[n][c] for n, c in region.outputs)


# ---- soundness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("operand", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_infinities_and_nan_touch_the_same_results(operand: str, value: float) -> None:
    graph = linear_attention(tokens=128)
    after = derive(graph, limits())
    assert after is not graph
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal((1, 128, 16)).astype(np.float32) for v in graph.inputs}
    feeds[operand][0, 5, 3] = value
    feeds["q"][0, 7] = 0
    with np.errstate(all="ignore"):
        (want,), (got,) = (evaluate_graph(g, feeds).values() for g in (graph, after))
    assert np.array_equal(np.isfinite(want), np.isfinite(got))


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_constants_that_do_not_fold_to_numbers_stay(value: float) -> None:
    graph = low_rank()
    array = np.full((24, 192), value, np.float32)
    (small,) = (v for v in graph.constants if v.type.static_shape == (24, 192))
    handle = graph.store.put(array)
    changed = replace(graph, constants={**graph.constants, small: handle})
    assert chains(changed)
    with np.errstate(all="ignore"):
        assert ops(derive(changed, limits())) == ops(graph)


@pytest.mark.parametrize("sizes", [(0, 4, 5, 3), (3, 0, 5, 4), (3, 4, 0, 5), (1, 1, 1, 1)])
def test_sizes_of_nothing_and_one(sizes: tuple[int, int, int, int], agree: Agree) -> None:
    m, k, n, o = sizes
    b = Model("edges")
    a, c, d = b.input("a", m, k), b.input("b", k, n), b.input("c", n, o)
    graph = b.finish(b.op("matmul", b.op("matmul", a, c), d))
    for site in sites(graph):
        region = composed(site.nodes)
        for candidate in reassociated(region, site.constants, Rates()).candidates:
            if m and o:
                assert same(region, candidate.region)
            else:
                with pytest.raises(Unchecked, match="no sizes are known"):
                    same(region, candidate.region)
    agree(graph, derive(graph, limits()), tolerance=1e-6)


def test_a_wrong_candidate_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check between search and graph detects a contraction of the wrong operand."""

    def wrong(*args: Any) -> Rewrites:
        found = reassociated(*args)
        best, *rest = found.candidates
        (first, *others) = best.region.stages
        factor, *more = first.factors
        turned = factor._replace(forms=(*factor.forms[:-2], *reversed(factor.forms[-2:])))
        stages = (first._replace(factors=(turned, *more)), *others)
        bad = best._replace(region=best.region._replace(stages=stages))
        return found._replace(candidates=(bad, *rest))

    monkeypatch.setattr(module, "reassociated", wrong)
    m = Model("square")
    q, k, v = m.input("q", 200, 16), m.input("k", 16, 16), m.input("v", 16, 16)
    graph = m.finish(m.op("matmul", m.op("matmul", q, k), v))
    with pytest.raises(InternalError, match="changes what is computed") as caught:
        derive(graph, limits())
    assert "(x0 (x1 x2))" in str(caught.value)


def test_alternatives_that_bounds_rule_out_cost_more() -> None:
    graphs = [SITES[name].graph() for name in PAYS]
    found = [d for graph in graphs for d in decisions(graph, limits())]
    bounded = [(d, o) for d in found for o in d.options if o.why.startswith("its products")]
    assert all(_seconds(d, o) > (1 - MARGIN) * (d.seconds or 0) for d, o in bounded)
    for decision in found:
        for option in decision.options:
            least = option.candidate.least_seconds(limits().prices.planner.rates)
            assert least <= _seconds(decision, option)


def _seconds(decision: SiteOptions, option: Option) -> float:
    return limits().prices.seconds(decision.site, ((decision.site, option.candidate),))


def test_equal_sites_are_priced_once() -> None:
    m = Model("layers")
    x = m.input("x", 64, 96)
    for _ in range(4):
        x = m.op("relu", m.op("matmul", m.op("matmul", x, m.weight(96, 96)), m.weight(96, 8)))
        x = m.op("relu", m.op("matmul", x, m.weight(8, 96)))
    graph = m.finish(x)
    own = limits()
    found = decisions(graph, own)
    assert len([d for d in found if d.chosen]) == 4
    assert own.prices.priced <= 3 * 3


def test_symbolic_sizes_are_kept(agree: Agree) -> None:
    m = Model("symbolic")
    s = symbol("s", 1)
    q, k, v = m.input("q", s, 4), m.input("k", 4, s), m.input("v", s, 4)
    graph = m.finish(m.op("matmul", m.op("matmul", q, k), v))
    after = derive(graph, limits())
    assert after is not graph
    agree(graph, after, tolerance=1e-5, s=7)


def test_options_leave_the_pass_out() -> None:
    target = parse_target("cpu", "host", detect)
    for options, found in (
        (Options(), True),
        (Options(derive=False), False),
        (Options(numerics="strict"), True),
        (Options(level=1), False),
    ):
        backend = CpuBackend(target, options, 0)
        assert (backend.settings.derivations is not None) == found
        strict = options.numerics == "strict"
        assert backend.settings.derivations is None or backend.settings.derivations.strict == strict


def test_narrow_weights_stay_narrow() -> None:
    """Precomputed weights would take eight times the bytes of the 4-bit weights."""
    m = Model("levels")
    rng = np.random.default_rng(3)
    levels = nibbles(rng.integers(-8, 8, (576, 192)).astype(np.int8), 0)
    scales, zeros = (rng.uniform(-1, 1, (18, 192)).astype(np.float32) for _ in range(2))
    operands = [m.builder.constant(a, f"c{n}") for n, a in enumerate((levels, scales, zeros))]
    x = m.op("relu", m.input("x", 128, 576))
    x = m.op("matmul_levels", x, *operands, attrs=LevelsAttrs(4, 32))
    keys = m.transpose(m.reshape(x, 128, 3, 64), 1, 2, 0)
    graph = m.finish(m.op("matmul", m.input("queries", 3, 128, 64), keys))
    options = [o for d in decisions(graph, limits()) for o in d.options]
    assert options
    assert all(option.why for option in options)
    assert constant_bytes(derive(graph, limits())) == constant_bytes(graph)
