"""A search derives sites anew, and a check confirms each chosen region."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tcc.debug import Trace
from tcc.errors import InternalError
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import IndexLike, symbol
from tcc.ir.region import Region
from tcc.ir.region.convert import to_expr
from tcc.ops.algebra.window import ConvTransposeAttrs
from tcc.passes.derive import rewritten
from tcc.passes.derive.algebra.cost import products
from tcc.passes.derive.derive import SiteOptions, decisions, derive
from tcc.passes.derive.rewritten import Rewritten
from tcc.passes.derive.rules import RULES
from tcc.passes.derive.search import Derivation
from tcc.passes.graph.decompose import is_derived
from tcc.passes.graph.emit import express
from tcc.passes.pipeline import GraphSettings, run_pipeline

from tests.passes.fuse.models import Model

from .derivations import band
from .site_cases import conv, limits

Agree = Callable[..., None]


def banded(dilation: int, *, sums: bool = False) -> Graph:
    """Returns contractions within a band of 17 rows, for 256 rows of each of 2 heads."""
    m = Model("banded")
    region = band(2, 256, 16, 8, dilation, sums=sums)
    shapes = ([d.const for d in p.shape] for p in region.params if p is not None)
    inputs = [m.op("relu", m.input(f"x{n}", *shape)) for n, shape in enumerate(shapes)]
    (y,) = express(m.builder, to_expr(region), *inputs)
    return m.finish(m.op("relu", y))


def only(graph: Graph) -> SiteOptions:
    (found,) = decisions(graph, limits())
    return found


@pytest.mark.parametrize("sums", [False, True])
def test_dilated_bands_are_regrouped(sums: bool, agree: Agree) -> None:
    graph = banded(4, sums=sums)
    found = only(graph)
    assert found.chosen is not None
    assert "regroup" in found.chosen.candidate.chain
    assert found.chosen.seconds < (found.seconds or 0) / 1.8
    agree(graph, derive(graph, limits()), tolerance=1e-5)


def test_strict_numerics_regroup_a_band_in_the_order_of_its_sums(agree: Agree) -> None:
    graph, strict = banded(4), replace(limits(), strict=True)
    (found,) = decisions(graph, strict)
    assert found.chosen is not None
    rules = {step.split()[0] for step in found.chosen.candidate.chain.split("; ")}
    assert all(RULES[rule].strict for rule in rules)
    agree(graph, derive(graph, strict), tolerance=0)
    taps = conv(7, 64)
    assert derive(taps, strict) is taps


def test_one_region_of_equal_estimates_is_priced() -> None:
    """The sum of a window may be split along either axis, with the same kernels."""
    graph = conv(28, 16)
    found = [o.candidate for o in only(graph).options if isinstance(o.candidate, Rewritten)]
    estimates = [candidate.estimate for candidate in found]
    assert len(estimates) == 2
    assert estimates[1] > 1.0001 * estimates[0]


def test_a_dense_band_stays() -> None:
    graph = banded(1)
    assert derive(graph, limits()) is graph


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_no_faster_as_a_contraction_and_a_sum(stride: int) -> None:
    """The convolution has 512 channels and 7 x 7 pixels: the search finds this form, and its
    estimate or its price rejects it."""
    found = only(conv(7, 512, stride=stride))
    derived = [o for o in found.options if "nest" in o.candidate.chain]
    assert derived
    assert found.chosen not in derived


def test_a_wrong_region_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted region reads rows of another residue."""
    original = rewritten._derived

    def wrong(region: Region, strict: bool) -> Derivation:
        derived = original(region, strict)
        shifted = (s._replace(region=_shifted(s.region)) for s in derived.candidates)
        return derived._replace(candidates=(*shifted,))

    monkeypatch.setattr(rewritten, "_derived", wrong)
    with pytest.raises(InternalError, match="changes what is computed") as caught:
        derive(banded(4), limits())
    assert "regroup" in str(caught.value)


