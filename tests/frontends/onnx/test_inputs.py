"""Inputs as exporters declare them: symbolic dimensions, defaults, and images smaller than a
window."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.import_oracle import check, expected, model_of

# ---- symbolic dimensions -------------------------------------------------------------------------


def _declared(*dims: int | str | None) -> onnx.ModelProto:
    model = model_of(
        f"g (float[{', '.join('o' for _ in dims)}] x) => (float[a, b] y) {{ y = Relu (x) }}"
    )
    for value in (model.graph.input[0], model.graph.output[0]):
        for dim, size in zip(value.type.tensor_type.shape.dim, dims, strict=True):
            dim.Clear()
            if isinstance(size, int):
                dim.dim_value = size
            elif size is not None:
                dim.dim_param = size
    return model


@pytest.mark.parametrize("dims", [(-1, 3), (-1, -1), (-7, 3), (None, None), ("", 3)])
def test_dimensions_below_zero_and_without_a_name_are_open(dims: Any) -> None:
    """Paddle's exporter wrote -1 for unknown dimensions; two unknown dimensions may differ."""
    for rows in (1, 4):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        graph = check(_declared(*dims), {"x": x})
    first, last = graph.inputs[0].type.shape
    assert first.terms
    assert last is not first


def test_a_dimension_below_zero_is_fixed_by_the_user() -> None:
    graph = load_model(_declared(-1, -1), {"x": (2, "n")})
    assert [dim.key for dim in graph.inputs[0].type.shape] == ["2", "n"]


def test_a_dimension_of_zero_is_none_but_zero() -> None:
    """ONNX Runtime treats a dimension of zero the same way."""
    check(_declared(0, 3), {"x": np.zeros((0, 3), np.float32)})
    with pytest.raises(UserError):
        evaluate_graph(load_model(_declared(0, 3)), {"x": np.zeros((2, 3), np.float32)})


# ---- inputs with a default -----------------------------------------------------------------------


def _defaulted(version: int) -> onnx.ModelProto:
    model = model_of(
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {3, 4}> { y = Mul (x, w) }",
        opset=9,
    )
    model.ir_version = version
    return model


@pytest.mark.parametrize("version", [3, 4, 8])
def test_an_initialiser_fixes_its_input_unless_the_user_names_it(version: int) -> None:
    """From IR version 4 on, ONNX Runtime takes an array for such an input; tcc takes it if the user
    names it."""
    model, x, w = _defaulted(version), np.float32([1, 2]), np.float32([5, 6])
    fixed = tcc.compile(model)
    assert [port.name for port in fixed.inputs] == ["x"]
    np.testing.assert_array_equal(fixed.run({"x": x})["y"], expected(model, {"x": x})["y"])
    module = tcc.compile(model, inputs={"w": (2,)})
    assert [port.name for port in module.inputs] == ["x", "w"]
    reference = expected(_defaulted(8), {"x": x, "w": w})
    np.testing.assert_array_equal(module.run({"x": x, "w": w})["y"], reference["y"])


def test_a_sparse_initialiser_is_a_default_too() -> None:
    model = _defaulted(8)
    values, at = (helper.make_tensor("w", 1, [1], [9.0]), helper.make_tensor("", 7, [1], [1]))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [2]))
    del model.graph.initializer[:]
    x, w = np.float32([1, 2]), np.float32([5, 6])
    (y,) = evaluate_graph(load_model(model), {"x": x}).values()
    np.testing.assert_array_equal(y, [0, 18])
    (y,) = evaluate_graph(load_model(model, {"w": (2,)}), {"x": x, "w": w}).values()
    np.testing.assert_array_equal(y, x * w)


def test_shapes_of_defaults_are_those_that_the_model_declares() -> None:
    with pytest.raises(UserError, match="contradicts the model"):
        load_model(_defaulted(8), {"w": (3,)})
    hidden = _defaulted(8)
    hidden.graph.input.pop()
    with pytest.raises(UserError, match="no input 'w'"):
        load_model(hidden, {"w": (2,)})


# ---- windows -------------------------------------------------------------------------------------

_WINDOWS = {
    "conv": "float[1, 2, {h}, 5] x, float[3, 2, 4, 2] w) => (float[a, b, c, d] y)"
    "{{ y = Conv (x, w) }}",
    "strided": "float[1, 2, {h}, 5] x, float[3, 2, 4, 2] w) => (float[a, b, c, d] y)"
    "{{ y = Conv <strides = [4, 1]> (x, w) }}",
    "transposed": "float[1, 2, {h}, 5] x, float[2, 3, 4, 2] w) => (float[a, b, c, d] y)"
    "{{ y = ConvTranspose <pads = [3, 0, 3, 0]> (x, w) }}",
    "integers": "uint8[1, 2, {h}, 5] x, uint8[3, 2, 4, 2] w) => (int32[a, b, c, d] y)"
    "{{ y = ConvInteger (x, w) }}",
    "maximum": "float[1, 2, {h}, 5] x) => (float[a, b, c, d] y)"
    "{{ y = MaxPool <kernel_shape = [4, 2]> (x) }}",
    "mean": "float[1, 2, {h}, 5] x) => (float[a, b, c, d] y)"
    "{{ y = AveragePool <kernel_shape = [4, 2], strides = [2, 2]> (x) }}",
    "norm": "float[1, 2, {h}, 5] x) => (float[a, b, c, d] y)"
    '{{ y = LpPool <kernel_shape = [4, 2], auto_pad = "VALID"> (x) }}',
}  # fmt: skip


