"""Winograd convolutions agree with f64 within the error policy, and are used where they pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tcc.debug import Trace
from tcc.ir.expr.verify import verify_expr
from tcc.ir.graph import Graph, GraphBuilder, constant_bytes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import graph_text
from tcc.ir.graph.verify import verify_graph
from tcc.ir.index import IndexLike, as_int, const, symbol
from tcc.ir.types import F32, F64, DType, tensor
from tcc.ops import OPS
from tcc.passes.derive.bilinear.convolutions import Tiled, convolutions
from tcc.passes.derive.bilinear.tiled_conv import AxisForm, Form, conv_of, points
from tcc.passes.derive.derive import Derivations, decisions, derive
from tcc.passes.derive.prices import Prices, Replacements
from tcc.passes.derive.sites import DerivationSite, scopes
from tcc.passes.fuse.guards import split_guards
from tcc.passes.fuse.partition import partition
from tcc.passes.pipeline import GraphSettings, run_pipeline
from tcc.passes.program.lower_graph import halo_widths
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.runtime.module import Module
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.shipped_machines import shipped_machine

from tests.lib.oracle.graph.parse import parse_graph
from tests.part import part
from tests.passes.derive.bilinear.products import (
    F2,
    F4,
    FREE,
    Only,
    Products,
    form_nodes,
    forms_in,
    products,
)
from tests.passes.layout.test_choose import planner
from tests.passes.placing import TYPICAL, place_graph

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Graph], Module]


@dataclass(frozen=True)
class Conv:
    """A convolution of [2, channels, high, wide] images; `fused` adds an operand and a relu."""

    channels: int = 24
    filters: int = 20
    high: int = 8
    wide: int = 8
    before: tuple[int, int] = (1, 1)
    after: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    group: int = 1
    kernel: int = 3
    bias: bool = True
    fused: bool = False
    images: IndexLike = 2
    dtype: DType = F32
    constant: bool = True

    def arrays(self) -> tuple[Array, Array]:
        rng = np.random.default_rng(5)
        shape = (self.filters, self.channels // self.group, self.kernel, self.kernel)
        dtype = self.dtype.carrier
        return rng.standard_normal(shape).astype(dtype), rng.standard_normal(self.filters).astype(
            dtype
        )

    def graph(self) -> Graph:
        b = GraphBuilder("conv")
        form = tensor(self.dtype, self.images, self.channels, self.high, self.wide)
        x, (w, bias) = b.input("x", form), self.arrays()
        weights = b.constant(w, "w") if self.constant else b.input("w", tensor(F32, *w.shape))
        pads = tuple(tuple(map(const, p)) for p in (self.before, self.after))
        attrs = OPS["conv"].attrs(self.strides, *pads, self.dilations, self.group)
        operands = [x, weights, *([b.constant(bias, "bias")] if self.bias else [])]
        (y,) = b.add(OPS["conv"], operands, attrs, loc="layer/conv")
        if self.fused:
            other = b.input("r", y.type)
            (y,) = b.add(OPS["add"], [y, other])
            (y,) = b.add(OPS["relu"], [y])
        return b.finish([y])

    def image(self) -> Array:
        rng = np.random.default_rng(6)
        shape = (2, self.channels, self.high, self.wide)
        return rng.standard_normal(shape).astype(self.dtype.carrier)


def correlation(case: Conv, image: Array, weights: Array) -> Array:
    """Returns the convolution without bias, in f64."""
    pads = [(0, 0), (0, 0), *zip(case.before, case.after, strict=True)]
    padded = np.pad(image.astype(np.float64), pads)
    (dy, dx), kernel = case.dilations, weights.shape[2]
    high, wide = padded.shape[2] - (kernel - 1) * dy, padded.shape[3] - (kernel - 1) * dx
    images = padded.reshape(len(padded), case.group, -1, *padded.shape[2:])
    filters = weights.astype(np.float64).reshape(case.group, -1, *weights.shape[1:])
    parts = (
        np.einsum(
            "ngchw,goc->ngohw",
            images[..., i * dy : i * dy + high, j * dx : j * dx + wide],
            filters[..., i, j],
        )
        for i in range(kernel)
        for j in range(kernel)
    )
    total: Array = np.sum(list(parts), axis=0)
    return total.reshape(len(padded), -1, high, wide)


def bound_of(case: Conv) -> Array:
    """Returns the bound 2 * gamma_K * (|A| * |B|) of every element."""
    weights, bias = case.arrays()
    k = 9 * case.channels // case.group + case.bias
    gamma = k * 2.0**-24 / (1 - k * 2.0**-24)
    sums = correlation(case, np.abs(case.image()), np.abs(weights))
    bound: Array = 2 * gamma * (sums + np.abs(bias)[:, None, None] * case.bias)
    return bound


def within_policy(case: Conv, actual: Array, exact: Array) -> None:
    """Fails if an element is further from the exact sum than the bound."""
    assert np.all(np.abs(actual - exact) <= bound_of(case))


def maxima(image: Array) -> Array:
    """Returns the maxima of the complete 2 x 2 windows."""
    high, wide = (n // 2 for n in image.shape[2:])
    whole = image[..., : 2 * high, : 2 * wide]
    found: Array = whole.reshape(*image.shape[:2], high, 2, wide, 2).max(axis=(3, 5))
    return found


def form_of(graph: Graph) -> list[str]:
    """Returns the names of the ops; an input transform has the number of its points appended."""
    found = []
    for node in form_nodes(graph):
        own = len(node.inputs) == 1 and node.op.name == "expression"
        points = f" {node.outputs[0].type.shape[0].key}" if own else ""
        found.append(node.op.name + points)
    return found


def nodes_of(form: Form) -> list[str]:
    """Returns the ops by which a form replaces a convolution."""
    return [f"expression {points(form)}", "expression", "expression"]


CASES = {
    "whole tiles": (Conv(), F4),
    "ragged": (Conv(high=15, wide=14), F4),
    "no padding": (Conv(high=10, wide=15, before=(0, 0), after=(0, 0), bias=False), F4),
    "uneven padding": (Conv(high=12, wide=8, before=(2, 0), after=(1, 3)), F4),
    "one tile": (Conv(high=4, wide=4), F4),
    "small tiles": (Conv(high=2, wide=6, bias=False), F2),
    "small ragged": (Conv(high=2, wide=5), F2),
    "dilated": (Conv(high=16, wide=15, before=(2, 2), after=(2, 2), dilations=(2, 2)), F4),
    "dilated ragged": (Conv(high=11, wide=23, before=(1, 3), after=(1, 3), dilations=(1, 3)), F4),
    "many channels": (Conv(channels=70, filters=35), F4),
    "one kernel": (Conv(high=23, wide=27, fused=True), F4),
    "one kernel, dilated": (
        Conv(high=22, wide=25, before=(2, 2), after=(2, 2), dilations=(2, 2)),
        F4,
    ),
    "one kernel, small tiles": (Conv(high=2, wide=99, before=(1, 3), after=(1, 3)), F2),
    "fused": (Conv(channels=17, filters=33, high=7, wide=9, fused=True), F4),
    "few channels": (Conv(channels=8), F4),
    "groups": (Conv(channels=24, filters=20, group=2, high=15, wide=14), F4),
    "groups of few channels": (Conv(channels=32, filters=8, group=4, high=13, fused=True), F4),
    "groups, small tiles": (Conv(channels=32, filters=64, group=2, high=2, wide=5), F2),
    "groups, dilated": (
        Conv(96, 48, group=3, high=11, wide=23, before=(1, 3), after=(1, 3), dilations=(1, 3)),
        F4,
    ),
}


@pytest.mark.parametrize("name", part("bilinear forms", CASES, 2))
def test_results_keep_the_error_policy(name: str, compiled: Run) -> None:
    case, form = CASES[name]
    before = case.graph()
    after = derive(before, FREE)
    verify_graph(after)
    assert form_of(after)[:3] == nodes_of(form)
    weights, bias = case.arrays()
    exact = correlation(case, case.image(), weights)
    exact += bias[:, None, None] * case.bias
    feeds = {"x": case.image()}
    if case.fused:
        feeds["r"] = np.random.default_rng(1).standard_normal(exact.shape).astype(np.float32)
        exact = np.maximum(exact + feeds["r"], 0)
    (output,) = after.outputs
    module = compiled(after)
    for actual in (evaluate_graph(after, feeds)[output.name], module.run(feeds)[output.name]):
        within_policy(case, actual, exact)


def test_the_number_of_images_may_be_symbolic(agree: Callable[..., None]) -> None:
    before = Conv(images=symbol("n", 1)).graph()
    after = derive(before, FREE)
    assert form_of(after) == nodes_of(F4)
    agree(before, after, 1e-5, n=3)


def test_expressions_are_well_formed_and_the_text_reads_back() -> None:
    graph = derive(CASES["dilated ragged"][0].graph(), FREE)
    for node in graph.nodes:
        operands = node.inputs[2:] if node.op.name == "guarded" else node.inputs
        verify_expr(node.attrs.expr, [v and v.type for v in operands])
    text = graph_text(graph)
    again = parse_graph(text, OPS, graph.store)
    verify_graph(again)
    assert graph_text(again) == text


@pytest.mark.parametrize(
    "case",
    [
        Conv(strides=(2, 1), dilations=(2, 1)),
        Conv(kernel=1),
        Conv(dtype=F64),
        Conv(constant=False),
    ],
)
def test_convolutions_without_a_fast_form_stay(case: Conv) -> None:
    graph = case.graph()
    assert derive(graph, FREE) is graph


@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_weights_that_are_not_finite_stay(weight: float) -> None:
    b = GraphBuilder("infinite")
    x = b.input("x", tensor(F32, 1, 8, 16, 16))
    w = b.constant(np.full((8, 8, 3, 3), weight, np.float32))
    same = OPS["conv"].attrs((1, 1), (const(1),) * 2, (const(1),) * 2, (1, 1), 1)
    graph = b.finish(b.add(OPS["conv"], [x, w], same))
    assert form_of(derive(graph, FREE)) == ["conv"]


def test_weights_grow_within_bounds() -> None:
    b = GraphBuilder("two")
    x = b.input("x", tensor(F32, 1, 8, 16, 16))
    same = OPS["conv"].attrs((1, 1), (const(1),) * 2, (const(1),) * 2, (1, 1), 1)
    rng = np.random.default_rng(0)
    for filters in (8, 16):
        w = b.constant(rng.standard_normal((filters, x.type.shape[1].const, 3, 3)).astype("f4"))
        (x,) = b.add(OPS["conv"], [x, w], same)
    graph = b.finish([x])
    small, large = 8 * 8 * 9 * 4, 8 * 16 * 9 * 4
    assert constant_bytes(graph) == small + large
    # F(4 x 4) adds four times a layer's filters, F(2 x 2) 16 / 9 times. The second layer has twice
    # as many filters as the first.
    expected = {1: [], 1.5: [], 1.7: ["16"], 2.8: ["16"] * 2, 3.6: ["36", "16"], 5: ["36"] * 2}
    for growth, taken in expected.items():
        after = derive(graph, replace(FREE, growth=growth))
        assert constant_bytes(after) <= growth * constant_bytes(graph)
        assert [op.split()[1] for op in form_of(after) if op.startswith("expression ")] == taken


def test_strict_numerics_leave_the_pass_out() -> None:
    graph = Conv().graph()
    assert form_of(
        run_pipeline(graph, 2, Trace(verifying=True), settings=GraphSettings(derivations=FREE))
    ) == nodes_of(F4)
    assert form_of(run_pipeline(graph, 2, Trace())) == ["conv"]
    assert form_of(run_pipeline(graph, 1, Trace(), settings=GraphSettings(derivations=FREE))) == [
        "conv"
    ]


@pytest.mark.parametrize("channels", [64, 128, 256])
def test_one_kernel_if_tiles_hold_the_transformed_values(channels: int) -> None:
    graph = derive(Conv(channels, channels, high=24, wide=12, fused=True).graph(), FREE)
    *_, group = partition(split_guards(graph).graph, planner())
    assert [n.op.name for n in group.members] == [*["expression"] * 3, "add", "relu"]


def grouped(high: int) -> list[list[str]]:
    """Returns the ops of each kernel of a convolution whose weights take 37.7 MB and stream from
    memory."""
    graph = derive(Conv(512, 512, high=high, wide=high, fused=True).graph(), FREE)
    kernels = CoreChooser(planner().core, Pricer(SERVER, 36 * 512 * 512 * 4))
    groups = partition(split_guards(graph).graph, kernels)
    kept = {node.outputs for node in form_nodes(graph)} | {
        n.outputs for n in graph.nodes if n.op.name == "guarded"
    }
    return [
        [n.op.name for n in group.members]
        for group in groups
        if kept.issuperset(n.outputs for n in group.members)
    ]


def test_three_kernels_if_each_tile_would_read_many_weights() -> None:
    """The few tiles exchange at most 4.7 MB between kernels."""
    assert grouped(14) == [["expression"], ["expression"], ["expression", "add", "relu"]]


def test_one_kernel_if_few_tiles_are_transformed_again() -> None:
    """A program instance has the weights of some channels, and transforming its few tiles again is
    quick."""
    assert grouped(7) == [[*["expression"] * 3, "add", "relu"]]


@pytest.mark.parametrize(("channels", "size"), [(16, 64), (32, 128)])
def test_one_kernel_if_matmuls_join_only_their_readers(channels: int, size: int) -> None:
    """A transform and a contraction alone do not form a kernel, although its price would be
    less."""
    b = GraphBuilder("enlarge")
    (x,) = b.add(OPS["relu"], [b.input("x", tensor(F32, 1, channels, size, size))])
    w = b.constant(np.zeros((channels, 1, 9, 9), np.float32))
    around = tuple((const(n),) * 2 for n in (4, 3))
    attrs = OPS["conv_transpose"].attrs((2, 2), *around, (1, 1), (0, 0), 1)
    graph = b.finish(b.add(OPS["conv_transpose"], [x, w], attrs))
    phases = derive(graph, Derivations(Only((AxisForm(4, 5),) * 2), growth=100))
    *_, group = partition(split_guards(phases).graph, planner())
    assert [n.op.name for n in group.members] == ["expression"] * 3


@dataclass(frozen=True)
class Pooled:
    """Maxima of windows over the image of a convolution and a relu."""

    kernel: tuple[int, int] = (2, 2)
    strides: tuple[int, int] = (2, 2)
    before: tuple[int, int] = (0, 0)
    ceil_mode: bool = False
    shared: bool = False

    def graph(self, case: Conv) -> Graph:
        b = GraphBuilder("pooled")
        x = b.input("x", tensor(F32, 2, case.channels, case.high, case.wide))
        w, bias = (b.constant(a) for a in case.arrays())
        same = OPS["conv"].attrs((1, 1), (const(1),) * 2, (const(1),) * 2, (1, 1), 1)
        (y,) = b.add(OPS["conv"], [x, w, bias], same)
        (y,) = b.add(OPS["relu"], [y])
        before = tuple(map(const, self.before))
        windows = OPS["max_pool"].attrs(
            self.strides, before, before, (1, 1), self.kernel, self.ceil_mode
        )
        (z,) = b.add(OPS["max_pool"], [y], windows)
        return b.finish([z, y] if self.shared else [z])


@pytest.mark.parametrize(("high", "wide"), [(24, 28), (23, 27), (8, 8)])
def test_maxima_of_windows_side_by_side_go_with_the_image(
    high: int, wide: int, compiled: Run
) -> None:
    case = Conv(high=high, wide=wide)
    after = derive(Pooled().graph(case), FREE)
    verify_graph(after)
    assert "max_pool" not in form_of(after)
    last = partition(split_guards(after).graph, TYPICAL)[-1].members
    assert [n.op.name for n in last][-2:] == ["relu", "expression"]
    weights, bias = case.arrays()
    exact = correlation(case, case.image(), weights) + bias[:, None, None]
    exact = maxima(exact.clip(0))
    (output,) = after.outputs
    feeds = {"x": case.image()}
    for actual in (
        evaluate_graph(after, feeds)[output.name],
        compiled(after).run(feeds)[output.name],
    ):
        assert np.all(np.abs(actual - exact) <= maxima(bound_of(case)))


@pytest.mark.parametrize(
    "pooled",
    [
        Pooled(kernel=(3, 3)),
        Pooled(strides=(1, 1)),
        Pooled(before=(1, 1)),
        Pooled(ceil_mode=True),
        Pooled(shared=True),
    ],
)
def test_pools_that_cannot_join_stay(pooled: Pooled) -> None:
    assert "max_pool" in form_of(derive(pooled.graph(Conv()), FREE))


def test_maxima_across_tiles_stay() -> None:
    odd = Derivations(Only((AxisForm(3, 3), AxisForm(4, 3))), growth=100)
    found = form_of(derive(Pooled().graph(Conv()), odd))
    assert found[0] == "expression 30"
    assert "max_pool" in found


def test_storage_lets_transforms_run_along_channels() -> None:
    b = GraphBuilder("chain")
    x = b.input("x", tensor(F32, 1, 16, 8, 8))
    same = OPS["conv"].attrs((1, 1), (const(1),) * 2, (const(1),) * 2, (1, 1), 1)
    for n in range(2):
        (x,) = b.add(OPS["conv"], [x, b.constant(np.full((16, 16, 3, 3), n + 1, np.float32))], same)
    graph = derive(b.finish([x]), FREE)
    placed = place_graph(graph)
    between = next(n for n in graph.nodes if n.op.name == "guarded").outputs[0]
    assert [as_int(n) for n in placed.layouts[between].sizes] == [1, 10, 10, 16]
    assert halo_widths(between, placed.layouts[between]) == (0, 0, 1, 1, 1, 1, 0, 0)


# ---- prices -------------------------------------------------------------------------------------


SERVER = shipped_machine("icelake-server")
PLANNER = CoreChooser(CoreModel(16, 32, SERVER.l2.size, SERVER.cores), Pricer(SERVER))


def among_others(case: Conv, *, given: bool = False, result: bool = False, loc: str = "") -> Graph:
    """Returns one convolution; its image is an input if `given`, else a kernel's result; its result
    is an output if `result`, else another kernel's operand."""
    b = GraphBuilder("region")
    x = b.input("x", tensor(F32, 1, case.channels, case.high, case.wide))
    if not given:
        (x,) = b.add(OPS["relu"], [x])
    w = b.constant(np.zeros((case.filters, case.channels // case.group, 3, 3), np.float32))
    pads = tuple(tuple(map(const, p)) for p in (case.before, case.after))
    attrs = OPS["conv"].attrs((1, 1), *pads, case.dilations, case.group)
    (y,) = b.add(OPS["conv"], [x, w], attrs, loc=loc)
    if case.fused:
        (y,) = b.add(OPS["relu"], [y])
    if result:
        return b.finish([y])
    none = (const(0), const(0))
    pooled = OPS["max_pool"].attrs((2, 2), none, none, (1, 1), (2, 2))
    (last,) = b.add(OPS["max_pool"], [y], pooled)
    return b.finish([last])


def site_of(case: Conv, *, given: bool = False, loc: str = "") -> DerivationSite:
    """Returns the site of the convolution of `among_others`."""
    (scope,) = scopes(among_others(case, given=given, loc=loc))
    (site,) = convolutions(scope)
    return site


def seconds(prices: Prices, site: DerivationSite, form: Form | None) -> float:
    """Returns the price in seconds of a convolution in a form, or of its direct sums if None."""
    conv = conv_of(site.sink)
    assert conv is not None
    return prices.seconds(site, () if form is None else ((site, Tiled("", 0.0, conv, form)),))


def layer(channels: int, filters: int, side: int, dilation: int = 1) -> Conv:
    around = (dilation, dilation)
    return Conv(channels, filters, side, side, around, around, around)


@pytest.mark.parametrize(
    ("case", "best"),
    [
        (layer(256, 256, 56), 36),
        (layer(512, 512, 28, 2), 35),  # 14 rows are 3 tiles of 5
        (layer(12, 12, 128), 36),  # the direct sums do not fill a vector either
        (layer(256, 256, 14), 25),  # 36 points of filters stream from memory
        (layer(1024, 1024, 4), None),  # one tile does not pay for 150 MB of weights
        (layer(8, 64, 224), 36),
        (replace(layer(384, 384, 14), group=12), 25),
        (replace(layer(256, 256, 56), group=8), 36),
        (replace(layer(64, 64, 28), group=64), None),  # one channel per group
    ],
    ids=str,
)
def test_layers_take_the_form_that_was_measured_to_be_fastest(case: Conv, best: int | None) -> None:
    limits = Derivations(Prices(PLANNER), growth=100)
    graph = derive(among_others(case), limits)
    first = next(n for n in form_nodes(graph) if n.op.name in ("conv", "expression"))
    found = as_int(first.outputs[0].type.shape[0]) if first.op.name == "expression" else None
    assert found == best


def test_a_result_of_the_graph_is_priced_in_the_callers_layout() -> None:
    """Writing tiles of 32 filters to separate planes takes longer than the direct sums."""
    for result, tiled in ((False, True), (True, False)):
        graph = among_others(layer(8, 32, 224), result=result)
        found = form_of(derive(graph, Derivations(Prices(PLANNER), growth=100)))
        assert ("expression 36" in found) == tiled


def test_later_nodes_of_the_same_kernel_are_part_of_a_region() -> None:
    plain, fused = site_of(layer(64, 64, 28)), site_of(replace(layer(64, 64, 28), fused=True))
    assert [n.op.name for n in plain.neighbourhood] == ["conv"]
    assert [n.op.name for n in fused.neighbourhood] == ["conv", "relu"]
    prices = Prices(PLANNER)
    for form in (None, F2, F4):
        least = seconds(prices, plain, form)
        assert 0.99 * least < seconds(prices, fused, form) < 1.1 * least


def test_an_image_of_the_callers_is_copied_for_either() -> None:
    prices, case = Prices(PLANNER), layer(64, 64, 56)
    for form in (None, F4):
        made = seconds(prices, site_of(case), form)
        assert seconds(prices, site_of(case, given=True), form) > made


def test_direct_products_of_pairs_are_twice_as_fast() -> None:
    prices, pairs, own = Prices(PLANNER), Prices(PLANNER, 2.0), site_of(layer(64, 64, 28))
    direct = seconds(prices, own, None)
    assert seconds(pairs, own, None) == pytest.approx(direct / 2, rel=0.02)
    assert seconds(pairs, own, F4) == seconds(prices, own, F4)


@pytest.mark.parametrize("name", ["direct", "pool"])
def test_prices_do_not_depend_on_names_of_nodes(name: str) -> None:
    plain, named = (
        seconds(Prices(PLANNER, 2.0), site_of(layer(64, 64, 28), loc=loc), F4)
        for loc in ("", f"{name}/conv")
    )
    assert named == pytest.approx(plain)


class _Together(Products):
    """Halves the price of two neighbours if both are in F(2 x 2)."""

    def seconds(self, site: DerivationSite, replacements: Replacements = ()) -> float:
        alone = super().seconds(site, replacements)
        both = list(forms_in(replacements).values()) == [F2, F2]
        return alone / 2 if both else alone


class _Recorded(Products):
    """Prices a layer at 500, in F(4 x 4) at 400, and in F(2 x 2) at 520, which cannot win."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[list[Form]] = []

    def seconds(self, site: DerivationSite, replacements: Replacements = ()) -> float:
        forms = list(forms_in(replacements).values())
        self.pairs += [forms] * (len(forms) > 1)
        left = sum(n.op.name == "conv" for n in site.nodes) - len(forms)
        return left * 500.0 + sum(520.0 if form == F2 else 400.0 for form in forms)


def test_hopeless_forms_are_not_priced_together_with_neighbours() -> None:
    prices = _Recorded()
    for found in decisions(_chain(), Derivations(prices, growth=100)):
        assert {o.seconds for o in found.options} - {None} == {400.0, 520.0}
    assert prices.pairs
    assert all(forms == [F4, F4] for forms in prices.pairs)


def _chain() -> Graph:
    b = GraphBuilder("chain")
    x = b.input("x", tensor(F32, 1, 8, 6, 10))  # 6 tiles of 36 points, or 15 of 16
    same = OPS["conv"].attrs((1, 1), (const(1),) * 2, (const(1),) * 2, (1, 1), 1)
    for n in range(3):
        (x,) = b.add(OPS["conv"], [x, b.constant(np.full((8, 8, 3, 3), n + 1, np.float32))], same)
        (x,) = b.add(OPS["relu"], [x])
    return b.finish([x])


def test_neighbours_are_chosen_together() -> None:
    graph = _chain()
    nodes = [n for n in graph.nodes if n.op.name == "conv"]
    assert all(products(n, F4) == 216 and products(n, F2) == 240 for n in nodes)
    for limits, form in ((FREE, F4), (Derivations(_Together(), growth=100), F2)):
        transforms = [op for op in form_of(derive(graph, limits)) if op.startswith("expression ")]
        assert transforms == [f"expression {points(form)}"] * 3
