"""Writes ONNX graphs as JSON, with seeded arrays in place of float weights; needs onnx."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from math import prod, sqrt
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gpu.draws import Array, ArrayDraw, bits_of, seed_of, values

# Float initialisers with fewer elements keep their values: they are scalars and tables of the
# architecture, not weights.
_SMALLEST = 32
_BIAS = 0.05
_EMBEDDING = 0.5
# Gain of dense layers. It is below one, because sharp attention makes bf16's rounding errors large.
_GAIN = 0.5
_NORM = (1.0, 0.1)  # (mean, spread) of the gains of layer norms


def reseed(model: onnx.ModelProto) -> dict[str, ArrayDraw]:
    """Replaces initialisers of `model` in f32 and bf16, in place, by seeded arrays; returns their
    draws.

    Matrices and filters are scaled by their fan-in, so that signals neither vanish nor explode.
    Batch norms get unit gain and variance, so that folding them into a filter leaves the filter's
    values unchanged; their means and shifts are random. Initialisers with few distinct values or
    with infinities (masks) keep their values.
    """
    users = {
        name: (node, place)
        for node in reversed(model.graph.node)
        for place, name in enumerate(node.input)
    }
    draws: dict[str, ArrayDraw] = {}
    for tensor in model.graph.initializer:
        array, is_bf16 = (
            numpy_helper.to_array(tensor),
            tensor.data_type == onnx.TensorProto.BFLOAT16,
        )
        array = array.astype(np.float32) if is_bf16 else array
        if tensor.name not in users or array.dtype != np.float32 or array.size < _SMALLEST:
            continue
        if not np.isfinite(array).all() or _few(array):
            continue
        node, place = users[tensor.name]
        offset, spread = _scale(node, place, array.shape)
        draw = ArrayDraw(seed_of(tensor.name), array.shape, offset, spread)
        if is_bf16:
            bits = bits_of(values(draw), "bf16").tobytes()
            kind, name = onnx.TensorProto.BFLOAT16, tensor.name
            tensor.CopyFrom(onnx.helper.make_tensor(name, kind, array.shape, bits, raw=True))
        else:
            tensor.CopyFrom(numpy_helper.from_array(values(draw), tensor.name))
        draws[tensor.name] = draw
    return draws


def _few(array: Array) -> bool:
    return array.ndim > 1 and np.unique(array.reshape(-1)[:4096]).size <= 2


def _scale(node: onnx.NodeProto, place: int, shape: tuple[int, ...]) -> tuple[float, float]:
    """Returns (offset, spread) for the draw of an initialiser: operand number `place` of `node`."""
    match node.op_type, place:
        case "BatchNormalization", 1:
            return 1.0, 0.0
        case "BatchNormalization", 4:
            return float(np.float32(1) - np.float32(_attributes(node).get("epsilon", 1e-5))), 0.0
        case "LayerNormalization", 1:
            return _NORM
        case "Conv", 1:
            return 0.0, _uniform(prod(shape[1:]))
        case "ConvTranspose", 1:
            return 0.0, _uniform(shape[0])
        case "Gemm", 1:
            return 0.0, _GAIN * _uniform(shape[1 if _attributes(node).get("transB") else 0])
        case "MatMul", 1:
            return 0.0, _GAIN * _uniform(shape[-2])
        case ("MatMul", 0) | ("Transpose", _):
            return 0.0, _uniform(shape[-1])
        case "Gather", 0:
            return 0.0, _EMBEDDING
    return 0.0, _BIAS if len(shape) == 1 else _EMBEDDING


def _uniform(fan_in: int) -> float:
    """Returns the half width of the uniform distribution whose variance is one over the fan-in."""
    return sqrt(3 / fan_in)


def graph_json(model: onnx.ModelProto, draws: Mapping[str, ArrayDraw]) -> dict[str, Any]:
    """Returns `model` as JSON: nodes, inputs, outputs, and tensors as draws or as literals."""
    graph = model.graph
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    tensors = {name: _tensor(array, draws.get(name)) for name, array in arrays.items()}
    nodes = []
    for node in graph.node:
        attributes = _attributes(node)
        if node.op_type == "Constant":
            tensors[node.output[0]] = _tensor(_constant(attributes), None)
            continue
        nodes.append(
            {"op": node.op_type, "in": list(node.input), "out": list(node.output), "at": attributes}
        )
    return {
        "opset": next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")),
        "inputs": [i.name for i in graph.input if i.name not in tensors],
        "outputs": [o.name for o in graph.output],
        "nodes": nodes,
        "tensors": tensors,
    }


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {
        name: value.decode() if isinstance(value, bytes)
        else value if isinstance(value, int | float | str | onnx.TensorProto)
        else list(value)
        for name, value in values.items()
    }  # fmt: skip


def _constant(attributes: Mapping[str, Any]) -> Array:
    (value,) = attributes.values()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    kind = np.float32 if np.asarray(value).dtype.kind == "f" else np.int64
    return np.asarray(value, kind)


def _tensor(array: Array, draw: ArrayDraw | None) -> dict[str, Any]:
    if draw is not None:
        return {"draw": asdict(draw), "dtype": array.dtype.name}
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes())).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}