def _window(case: str, height: int | str, rows: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    model = model_of(f"g ({_WINDOWS[case].format(h=height)}")
    kind = np.uint8 if case == "integers" else np.float32
    arrays = {"x": np.ones((1, 2, rows, 5), kind)}
    if len(model.graph.input) == 2:
        dims = model.graph.input[1].type.tensor_type.shape.dim
        arrays["w"] = np.ones([dim.dim_value for dim in dims], kind)
    return model, arrays


@pytest.mark.parametrize("case", _WINDOWS)
def test_images_smaller_than_a_window_are_refused(case: str) -> None:
    """A known size is refused at compile time, with its name; other sizes are refused by each
    run."""
    model, arrays = _window(case, "h", 4)
    check(model, arrays)
    for rows in (1, 2, 3):
        with pytest.raises(UserError, match="must not be larger than its padded image"):
            load_model(_window(case, rows, rows)[0])
        with pytest.raises(UserError, match="must not be larger than its padded image"):
            evaluate_graph(load_model(model), _window(case, "h", rows)[1])


def test_each_run_of_an_artifact_looks_at_the_image() -> None:
    module = tcc.compile(_window("maximum", "h", 4)[0])
    with pytest.raises(UserError, match="must not be larger than its padded image"):
        module.run(_window("maximum", "h", 3)[1])


def test_windows_that_begin_inside_of_an_image_and_end_outside() -> None:
    """In ceil mode, the last window may begin in the image and end outside, and the image may be
    smaller than a window."""
    text = (
        "float[1, 2, {h}, 5] x) => (float[a, b, c, d] y)"
        "{{ y = MaxPool <kernel_shape = [4, 2], strides = [3, 2], ceil_mode = 1> (x) }}"
    )
    for height in (2, "h"):
        check(model_of(f"g ({text.format(h=height)}"), {"x": np.ones((1, 2, 2, 5), np.float32)})


@pytest.mark.parametrize("height", [0, "h"])
def test_an_image_without_elements_has_no_windows(height: int | str) -> None:
    model = model_of(
        f"g (float[1, 1, {height}, 5] x, float[1, 1, 3, 3] w) => (float[a, b, c, d] y)"
        "{ y = Conv <pads = [1, 1, 1, 1]> (x, w) }"
    )
    arrays = {"x": np.ones((1, 1, 0, 5), np.float32), "w": np.ones((1, 1, 3, 3), np.float32)}
    assert evaluate_graph(load_model(model), arrays)["y"].shape == (1, 1, 0, 5)


# ---- moments of every position -------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2, "n"])
@pytest.mark.parametrize("opset", [7, 8])
def test_batch_norms_of_each_position(opset: int, rows: int | str) -> None:
    moments = ", ".join(f"float[3, 4, 5] {name}" for name in "sbmv")
    model = model_of(
        f"g (float[{rows}, 3, 4, 5] x, {moments}) => (float[n, 3, 4, 5] y)"
        "{ y = BatchNormalization <spatial = 0> (x, s, b, m, v) }",
        opset=opset,
    )
    rng = np.random.default_rng(opset)
    arrays = {name: rng.uniform(0.1, 1, (3, 4, 5)).astype(np.float32) for name in "sbmv"}
    check(model, {"x": rng.standard_normal((2, 3, 4, 5)).astype(np.float32), **arrays})


# ---- memory --------------------------------------------------------------------------------------


def test_results_that_no_memory_holds_are_refused_in_a_sentence() -> None:
    text = (
        "g (float[1] x) => (float[a] y)"
        "{ s = Constant <value = int64[1] {274877906944}> ()  y = Expand (x, s) }"
    )
    model, x = model_of(text), {"x": np.ones(1, np.float32)}
    with pytest.raises(UserError, match="there is not enough memory for the arrays of the run"):
        tcc.compile(model).run(x)
    with pytest.raises(UserError, match="expand needs more memory than there is"):
        evaluate_graph(load_model(model), x)


def test_constants_whose_reference_needs_too_much_memory_are_left_to_the_run() -> None:
    """The pool's reference pads its large image, although the result is one element."""
    size = 1 << 20
    model = model_of(
        "g (float[1, 1, 1, 1] x) => (float[1, 1, 1, 1] y) {"
        "  c = Constant <value = float[1, 1, 1, 1] {2.0}> ()"
        f"  p = MaxPool <kernel_shape = [1, 1], strides = [{2 * size}, {2 * size}],"
        f"    pads = [0, 0, {size}, {size}]> (c)  y = Add (x, p) }}"
    )
    graph = load_model(model)
    assert [node.op.name for node in graph.nodes] == ["max_pool", "add"]
    x = {"x": np.ones((1, 1, 1, 1), np.float32)}
    np.testing.assert_array_equal(tcc.compile(model).run(x)["y"], [[[[3]]]])


def test_constants_whose_op_has_a_number_of_the_run_are_left_to_it() -> None:
    model = model_of(
        "g (int64 k) => (float[2, 2] y) {"
        "  c = Constant <value = float[2, 2] {1.0, 2.0, 3.0, 4.0}> ()  y = Trilu (c, k) }"
    )
    module = tcc.compile(model)
    for k in (-1, 0, 1):
        feeds = {"k": np.array(k, np.int64)}
        check(model, feeds)
        np.testing.assert_array_equal(module.run(feeds)["y"], expected(model, feeds)["y"])
