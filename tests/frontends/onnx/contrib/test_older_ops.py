"""Operators of com.microsoft that ONNX has too, and operators of older tools."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tcc
from onnx import TensorProto, helper
from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.draws import seeded
from tests.lib.import_oracle import expected

from .test_contrib_ops import A, B, X, Y, agrees, f32, i8, model_of, real, u8

# ---- against ONNX Runtime ------------------------------------------------------------------------

with seeded("test_contrib_rest: shared"):
    SHARED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
        "upper": ("Trilu", (X,), {}),
        "lower": ("Trilu", (X, np.array(-1, np.int64)), {"upper": 0, "constants": (1,)}),
        "new_axis": ("ExpandDims", (X, np.array(1, np.int32)), {"constants": (1,)}),
        "new_last_axis": ("ExpandDims", (X, np.array(-1, np.int32)), {"constants": (1,)}),
        "rows": ("GatherND", (X, np.array([[1, 2], [0, 0]], np.int64)), {}),
        "distinct": (
            "Unique",
            (np.array([2, 1, 1, 3, 4, 3], np.float32),),
            {"outputs": ("y", "places", "counts")},
        ),
        "wide_product": (
            "MatMulInteger16",
            (np.array([[-32768, 999], [7, 8]], np.int16), np.array([[32767], [-5]], np.int16)),
            {},
        ),
        "choice": (
            "QLinearWhere",
            (np.array([True, False, True]), u8(2, 3), *A, u8(2, 3), *B, *Y),
            {"constants": (2, 3, 5, 6, 7, 8)},
        ),
        "inverse": ("Inverse", (f32(2, 3, 4, 4) + 4 * np.eye(4, dtype=np.float32),), {}),
        "inverse_swaps": ("Inverse", (np.array([[0, 2], [1, 0]], np.float32),), {}),
        "conv": (
            "QLinearConv",
            (u8(1, 6, 5, 2), *A, i8(3, 2, 3, 3), real(0.02), np.int8(0), *Y),
            {"channels_last": 1, "pads": [1, 0, 1, 0], "constants": (1, 2, 3, 4, 5, 6, 7)},
        ),
        "conv_first": (
            "QLinearConv",
            (u8(1, 2, 6, 5), *A, i8(3, 2, 3, 3), real(0.02), np.int8(0), *Y),
            {"strides": [2, 1], "constants": (1, 2, 3, 4, 5, 6, 7)},
        ),
        "pool": ("NhwcMaxPool", (u8(1, 6, 5, 3),), {"kernel_shape": [3, 2], "strides": [2, 1]}),
    }


@pytest.mark.parametrize("name", list(SHARED))
def test_older_operators_that_equal_newer_operators(name: str) -> None:
    op, operands, attrs = SHARED[name]
    agrees(op, *map(np.asarray, operands), **attrs)


def _tables() -> list[Any]:
    """Returns quantised operands: the rows of the word, position and segment tables, the norm's
    scale and shift, then the scales of these five, then their zero points."""
    bytes_ = [u8(9, 8), u8(5, 8), u8(2, 8), u8(8), u8(8)]
    return [*bytes_, None, *(real(0.01 * n) for n in range(1, 6)), *(np.uint8(n) for n in range(5))]


@pytest.mark.parametrize("segments", [True, False])
def test_embeddings_of_bytes(segments: bool) -> None:
    tokens = np.array([[1, 8, 3], [0, 2, 2]], np.int32)
    tables = _tables()
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    tables[5] = mask
    if not segments:
        for place in (2, 8, 13):
            tables[place] = None
    kinds = tokens % 2 if segments else None
    fixed = [n + 2 for n, table in enumerate(tables) if table is not None and n != 5]
    operands = [None if o is None else np.asarray(o) for o in (tokens, kinds, *tables)]
    agrees("QEmbedLayerNormalization", *operands, outputs=("y", "counts"), constants=fixed)


@pytest.mark.parametrize(("kind", "block"), [(0, 16), (0, 64), (1, 32)])
def test_rows_of_numbers_of_a_table(kind: int, block: int) -> None:
    """FP4 and NF4 levels are as ONNX Runtime's own quantiser writes them."""
    depth, rows = 48, 10
    weights = f32(depth, rows, scale=0.3)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", depth])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", rows])
    tensor = helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [tensor]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    quantiser = MatMulBnb4Quantizer(model, kind, block)
    quantiser.process()
    packed = quantiser.model.model
    assert [node.op_type for node in packed.graph.node] == ["MatMulBnb4"]
    feeds = {"x": f32(3, depth)}
    reference = expected(packed, feeds)["y"]
    output = evaluate_graph(load_model(packed), feeds)["y"]
    np.testing.assert_allclose(output, reference, rtol=0, atol=1e-5 * np.abs(reference).max())


# ---- without a kernel of ONNX Runtime for CPUs, by their descriptions ----------------------------


