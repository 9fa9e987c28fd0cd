"""Constants that follow from their indices: what is recognised, and that kernels compute it."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.op import Array
from tcc.passes.graph.computed_constants import (
    Band,
    Linear,
    band_of,
    linear_of,
    with_computed_constants,
)
from tcc.passes.pipeline import GPU, lower
from tcc.passes.program.lower_graph import place_graph
from tcc.passes.program.lowered import Plan
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.plan import BlockPlanner

from tests.passes.fuse.models import Model
from tests.passes.fuse.test_programs import check

INF = float("inf")


@pytest.mark.parametrize("low", [None, -7, 0, 3])
@pytest.mark.parametrize("high", [None, -3, 0, 8])
@pytest.mark.parametrize("shape", [(9, 9), (5, 12), (1, 1, 12, 5), (2, 3, 9, 9)])
def test_bands_are_recognised(low: int | None, high: int | None, shape: tuple[int, ...]) -> None:
    distance = np.arange(shape[-1]) - np.arange(shape[-2])[:, None]
    inside = (distance >= (-INF if low is None else low)) & (
        distance <= (INF if high is None else high)
    )
    mask = np.broadcast_to(np.where(inside, np.float32(0), np.float32(-INF)), shape)
    found = band_of(mask)
    if inside.all() or not inside.any():
        assert found is None
        return
    assert found is not None
    made = (distance >= (-INF if found.low is None else found.low)) & (
        distance <= (INF if found.high is None else found.high)
    )
    np.testing.assert_array_equal(np.where(made, found.inside, found.outside), mask.reshape(
        -1, *shape[-2:]
    )[0])  # fmt: skip


def test_which_side_of_an_edge_is_inside() -> None:
    causal = np.tril(np.ones((8, 8), np.bool_))
    assert band_of(causal) == Band(None, 0, True, False)
    assert band_of(np.where(causal, 0.0, -INF)) == Band(None, 0, 0.0, -INF)
    assert band_of(~causal) == Band(1, None, True, False)
    assert band_of(causal & causal[::-1, ::-1]) == Band(0, 0, True, False)


def _changed(mask: Array, at: tuple[int, ...]) -> Array:
    mask = mask.copy()
    mask[at] = not mask[at]
    return mask


def test_other_constants_are_no_bands() -> None:
    causal = np.tril(np.ones((2, 80, 80), np.bool_))
    for mask in (
        _changed(causal, (1, 70, 3)),
        _changed(causal, (0, 0, 79)),
        causal[:, ::-1],
        np.ones((80, 80), np.bool_),
        np.tril(np.ones((80, 80))) + np.tril(np.ones((80, 80)), -1),
        np.where(causal, np.float32(0), np.float32(np.nan)),
        np.eye(3, dtype=np.bool_),  # too few elements to be worth it
    ):
        assert band_of(mask) is None


def test_linear_integers_are_recognised() -> None:
    rows = np.arange(20, dtype=np.int64)[:, None] * 5 - 3
    assert linear_of(rows) == Linear(-3, (5, 0))
    assert linear_of(rows + np.arange(4)) == Linear(-3, (5, 1))
    assert linear_of(rows * rows) is None
    assert linear_of(np.full((20,), 7)) is None
    assert linear_of(rows.astype(np.float32)) is None


def masked(rows: int, columns: int) -> Graph:
    """Values below the diagonal of a constant mask, and before a constant position."""
    m = Model("masked")
    x = m.input("x", 2, rows, columns)
    causal = np.tril(np.ones((1, rows, columns), np.bool_), 2)
    lowest = m.builder.constant(np.where(causal, 0, -INF).astype(np.float32), "lowest")
    first = m.builder.constant(np.arange(columns, dtype=np.int64), "columns")
    last = m.builder.constant(np.full((1,), columns - 4, np.int64), "last")
    early = m.op("less", first, last)
    hidden = m.op("exp", m.op("add", x, lowest))
    return m.finish(m.op("where", early, hidden, m.scalar(-1.0)))


def test_kernels_compute_masks_and_ranges() -> None:
    graph = masked(24, 40)
    placed = with_computed_constants(place_graph(graph))
    (kernel,) = [s.kernel for s in placed.steps if s.kernel is not None]
    assert [v.name for v in kernel.operands if v.type.rank > 1] == ["x"]
    made = lower(graph, GPU, Plan(BlockPlanner(), arena_planner(), FULL), Trace())
    section = [part() for part in made.weights.parts()]
    packed = np.concatenate(section) if section else np.zeros(0, np.uint8)
    check(graph, (made.program, list(made.kernels), packed), 1)
    x = np.random.default_rng(0).standard_normal((2, 24, 40)).astype(np.float32)
    want = evaluate_graph(graph, {"x": x})[graph.outputs[0].name]
    assert (want[:, 0, 3:36] == 0).all()
    assert (want[:, :, 36:] == -1).all()
