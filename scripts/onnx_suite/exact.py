"""Computes a case's outputs with less rounding: the same model in f64; needs onnx."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
from onnx.reference import ReferenceEvaluator

_ROUNDED = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_TYPES = ("to", "dtype", "output_datatype", "softmax_precision", "stash_type")


def exact(model: onnx.ModelProto, inputs: Sequence[Any], like: Sequence[Any]) -> list[Any] | None:
    """Returns the outputs of ONNX's reference evaluator, computed in f64 instead of narrower
    floats.

    The outputs are then converted to the element types of `like`. Returns None if inputs or outputs
    are not all tensors, or if the evaluator fails. Constants in narrow types keep their rounded
    values, because this rounding is part of the model.
    """
    if not all(isinstance(item, np.ndarray) for item in (*inputs, *like)):
        return None
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen(wide.graph)
    feeds = {
        value.name: array.astype(np.float64) if _is_rounded(value) else array
        for value, array in zip(model.graph.input, inputs, strict=False)
    }
    try:
        results = ReferenceEvaluator(wide).run(None, feeds)
    except Exception:  # for f64, the evaluator raises exceptions of many types
        return None
    return [
        np.asarray(result).astype(like_array.dtype)
        for result, like_array in zip(results, like, strict=True)
    ]


def _is_rounded(value: ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in _ROUNDED


def _widen(graph: GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if _is_rounded(value):
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    _widen_tensors(graph.initializer)
    for attribute in _attributes(graph.node):
        if attribute.name in _TYPES and attribute.i in _ROUNDED:
            attribute.i = TensorProto.DOUBLE
        if attribute.type == AttributeProto.TENSOR:
            _widen_tensors([attribute.t])
        if attribute.type == AttributeProto.GRAPH:
            _widen(attribute.g)


def _attributes(nodes: Iterable[NodeProto]) -> list[AttributeProto]:
    return [attribute for node in nodes for attribute in node.attribute]


def _widen_tensors(tensors: Iterable[TensorProto]) -> None:
    for tensor in tensors:
        if tensor.data_type in _ROUNDED:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
