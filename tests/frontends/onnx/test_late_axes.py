"""Axes, steps, pads and scales that are known only in a run agree with NumPy on the same values."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.import_oracle import check

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def run(op: str, *arrays: Any, opset: int = 18, **attrs: Any) -> Any:
    """Returns the result of a model with one node, whose operands are all inputs."""
    inputs = [np.asarray(array) for array in arrays]
    names = [f"i{n}" for n in range(len(inputs))]
    types = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(op, names, ["y"], **attrs)
    graph = helper.make_graph([node], "g", types, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return evaluate_graph(load_model(model), dict(zip(names, inputs, strict=True)))["y"]


AXES = [axes for count in (1, 2, 3) for axes in combinations(range(3), count)]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [*AXES, (-1,), (2, 0), (-3, 1)])
def test_reductions(axes: tuple[int, ...], keepdims: int) -> None:
    output = run("ReduceSum", X, np.array(axes), keepdims=keepdims)
    np.testing.assert_array_equal(output, X.sum(axes, keepdims=bool(keepdims)))


def test_reduction_of_an_empty_axis() -> None:
    empty = np.ones((2, 0, 4), np.float32)
    np.testing.assert_array_equal(run("ReduceSum", empty, [1], keepdims=0), empty.sum(1))
    np.testing.assert_array_equal(run("ReduceSum", empty, [2], keepdims=1), np.zeros((2, 0, 1)))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_running_sums(axis: int) -> None:
    np.testing.assert_array_equal(run("CumSum", X, axis), np.cumsum(X, axis))


@pytest.mark.parametrize("axes", [(0,), (3,), (1, 3), (-1,), (4, 0, 2), (-5, 4)])
def test_unsqueeze(axes: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(run("Unsqueeze", X, np.array(axes)), np.expand_dims(X, axes))


@pytest.mark.parametrize("axes", [(0,), (2,), (0, 2), (-1, 0)])
def test_squeeze(axes: tuple[int, ...]) -> None:
    x = X.reshape(1, 24, 1)
    np.testing.assert_array_equal(run("Squeeze", x, np.array(axes)), x.squeeze(axes))


SLICES = [
    ((0,), (1,), (3,), (1,)),
    ((1, 2), (0, 1), (3, 4), (2, 2)),
    ((2,), (-1,), (-9,), (-1,)),
    ((1, 0), (2, 1), (-4, -5), (-2, -1)),
    ((2,), (1,), (2**31 - 1,), (3,)),
    ((0, 2), (5, 0), (9, 4), (1, 2**40)),
]


@pytest.mark.parametrize(("axes", "starts", "ends", "steps"), SLICES)
def test_slice(axes: Any, starts: Any, ends: Any, steps: Any) -> None:
    cuts = [slice(None)] * 3
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cuts[axis] = slice(start, end, step)
    operands = [np.array(values, np.int64) for values in (starts, ends, axes, steps)]
    np.testing.assert_array_equal(run("Slice", X, *operands), X[tuple(cuts)])


def test_pad() -> None:
    output = run("Pad", X, np.array([1, 0, 2, 3]), np.float32(9), np.array([2, 0]))
    expected = np.pad(X, ((0, 3), (0, 0), (1, 2)), constant_values=9)
    np.testing.assert_array_equal(output, expected)


def test_resize_by_scales() -> None:
    x = X[None]
    output = run("Resize", x, np.float32([]), np.float32([1, 1, 2, 3]), mode="nearest")
    np.testing.assert_array_equal(output, x.repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("scale", "size"), [(0.7, 7), (2.3, 23), (0.6, 6), (1 / 3, 3)])
def test_scaled_sizes_are_rounded_in_f32(scale: float, size: int, late: bool) -> None:
    """ONNX's shape inference and ONNX Runtime round in f32 too: 0.7 of 10 elements is 7."""
    x = np.arange(10, dtype=np.float32)
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest")
    scales = np.float32([scale])
    types = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [10])]
    types += [onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, [1])] * late
    fixed = [] if late else [onnx.numpy_helper.from_array(scales, "s")]
    graph = helper.make_graph([node], "g", types, [onnx.ValueInfoProto(name="y")], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    check(model, {"x": x, "s": scales} if late else {"x": x})
    output = evaluate_graph(load_model(model), {"x": x, "s": scales} if late else {"x": x})["y"]
    assert output.shape == (size,)


@pytest.mark.parametrize(
    ("op", "operands", "says"),
    [
        ("ReduceSum", [X, np.array([3])], "the rank is 3"),
        ("ReduceSum", [X, np.array([-4])], "the rank is 3"),
        ("ReduceSum", [X, np.array([1, -2])], "named twice"),
        ("Squeeze", [X, np.array([1])], "extent one"),
        ("Unsqueeze", [X, np.array([0, 0])], "named twice"),
    ],
)
def test_invalid_axes_are_refused_at_run_time(op: str, operands: list[Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        run(op, *operands)
