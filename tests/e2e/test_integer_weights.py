"""Artifacts with integer weights agree with ONNX Runtime on the same rounded weights, up to the
order of sums.

The manifest names the rounded weights, and `scripts/rounded_weights.py` rounds them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper, numpy_helper
from tcc.runtime.compare import compare

from tests.lib.agreement import INT64, assert_agree, expected, model_of, session, value
from tests.processors import has_long_vectors

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from rounded_weights import put_rounded_weights, rounded

Array = np.ndarray[Any, np.dtype[Any]]

_WIDTH = 128
# The weights that are large enough for integers, and those of them that are rounded for any choice
# of kernels.
_LARGE = {"table", "q", "k", "v", "up", "down", "lstm.w", "lstm.r"}
_SURELY = {"table", "q", "k", "up", "down", "lstm.w"}


def weights(*shape: int) -> Array:
    return (np.random.default_rng(shape).standard_normal(shape) / 10).astype(np.float32)


def model() -> onnx.ModelProto:
    """Returns a model with each way from a constant to a matmul: a table for a gather and a matmul,
    matmuls of the same few rows, plain and transposed matrices, a recurrent layer."""
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["x"]),
        *(helper.make_node("MatMul", ["x", n], [f"x{n}"]) for n in "qkv"),
        helper.make_node("Transpose", ["xk"], ["xk.t"], perm=[1, 0]),
        helper.make_node("MatMul", ["xq", "xk.t"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"]),
        helper.make_node("MatMul", ["shares", "xv"], ["mixed"]),
        helper.make_node("Gemm", ["mixed", "up", "bias"], ["wide"], transB=1),
        helper.make_node("Tanh", ["wide"], ["bent"]),
        helper.make_node("Gemm", ["bent", "down"], ["narrow"]),
        helper.make_node("Unsqueeze", ["narrow", "axis"], ["steps"]),
        helper.make_node("LSTM", ["steps", "lstm.w", "lstm.r"], ["", "last"], hidden_size=64),
        helper.make_node("Transpose", ["table"], ["table.t"], perm=[1, 0]),
        helper.make_node("MatMul", ["narrow", "table.t"], ["logits"]),
    ]
    constants = {
        "table": weights(300, _WIDTH) * 10,
        **{n: weights(_WIDTH, _WIDTH) * (1 + i) for i, n in enumerate("qkv")},
        "up": weights(256, _WIDTH),
        "bias": weights(256),
        "down": weights(256, _WIDTH) * 2,
        "axis": np.array([1]),
        "lstm.w": weights(1, 256, _WIDTH),
        "lstm.r": weights(1, 256, 64),
    }
    outputs = [value("logits", shape=(5, 300)), value("last", shape=(1, 1, 64))]
    return model_of(nodes, [value("tokens", INT64, (5,))], outputs, constants)


TOKENS = np.array([0, 7, 299, 30, 7])


@pytest.mark.parametrize("kind", ["int8", "int4"])
@has_long_vectors
def test_only_the_rounding_of_weights_tells_the_results_from_f32(kind: str) -> None:
    exact = expected(session(model()), {"tokens": TOKENS})
    module = tcc.compile(model(), weights=kind)
    outputs = module.run({"tokens": TOKENS})
    listed = module.manifest["variants"][0]["rounded"]
    assert {entry["type"] for entry in listed} == {kind}
    names = [n for entry in listed for n in entry["weights"]]
    # Matmuls of one operand are merged, so their weights are joined; no weight is computed.
    assert all(entry["moved"] for entry in listed)
    assert max(len(entry["weights"]) for entry in listed) == 3
    assert _SURELY <= set(names) <= _LARGE
    assert len(set(names)) == len(names)
    model_with_levels = model()
    put_rounded_weights(model_with_levels, listed)
    assert_agree(outputs, expected(session(model_with_levels), {"tokens": TOKENS}), 1e-5)
    for name in exact:
        assert compare(name, outputs[name], exact[name], 1.0).error > 1e-3
    # A reference with one more weight in f32 differs, so the comparison is sensitive.
    for number in range(len(listed)):
        less = model()
        put_rounded_weights(less, listed[:number] + listed[number + 1 :])
        reference = expected(session(less), {"tokens": TOKENS})
        assert any(not compare(n, outputs[n], reference[n], 1e-4).ok for n in reference), listed[
            number
        ]


def test_nothing_is_listed_where_nothing_is_rounded() -> None:
    assert tcc.compile(model()).manifest["variants"][0]["rounded"] == []


@pytest.mark.parametrize("scale", ["scale", "number"])
def test_a_weight_with_a_folded_factor_has_its_name(scale: str) -> None:
    """The factor is a constant with a name, or a number in the program."""
    graph = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]>
        m (float[1, 128] x) => (float[1, 128] y) <float number = {{0.37}}>
        {{
            product = MatMul (x, w)
            y = Mul (product, {scale})
        }}""")
    constants = {"w": weights(128, 128), "scale": weights(128)}
    graph.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    (entry,) = tcc.compile(graph, weights="int8").manifest["variants"][0]["rounded"]
    assert (entry["weights"], entry["moved"]) == (["w"], False)