def _shifted(region: Region) -> Region:
    first, *rest = region.stages
    factor, *others = first.factors
    *forms, last = factor.forms
    moved = factor._replace(forms=(*forms, last._replace(offset=last.offset + 1)))
    return region._replace(stages=(first._replace(factors=(moved, *others)), *rest))


# ---- transposed convolutions --------------------------------------------------------------------


def transposed(
    image: tuple[IndexLike, ...], kernel: int, stride: int, before: int, *, batch: IndexLike = 2
) -> Graph:
    """Returns a transposed convolution between pointwise functions; the output has `stride` times
    the input's size if possible."""
    rank, m = len(image), Model("transposed")
    extra = max(0, stride - kernel + 2 * before)
    lists = ((stride,), (before,), (before,), (1,), (extra if extra < stride else 0,))
    attrs = ConvTransposeAttrs(*(one * rank for one in lists), 1)
    x = m.op("relu", m.input("x", batch, 5, *image))
    y = m.op("conv_transpose", x, m.weight(5, 6, *(kernel,) * rank), m.weight(6), attrs=attrs)
    return m.finish(m.op("relu", y))


@pytest.mark.parametrize(
    ("image", "kernel", "stride", "before"),
    [
        ((9,), 16, 8, 4),
        ((5, 6), 4, 2, 1),
        ((5, 6), 3, 2, 1),
        ((4, 5), 2, 2, 0),
        ((4, 3), 5, 3, 1),
        ((2, 3, 4), 4, 2, 1),
    ],
    ids=str,
)
def test_transposed_convolutions_become_phases(
    image: tuple[int, ...], kernel: int, stride: int, before: int, agree: Agree
) -> None:
    graph = transposed(image, kernel, stride, before, batch=symbol("n", 1))
    after = run_pipeline(
        graph, 2, Trace(verifying=True), settings=GraphSettings(derivations=limits())
    )
    names = {node.op.name for node in after.nodes}
    assert "conv_transpose" not in names
    # Phases with fewer taps are separate convolutions: padded zeros would turn infinities into NaN.
    assert ("conv" in names) == (kernel % stride > 0)
    agree(graph, after, tolerance=1e-5, n=2)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 3), (4, 2)])
@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e30])
def test_a_bad_value_stays_with_the_phases_that_read_it(
    kernel: int, stride: int, bad: float
) -> None:
    graph = transposed((9, 8), kernel, stride, 1)
    after = run_pipeline(graph, 2, Trace(), settings=GraphSettings(derivations=limits()))
    (image,) = graph.inputs
    x = np.random.default_rng(kernel).standard_normal(image.type.static_shape).astype(np.float32)
    clean = [next(iter(evaluate_graph(g, {image.name: x}).values())) for g in (graph, after)]
    x[0, 1, 4, 5] = bad
    wanted, found = (
        next(iter(evaluate_graph(g, {image.name: x}).values())) for g in (graph, after)
    )
    same = wanted == clean[0]
    assert 0.5 < same.mean() < 1
    np.testing.assert_allclose(found[same], clean[1][same], rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


def test_phases_of_two_compute_nothing_that_is_cropped() -> None:
    """Multiply-adds of the contraction: 4 taps for each of 10 x 12 outputs."""
    candidates = [o.candidate for o in only(transposed((5, 6), 4, 2, 1)).options]
    regions = [c.region for c in candidates if isinstance(c, rewritten.Rewritten)]
    work = [sum(map(products, region.stages)) for region in regions]
    assert min(work) == 2 * 6 * 10 * 12 * 5 * 4


def test_symbolic_and_strict_transposed_convolutions_are_decomposed() -> None:
    graph = transposed((5, 6), 4, 2, 1)
    assert not is_derived(transposed((symbol("h", 1), 6), 4, 2, 1).nodes[1])
    for derivations in (None, limits()):
        after = run_pipeline(graph, 2, Trace(), settings=GraphSettings(derivations=derivations))
        assert ("conv" in {node.op.name for node in after.nodes}) == (derivations is None)
