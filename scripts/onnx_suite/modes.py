"""The three ways in which a case of the suite is compiled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import onnx
from onnx import TensorProto, numpy_helper

Prepared: TypeAlias = tuple[onnx.ModelProto, list[Any]]


def static(model: onnx.ModelProto, inputs: Sequence[Any]) -> Prepared:
    """As it is: all sizes known, all contents given at run time."""
    return model, list(inputs)


# Sizes that an operator reads as constants: by input, the axes; None stands for all of them.
_ALL = None
_KERNEL: Mapping[int, tuple[int, ...] | None] = MappingProxyType({1: _ALL, 2: _ALL})
_CELL: Mapping[int, tuple[int, ...] | None] = MappingProxyType(
    {0: (2,), 1: _ALL, 2: _ALL, 3: _ALL, 5: (0, 2), 6: (0, 2), 7: _ALL}
)
_CONSTANT: Mapping[str, Mapping[int, tuple[int, ...] | None]] = MappingProxyType(
    {
        **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "CausalConvWithState"), _KERNEL),
        "DeformConv": {0: (1,), 1: _ALL, 2: (1,), 3: _ALL, 4: (1,)},
        "QLinearConv": {3: _ALL, 4: _ALL, 5: _ALL, 8: _ALL},
        **dict.fromkeys(("RNN", "GRU", "LSTM"), _CELL),
        **{name: {1: (-1,)} for name in ("GatherND", "ScatterND")},
        **{name: {1: _ALL, 2: _ALL, 3: _ALL} for name in ("Resize", "Upsample")},
        "DFT": {0: (-1,)},
        "GroupNormalization": {0: (1,), 1: _ALL, 2: _ALL},
    }
)


def dynamic(model: onnx.ModelProto, inputs: Sequence[Any]) -> Prepared:
    """Every size of an input above one is open, equal ones under one name, as exporters do.

    Sizes of zero and one are structure, and so are the length of a vector of integers, which is the
    rank of something else, and what `_CONSTANT` lists.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    kept = _kept_axes(changed.graph)
    for value in changed.graph.input:
        if value.type.WhichOneof("value") != "tensor_type":
            continue
        dims = value.type.tensor_type.shape.dim
        is_float = value.type.tensor_type.elem_type in _FLOATS
        if len(dims) == 1 and not is_float:
            continue
        for axis, dim in enumerate(dims):
            if dim.dim_value > 1 and not kept[value.name] & {axis, axis - len(dims), _ALL}:
                dim.dim_param = f"n{dim.dim_value}"
    return changed, list(inputs)


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _kept_axes(graph: onnx.GraphProto) -> dict[str, set[int | None]]:
    """For each input the axes that stay."""
    kept: dict[str, set[int | None]] = defaultdict(set)
    for node in graph.node:
        for number, axes in _CONSTANT.get(node.op_type, {}).items():
            if number < len(node.input):
                kept[node.input[number]] |= {_ALL} if axes is None else set(axes)
    return kept


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
