"""Sites that a search derives anew: what is taken, what is refused, and the check of the chosen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tcc.errors import InternalError
from tcc.ir.graph import Graph
from tcc.passes.derive import rewritten
from tcc.passes.derive.convert import to_expr
from tcc.passes.derive.derive import Decision, decisions, derive
from tcc.passes.derive.record import Region
from tcc.passes.derive.search import State
from tcc.passes.graph.emit import express

from tests.passes.fuse.models import Model

from .derivations import band
from .test_derive import limits

Agree = Callable[..., None]


def banded(dilation: int, *, sums: bool = False) -> Graph:
    """Products within a band of 17 rows, 256 rows of each of 2 heads."""
    m = Model("banded")
    region = band(2, 256, 16, 8, dilation, sums=sums)
    shapes = ([d.const for d in p.shape] for p in region.params if p is not None)
    inputs = [m.op("relu", m.input(f"x{n}", *shape)) for n, shape in enumerate(shapes)]
    (y,) = express(m.builder, to_expr(region), *inputs)
    return m.finish(m.op("relu", y))


def conv(size: int, channels: int, *, stride: int = 1) -> Graph:
    m = Model("conv")
    x = m.op("relu", m.input("x", 1, channels, size, size))
    return m.finish(m.op("relu", m.conv(x, channels, 3, stride=stride, pad=1)))


def only(graph: Graph) -> Decision:
    (found,) = decisions(graph, limits())
    return found


@pytest.mark.parametrize("sums", [False, True])
def test_dilated_bands_are_regrouped(sums: bool, agree: Agree) -> None:
    graph = banded(4, sums=sums)
    found = only(graph)
    assert found.chosen is not None
    assert "regroup" in found.chosen.candidate.chain
    assert found.chosen.seconds < (found.seconds or 0) / 2
    agree(graph, derive(graph, limits()), tolerance=1e-5)


def test_a_dense_band_stays() -> None:
    graph = banded(1)
    assert derive(graph, limits()) is graph


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_no_faster_as_a_contraction_and_a_sum(stride: int) -> None:
    """512 channels, 7 x 7: the search finds it, and its estimate or its price refuses it."""
    found = only(conv(7, 512, stride=stride))
    derived = [o for o in found.options if "nest" in o.candidate.chain]
    assert derived
    assert found.chosen not in derived


def test_a_wrong_region_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of another residue are read."""
    original = rewritten._derived

    def wrong(region: Region, strict: bool) -> tuple[int, tuple[State, ...]]:
        states, found = original(region, strict)
        return states, tuple(s._replace(region=_shifted(s.region)) for s in found)

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
