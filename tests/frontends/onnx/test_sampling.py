"""Deformable convolutions and reversed sequences agree with their definitions."""

from __future__ import annotations

from itertools import product
from math import floor
from typing import Any

import numpy as np
import onnx.parser
import pytest
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.closeness import assert_within
from tests.draws import RNG

SIZES = {"x": (2, 4, 5, 6), "w": (6, 2, 3, 2), "o": (2, 24, 3, 5), "b": (6,), "m": (2, 12, 3, 5)}
GROUPS, STRIDES, PADS = 2, (2, 1), (1, 0)


def model(inputs: str) -> onnx.ModelProto:
    """Returns a model of one DeformConv; each operand is a name of SIZES (an input) or `-`
    (absent)."""
    shapes = {n: ",".join(map(str, SIZES[n])) for n in inputs if n != "-"}
    declared = ", ".join(f"double[{shape}] {name}" for name, shape in shapes.items())
    attributes = f"group = {GROUPS}, offset_group = {GROUPS}, strides = [2, 1], pads = [1, 0, 1, 0]"
    call = f"y = DeformConv <{attributes}> ({', '.join(inputs)})".replace("-", '""')
    text = f"g ({declared}) => (double[2,6,3,5] y) {{ {call} }}"
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> {text}')


def sampled(plane: Any, place: tuple[float, float]) -> float:
    """Returns the interpolation of the four elements around a place; elements outside are zero."""
    corners = product(*((floor(at), floor(at) + 1) for at in place))
    return sum(
        float(plane[y, x]) * (1 - abs(place[0] - y)) * (1 - abs(place[1] - x))
        for y, x in corners
        if 0 <= y < plane.shape[0] and 0 <= x < plane.shape[1]
    )


def convolved(x: Any, w: Any, o: Any, b: Any = None, m: Any = None) -> Any:
    y = np.zeros((2, 6, 3, 5)) if b is None else np.tile(b[:, None, None], (2, 1, 3, 5))
    for n, f, *at in np.ndindex(*y.shape):
        for c, *tap in np.ndindex(*w.shape[1:]):
            channel = f // (w.shape[0] // GROUPS) * w.shape[1] + c
            number = channel // (x.shape[1] // GROUPS) * 6 + tap[0] * 2 + tap[1]
            places = [at[a] * STRIDES[a] + tap[a] - PADS[a] for a in range(2)]
            place = tuple(places[a] + o[n, 2 * number + a, *at] for a in range(2))
            weight = w[f, c, *tap] * (1 if m is None else m[n, number, *at])
            y[n, f, *at] += sampled(x[n, channel], place) * weight
    return y


@pytest.mark.parametrize("inputs", ["xwo", "xwob", "xwobm", "xwo-m"])
def test_deformable_convolutions(inputs: str) -> None:
    arrays = {name: RNG.standard_normal(SIZES[name]) for name in inputs if name != "-"}
    y = evaluate_graph(load_model(model(inputs)), arrays)["y"]
    assert_within(y, convolved(**arrays), 1e-12)


def test_whole_shifts_read_whole_elements() -> None:
    arrays = {name: np.round(RNG.standard_normal(SIZES[name])) for name in "xwo"}
    y = evaluate_graph(load_model(model("xwo")), arrays)["y"]
    assert_within(y, convolved(**arrays), 1e-12)


@pytest.mark.parametrize(("batch", "time"), [(0, 1), (1, 0)])
def test_sequences_are_reversed_up_to_their_lengths(batch: int, time: int) -> None:
    sizes = {batch: 3, time: 5}
    x, lengths = RNG.standard_normal((sizes[0], sizes[1], 2)), np.array([5, 0, 3])
    call = f"y = ReverseSequence <batch_axis = {batch}, time_axis = {time}> (x, n)"
    shape = ",".join(map(str, x.shape))
    text = f"g (double[{shape}] x, int64[3] n) => (double[{shape}] y) {{ {call} }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    due = x.copy()
    for sequence, length in zip(np.moveaxis(due, batch, 0), lengths, strict=True):
        sequence[:length] = sequence[:length][::-1].copy()
    np.testing.assert_array_equal(
        evaluate_graph(load_model(proto), {"x": x, "n": lengths})["y"], due
    )