def test_a_part_of_a_weight_has_its_name_and_is_not_computed() -> None:
    graph = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        m (float[1, 256] x) => (float[1, 96] y) <int64[1] first = {0}, int64[1] end = {96},
            int64[1] axis = {1}>
        {
            part = Slice (w, first, end, axis)
            y = MatMul (x, part)
        }""")
    graph.graph.initializer.append(numpy_helper.from_array(weights(256, 128), "w"))
    (entry,) = tcc.compile(graph, weights="int8").manifest["variants"][0]["rounded"]
    assert (entry["weights"], entry["moved"]) == (["w"], True)


def test_weights_that_stay_wide_have_the_names_of_the_model() -> None:
    """The compiler merges two small matrices, of which the model transposes one."""
    text = """<ir_version: 9, opset_import: ["": 17]>
        small (float[b, 128] x) => (float[b, 10] y)
        { h = MatMul (x, body)  r = Relu (h)  g = Gemm <transB = 1> (r, head)
          y = Gemm <transB = 1> (g, tail) }"""
    small = onnx.parser.parse_model(text)
    for name, shape in {"body": (128, 128), "head": (12, 128), "tail": (10, 12)}.items():
        small.graph.initializer.append(onnx.numpy_helper.from_array(weights(*shape), name))
    [variant] = tcc.compile(small, weights="int8").manifest["variants"]
    assert set(variant["wide"]) == {"head", "tail"}


def test_halves_are_listed_too() -> None:
    module = tcc.compile(model(), precision="f16", cpu="x86-64-v3")
    listed = module.manifest["variants"][0]["rounded"]
    down = {"weights": ["down"], "type": "f16", "operands": "", "moved": True}
    assert down in listed


def test_the_rule_by_hand() -> None:
    column = np.zeros((64, 1), np.float32)
    column[:4, 0] = [1.27, -0.5, 0.004, 0.0051]  # scale 0.01, in bf16 0.010009765625
    column[32:34, 0] = [-8, 3.6]
    eight = rounded(column, 0, 8)[:, 0]
    step = 0.01000976562
    np.testing.assert_allclose(eight[:4], [127 * step, -50 * step, 0, step], rtol=1e-6, atol=1e-8)
    # Four bits: -8 is the largest element of its group, and 3.6 rounds to the nearest level. The
    # scale of the first group is -1.27 / 8, rounded away from zero.
    four = rounded(column, 0, 4)[:, 0]
    np.testing.assert_array_equal(four[32:34], [-8, 4])
    assert four[0] == pytest.approx(1.2734375)
    np.testing.assert_array_equal(rounded(column.T, 1, 8)[0], eight)


def test_integer_weights_without_a_matching_node_are_refused() -> None:
    for listed, why in (
        ([{"weights": [], "type": "int8"}], "cannot tell"),
        ([{"weights": ["up"], "type": "bf16"}], "cannot tell"),
        ([{"weights": ["bias"], "type": "int8"}], "no product"),
        ([{"weights": ["up"], "type": t} for t in ("int8", "int4")], "two ways"),
    ):
        with pytest.raises(ValueError, match=why):
            put_rounded_weights(model(), listed)
