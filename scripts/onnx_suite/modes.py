"""The three ways in which a case of the suite is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import onnx
from onnx import numpy_helper

Prepared: TypeAlias = tuple[onnx.ModelProto, list[Any]]


def static(model: onnx.ModelProto, inputs: Sequence[Any]) -> Prepared:
    """As it is: all sizes known, all contents given at run time."""
    return model, list(inputs)


def dynamic(model: onnx.ModelProto, inputs: Sequence[Any]) -> Prepared:
    """Every size of an input above one is open; sizes of zero and one are structure."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value in changed.graph.input:
        if value.type.WhichOneof("value") == "tensor_type":
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value > 1:
                    dim.Clear()
    return changed, list(inputs)


def constant(model: onnx.ModelProto, inputs: Sequence[Any]) -> Prepared:
    """Tensors that are inputs become initialisers; sequences and optionals stay inputs."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    fixed = {t.name for t in changed.graph.initializer}
    given = [value for value in changed.graph.input if value.name not in fixed]
    kept = []
    for value, array in zip(given, inputs, strict=True):
        if value.type.WhichOneof("value") == "tensor_type":
            changed.graph.initializer.append(numpy_helper.from_array(array, value.name))
            changed.graph.input.remove(value)
        else:
            kept.append(array)
    return changed, kept


MODES: Mapping[str, Callable[[onnx.ModelProto, Sequence[Any]], Prepared]] = MappingProxyType(
    {"static": static, "dynamic": dynamic, "constant": constant}
)
