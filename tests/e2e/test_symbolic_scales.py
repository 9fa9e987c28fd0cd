"""Scales, zero points and biases may have a symbolic length.

A length of 1 at run time broadcasts; lengths other than 1 and the axis's are refused, as in ONNX
Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto, parser
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.agreement import Array, session

_TYPES = {TensorProto.FLOAT: np.float32, TensorProto.UINT8: np.uint8, TensorProto.INT8: np.int8}
_CONV = "uint8[1, 2, 5] x, float{} xs, uint8{} xz, int8[3, 2, 2] w, float{} ws, int8{} wz"
_MATMUL = "uint8[2, 3] x, float xs, uint8 xz, uint8[3, 4] w, float{} ws, uint8{} wz"
_ALL = "(x, xs, xz, w, ws, wz, ys, yz"
_SAME, _OWN = ("[n]", "[m]"), ("", "")


def _result(lengths: tuple[str, str] = _OWN) -> str:
    return ", float{} ys, uint8{} yz".format(*lengths)


# (the inputs, the node)
KINDS = {
    "quantize": ("float[2, c] x, float[n] s, uint8[n] z", "QuantizeLinear (x, s, z)"),
    "lone zero": ("float[2, 3] x, float[n] s, uint8 z", "QuantizeLinear (x, s, z)"),
    "lone scale": ("float[2, 3] x, float s, uint8[n] z", "QuantizeLinear (x, s, z)"),
    "dequantize": (
        "uint8[3, 2] x, float[n] s, uint8[m] z",
        "DequantizeLinear <axis=0> (x, s, z)",
    ),
    "matmul": (
        "uint8[2,3] x, uint8[3,c] w, uint8[1] a, uint8[n] z",
        "MatMulInteger (x, w, a, z)",
    ),
    "image": ("uint8[1, 2, 5] x, uint8[3, 2, 2] w, uint8[n] z", "ConvInteger (x, w, z)"),
    "pixels": (_CONV.format(*_SAME, *_OWN) + _result(), f"QLinearConv {_ALL})"),
    "filters": (_CONV.format(*_OWN, *_SAME) + _result(), f"QLinearConv {_ALL})"),
    "result": (_CONV.format(*_OWN, *_OWN) + _result(_SAME), f"QLinearConv {_ALL})"),
    "bias": (_CONV.format(*_OWN, *_OWN) + _result() + ", int32[n] b", f"QLinearConv {_ALL}, b)"),
    "columns": (_MATMUL.format(*_SAME) + _result(), f"QLinearMatMul {_ALL})"),
    "product": (_MATMUL.format(*_OWN) + _result(_SAME), f"QLinearMatMul {_ALL})"),
}
_COMPILED = ("quantize", "filters", "bias", "columns")


def _model(name: str) -> onnx.ModelProto:
    inputs, node = KINDS[name]
    kind = "int32" if "Integer" in node else "float" if "Dequantize" in node else "uint8"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({kind} y) {{ y = {node} }}'
    model = parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def _feeds(model: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, Array]:
    rng = np.random.default_rng(list(sizes.values()))
    feeds = {}
    for value in model.graph.input:
        kind = _TYPES.get(value.type.tensor_type.elem_type, np.int32)
        dims = value.type.tensor_type.shape.dim
        shape = [sizes.get(d.dim_param, d.dim_value) for d in dims]
        drawn = rng.uniform(0.1, 2, shape) if kind is np.float32 else rng.integers(0, 99, shape)
        feeds[value.name] = drawn.astype(kind)
    return feeds


def _found(run: Callable[[], Any], refused: type[Exception]) -> Array | None:
    try:
        (output,) = run().values()
    except refused:
        return None
    return np.asarray(output)


@pytest.mark.parametrize("name", KINDS)
def test_lengths_are_taken_and_refused_as_onnx_runtime_does(name: str) -> None:
    model = _model(name)
    graph, runner = load_model(model), session(model)
    module = tcc.compile(model, jobs=1) if name in _COMPILED else None
    dims = [d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim]
    symbols = sorted(set(filter(None, dims)))
    accepted = []
    for lengths in product((1, 2, 3, 4), repeat=len(symbols)):
        feeds = _feeds(model, dict(zip(symbols, lengths, strict=True)))
        reference = _found(lambda f=feeds: {"y": runner.run(None, f)[0]}, Exception)
        results = [_found(lambda f=feeds: evaluate_graph(graph, f), UserError)]
        if module is not None:
            results.append(_found(lambda f=feeds: module.run(f), UserError))
        for array in results:
            assert (array is None) == (reference is None), lengths
            if array is not None:
                np.testing.assert_allclose(
                    array, reference, rtol=0, atol=1e-5, err_msg=str(lengths)
                )
        accepted.append(reference is not None)
    assert 0 < sum(accepted) < len(accepted)
