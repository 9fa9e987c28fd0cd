"""Repetitions and interpolations that change places with sums, and those that must not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tcc.ir.graph import Graph
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import as_index, symbol
from tcc.ops.algebra.movement import ExpandAttrs, SliceAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.composite.resize import ResizeAttrs
from tcc.passes.derive.resampling import move_resamplings

from tests.closeness import assert_within
from tests.draws import RNG
from tests.passes.fuse.models import Model

from .site_cases import repeated, resampled_late, resized

Array = np.ndarray[Any, np.dtype[Any]]
Agree = Callable[..., None]


def moved(graph: Graph) -> Graph:
    """Moves every resampling as far as it can, whatever it costs."""
    return move_resamplings(graph, lambda graphs: 1)


def result(graph: Graph, x: Array) -> Array:
    with np.errstate(all="ignore"):
        (y,) = evaluate_graph(graph, {"x": x}).values()
    return y


def arrays_of(graph: Graph) -> list[torch.Tensor]:
    """Returns the constants of a graph in f64."""
    arrays = map(graph.store.common, graph.constants.values())
    return [torch.tensor(a).double() for a in arrays if a is not None]


TORCH_MODES = {
    ("nearest", "asymmetric", "floor"): {"mode": "nearest"},
    ("nearest", "half_pixel", "round_prefer_ceil"): {"mode": "nearest-exact"},
    ("linear", "half_pixel", "floor"): {"mode": "bilinear"},
    ("linear", "align_corners", "floor"): {"mode": "bilinear", "align_corners": True},
    ("cubic", "half_pixel", "floor"): {"mode": "bicubic"},
}


@pytest.mark.parametrize("as_rows", [False, True])
@pytest.mark.parametrize("larger", [10, 13])
@pytest.mark.parametrize("modes", TORCH_MODES)
def test_results_are_those_of_torch(
    modes: tuple[str, str, str], larger: int, as_rows: bool
) -> None:
    """Also where infinities and NaN are read."""
    mode, coordinates, rounding = modes
    kinds = {"mode": mode, "coordinates": coordinates, "rounding": rounding}
    graph = resized(5, larger, channels=6, features=4, as_rows=as_rows, **kinds)
    after = moved(graph)
    assert after is not graph
    x = RNG.standard_normal((1, 6, 5, 5)).astype(np.float32)
    image = torch.nn.functional.interpolate(
        torch.tensor(x).double(), size=(larger, larger), **TORCH_MODES[modes]
    )
    w, bias = arrays_of(graph)
    if as_rows:
        image = image.permute(0, 2, 3, 1).reshape(1, larger * larger, 6)
        want = torch.relu(image @ w + bias)
    else:
        want = torch.nn.functional.conv2d(image, w, bias)
    # Positions are computed in f32, so neighbours near a tie may get slightly other weights.
    assert_within(result(after, x), want.numpy(), 1e-4)
    x[0, 2, 3, 1], x[0, 1, 0, 4] = np.inf, np.nan
    finite = np.isfinite(result(graph, x))
    assert not finite.all()
    assert np.array_equal(np.isfinite(result(after, x)), finite)


@pytest.mark.parametrize("inner", [False, True])
def test_repeated_rows_are_multiplied_once(inner: bool) -> None:
    graph = repeated(inner, 5, 3, 4)
    after = moved(graph)
    sizes = [n.result.type.static_shape for n in after.nodes if n.op.name == "matmul"]
    assert sizes == [(2, 5, 4), (2, 5, 4)]
    x = RNG.integers(-4, 5, (2, 5, 4)).astype(np.float32)
    first, second = arrays_of(graph)
    rows = np.repeat(x, 3, 1) if inner else np.tile(x, (1, 3, 1))
    want = torch.relu(torch.tensor(rows).double() @ first) @ second
    assert np.array_equal(result(after, x), want.numpy())


def test_sizes_may_be_symbols() -> None:
    m, n = Model("symbols"), symbol("n", 1)
    x = m.reshape(m.input("x", n, 4), n, 1, 4)
    y = m.op("expand", x, attrs=ExpandAttrs((n, as_index(3), as_index(4))))
    graph = m.finish(m.op("matmul", m.reshape(y, n * 3, 4), m.weight(4, 4)))
    after = moved(graph)
    assert after is not graph
    array = RNG.integers(-4, 5, (5, 4)).astype(np.float32)
    assert np.array_equal(result(after, array), result(graph, array))


def upsampled(m: Model, mode: str = "linear", **attrs: Any) -> Any:
    shape = tuple(map(as_index, (1, 4, 6, 6)))
    return m.op(
        "resize",
        m.input("x", 1, 4, 3, 3),
        attrs=ResizeAttrs(shape, (None,) * 4, mode, "half_pixel", **attrs),
    )


def read_in_windows() -> Graph:
    m = Model("windows")
    return m.finish(m.conv(upsampled(m), 4, 3, pad=1))


def read_behind_a_maximum() -> Graph:
    m = Model("maximum")
    return m.finish(m.conv(m.op("relu", upsampled(m)), 4, 1))


def read_with_positions() -> Graph:
    m = Model("positions")
    y = m.op("add", upsampled(m, "nearest"), m.weight(1, 4, 6, 6))
    return m.finish(m.conv(y, 4, 1))


def read_by_two() -> Graph:
    m = Model("two")
    y = upsampled(m)
    return m.finish(m.conv(y, 4, 1), m.conv(y, 4, 1))


def summed_over_positions() -> Graph:
    m = Model("sum")
    return m.finish(m.op("reduce_sum", upsampled(m, "nearest"), attrs=ReduceAttrs((2,), True)))


def multiplied_by_itself() -> Graph:
    m = Model("square")
    y = upsampled(m)
    return m.finish(m.op("reduce_sum", m.op("mul", y, y), attrs=ReduceAttrs((1,), True)))


def extrapolated() -> Graph:
    m = Model("crop")
    shape = tuple(map(as_index, (1, 4, 6, 6)))
    roi = ((0.0, 1.0), (0.0, 1.0), (-0.5, 1.5), (0.0, 1.0))
    attrs = ResizeAttrs(shape, (None,) * 4, "linear", "tf_crop_and_resize", roi=roi)
    return m.finish(m.conv(m.op("resize", m.input("x", 1, 4, 3, 3), attrs=attrs), 4, 1))


def of_a_part() -> Graph:
    m = Model("part")
    none, one = (as_index(0),) * 2, (1, 1)
    part = SliceAttrs(none, one, tuple(map(as_index, (2, 4))))
    y = m.op("slice", m.input("x", 3, 4), attrs=part)
    return m.finish(m.op("matmul", y, m.weight(4, 4)))


@pytest.mark.parametrize(
    "model",
    [
        read_in_windows,
        read_behind_a_maximum,
        read_with_positions,
        read_by_two,
        summed_over_positions,
        multiplied_by_itself,
        extrapolated,
        of_a_part,
    ],
)
def test_others_stay(model: Callable[[], Graph]) -> None:
    graph = model()
    assert moved(graph) is graph


def test_a_dearer_order_stays() -> None:
    """An interpolation of more channels takes longer than the products that it saves."""
    graph = resized(14, 15, channels=8, features=256)
    assert moved(graph) is not graph
    assert resampled_late(graph) is graph


@pytest.mark.parametrize(
    "graph", [partial(resized, 7, 14, channels=16), partial(repeated, True, 16, 4, 16)]
)
def test_compiled_results_are_the_same(graph: Callable[[], Graph], agree: Agree) -> None:
    before = graph()
    agree(before, moved(before), tolerance=1e-4)
