"""Windows that are mostly padding, and chains of matmuls along axes without elements."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto, helper, numpy_helper

from tests.lib.agreement import assert_agree, expected, model_of, session, value
from tests.processors import distinct


def windows() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns convolutions of constant images with few pixels, with weights as inputs and random
    padding."""
    rng = np.random.default_rng(979)
    nodes, constants, inputs, outputs, feeds = [], [], [], [], {}
    for n in range(24):
        channels, filters = (int(rng.integers(1, 10)) for _ in range(2))
        image = [8, channels, int(rng.integers(1, 4)), int(rng.integers(1, 4))]
        kernel = [int(rng.integers(1, 4)), 3]
        pads = [int(rng.integers(k)) for k in kernel * 2]
        short = [max(0, k - s - a - b) for k, s, a, b in
                 zip(kernel, image[2:], pads[:2], pads[2:], strict=True)]  # fmt: skip
        pads = [*pads[:2], *(a + b for a, b in zip(pads[2:], short, strict=True))]
        strides = [int(rng.integers(1, 3)), int(rng.integers(1, 3))]
        constants.append(numpy_helper.from_array(
            rng.standard_normal(image).astype(np.float32), f"c{n}"
        ))  # fmt: skip
        feeds[f"w{n}"] = rng.standard_normal([filters, channels, *kernel]).astype(np.float32)
        nodes.append(
            helper.make_node("Conv", [f"c{n}", f"w{n}"], [f"y{n}"], pads=pads, strides=strides)
        )
        shape = list(feeds[f"w{n}"].shape)
        inputs.append(helper.make_tensor_value_info(f"w{n}", TensorProto.FLOAT, shape))
        outputs.append(helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, [None] * 4))
    graph = helper.make_graph(nodes, "windows", inputs, outputs, constants)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8), feeds


def test_windows_that_are_mostly_padding() -> None:
    """LLVM's NewGVN, which LLVM's own pipeline leaves off, confused guarded elements with
    others."""
    model, feeds = windows()
    for level in (0, 3):
        outputs = tcc.compile(model, jobs=1, level=level).run(feeds)
        assert_agree(outputs, expected(session(model), feeds), 1e-5)


def test_windows_larger_than_their_image() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 19]>
        g (float[2, 3, 2, 4] x) => (float[n, c, h, w] a, float[n, c, h1, w1] b,
            float[n, c, h2, w2] m, float[n, c, h3, w3] l, float[n, c, h4, w4] y)
        {
          a = AveragePool <kernel_shape = [300, 70], strides = [300, 70], ceil_mode = 1> (x)
          b = AveragePool <kernel_shape = [9, 9], pads = [8, 8, 8, 8], count_include_pad = 1> (x)
          m = MaxPool <kernel_shape = [9, 9], pads = [8, 8, 8, 8]> (x)
          l = LpPool <kernel_shape = [9, 9], pads = [8, 8, 8, 8], p = 1> (x)
          y = Conv <pads = [18, 3, 18, 3], dilations = [18, 3]> (x, k)
        }"""
    )
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((3, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "k"))
    feeds = {"x": rng.standard_normal((2, 3, 2, 4)).astype(np.float32)}
    outputs = tcc.compile(model, jobs=1).run(feeds)
    assert_agree(outputs, expected(session(model), feeds), 1e-5)


def test_chained_products_along_axes_without_elements() -> None:
    for lead, rows, inner, last in product((0, 3), repeat=4):
        shapes = {"a": (lead, rows, inner), "b": (lead, inner, "n"), "c": (lead, "n", last)}
        text = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in shapes.items())
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17]>
            g ({text}, float[1] x) => (float[l, r, k] y) {{
              m = MatMul (a, b)  d = Sub (m, x)  s = Softmax (d)  y = MatMul (s, c)
            }}"""
        )
        sizes = {n: [5 if size == "n" else size for size in shape] for n, shape in shapes.items()}
        feeds = {name: np.ones(shape, np.float32) for name, shape in sizes.items()}
        feeds["x"] = np.ones(1, np.float32)
        output = tcc.compile(model, jobs=1).run(feeds)["y"]
        assert output.shape == (lead, rows, last)
        np.testing.assert_allclose(output, 1.0, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cpu", distinct("x86-64-v3", "host"))
@pytest.mark.parametrize("dtype", ["double", "int64", "float"])
def test_vectors_of_which_a_register_is_padding(dtype: str, cpu: str) -> None:
    """LLVM fails if it divides a masked vector into registers of which one is all padding."""
    columns = range(17)
    pads = "".join(
        f"p{n} = Constant <value_ints = [1, {n}, 0, {n % 3}]> () y{n} = Pad (x, p{n})  "
        for n in columns
    )
    outputs = ", ".join(f"{dtype}[r, c{n}] y{n}" for n in columns)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g ({dtype}[3, 13] x) => ({outputs}) {{{pads}}}"""
    )
    x = np.arange(1, 40).reshape(3, 13).astype({"float": "f4", "double": "f8"}.get(dtype, "i8"))
    results = tcc.compile(model, jobs=1, cpu=cpu, level=0).run({"x": x})
    for n in columns:
        np.testing.assert_array_equal(results[f"y{n}"], np.pad(x, ((1, 0), (n, n % 3))))


def test_a_slice_without_elements_of_a_fast_convolution() -> None:
    """Without elements, the guard's direct sums recompute no result."""
    node, rng = helper.make_node, np.random.default_rng(1017)
    nodes = [
        node("Conv", ["x", "a"], ["first"], pads=[1, 2, 0, 1]),
        node(
            "Conv", ["first", "b", "bias"], ["second"], pads=[1, 0, 1, 2], dilations=[2, 1], group=2
        ),
        node("Slice", ["second", "start", "end", "axis"], ["y"]),
    ]
    constants = {
        "a": rng.standard_normal((2, 3, 2, 4)).astype(np.float32),
        "b": rng.standard_normal((2, 1, 3, 3)).astype(np.float32),
        "start": np.array([3]),
        "end": np.array([9]),
        "axis": np.array([0]),
    }
    inputs = [value("x", shape=[3, 3, 5, 13]), value("bias", shape=[2])]
    model = model_of(nodes, inputs, [value("y", shape=[None] * 4)], constants)
    feeds = {"x": np.ones((3, 3, 5, 13), np.float32), "bias": np.ones(2, np.float32)}
    assert_agree(tcc.compile(model, jobs=1).run(feeds), expected(session(model), feeds))