def _evaluated(op: str, *operands: Any, count: int = 1, **attrs: Any) -> list[np.ndarray]:
    model, inputs = model_of(op, operands, [f"y{n}" for n in range(count)], (), **attrs)
    return list(evaluate_graph(load_model(model), inputs).values())


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize(("last", "flat"), [(True, True), (True, False), (False, False)])
def test_group_norms_of_sums(last: bool, flat: bool) -> None:
    x, scale, shift, bias = f32(2, 3, 5, 8), f32(8), f32(8), f32(8)
    skip = f32(2, 8) if flat else f32(2, 3, 5, 8)
    total = x + (skip[:, None, None] if flat else skip).astype(np.float64)
    total = total + bias
    grouped = total.reshape(2, 15, 2, 4)
    mean, spread = grouped.mean((1, 3), keepdims=True), grouped.var((1, 3), keepdims=True)
    normal = ((grouped - mean) / np.sqrt(spread + 1e-5)).reshape(total.shape)
    reference = _silu(normal * scale + shift)
    order = (0, 1, 2, 3) if last else (0, 3, 1, 2)
    operands = [x.transpose(order), scale, shift, skip if flat else skip.transpose(order)]
    if last:
        operands.append(bias)
    else:  # the operator adds a bias along the last axis
        operands[0] = (x + bias).transpose(order)
    output, sums = _evaluated(
        "SkipGroupNorm", *operands, count=2, groups=2, activation=1, channels_last=int(last)
    )
    np.testing.assert_allclose(output, reference.transpose(order), rtol=0, atol=2e-5)
    np.testing.assert_allclose(sums, total.transpose(order), rtol=0, atol=1e-6)


def test_sums_and_products() -> None:
    bias, skip = f32(8), f32(2, 3, 8)
    np.testing.assert_allclose(_evaluated("BiasAdd", X, bias, skip)[0], X + bias + skip, atol=1e-6)
    y, mask = _evaluated("BiasDropout", X, bias, skip, count=2)
    np.testing.assert_allclose(y, X + bias + skip, atol=1e-6)
    assert mask.all()
    assert mask.dtype == bool
    np.testing.assert_allclose(_evaluated("BiasDropout", X, bias)[0], X + bias, atol=1e-6)
    ratio, training = np.array(0.25, np.float32), np.array(True)
    y, mask = _evaluated("BiasDropout", X, bias, skip, ratio, training, count=2, seed=7)
    assert 0 < mask.sum() < mask.size
    np.testing.assert_allclose(y, np.where(mask, (X + bias) / 0.75, 0) + skip, atol=1e-6)
    w = f32(8, 4)
    z = X.astype(np.float64) @ w
    (y,) = _evaluated(
        "FusedMatMulActivation", X, w, activation="LeakyRelu", activation_alpha=0.2, alpha=0.5
    )
    np.testing.assert_allclose(y, np.where(z < 0, 0.1 * z, 0.5 * z), atol=1e-5)
    bent = z + bias[:4]
    reference = 0.5 * bent * (1 + np.tanh(np.sqrt(2 / np.pi) * (bent + 0.044715 * bent**3)))
    np.testing.assert_allclose(_evaluated("GemmFastGelu", X, w, bias[:4])[0], reference, atol=2e-5)
    np.testing.assert_allclose(
        _evaluated("GemmFastGelu", X, w)[0],
        0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
        atol=2e-5,
    )


def test_a_convolution_whose_channels_are_last() -> None:
    x, w, bias = f32(1, 6, 5, 2), f32(3, 2, 3, 3), f32(3)
    (y,) = _evaluated("NhwcConv", x, w, bias, pads=[1, 1, 1, 1])
    model, feeds = model_of(
        "Conv", (x.transpose(0, 3, 1, 2), w, bias), ["y"], (), domain="", pads=[1, 1, 1, 1]
    )
    reference = expected(model, feeds)["y"].transpose(0, 2, 3, 1)
    np.testing.assert_allclose(y, reference, rtol=0, atol=1e-5)


# ---- refused -------------------------------------------------------------------------------------


with seeded("test_contrib_rest: refused"):
    REFUSED = [
        ("Trilu", (X,), {"lower": 1}, "attribute lower is not supported"),
        ("MatMulBnb4", (X, u8(15), f32(2)), {"N": 4, "K": 8, "block_size": 16}, "quant_type"),
        (
            "MatMulBnb4",
            (X, u8(15), f32(2)),
            {"N": 4, "K": 8, "block_size": 16, "quant_type": 1},
            "15 and 2 entries for 32",
        ),
        ("SkipGroupNorm", (X, f32(8), f32(8), X), {"groups": 3, "activation": 0}, "do not divide"),
        ("Inverse", (X,), {}, "square"),
        ("Inverse", (real(1),), {}, "holds no matrices"),
        ("NhwcMaxPool", (np.ones((1, 4, 4, 1), bool),), {"kernel_shape": [2, 2]}, "takes numbers"),
    ]


@pytest.mark.parametrize(("op", "operands", "attrs", "why"), REFUSED)
def test_refused(op: str, operands: Any, attrs: dict[str, Any], why: str) -> None:
    fixed = [n for n, o in enumerate(operands) if o is not None and n]
    model, _ = model_of(op, operands, ["y"], fixed, **attrs)
    with pytest.raises(UserError, match=why):
        load_model(model)


def test_compiled() -> None:
    """The compiler inlines the bodies of these operators, so an artifact can run them."""
    model, feeds = model_of("Inverse", (f32(4, 4) + 4 * np.eye(4, dtype=np.float32),), ["y"], ())
    output = tcc.compile(model).run(feeds)["y"]
    np.testing.assert_allclose(output, np.linalg.inv(feeds["x0"]), rtol=0, atol=1e-6)
