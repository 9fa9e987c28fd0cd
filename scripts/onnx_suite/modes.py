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
    """Returns the model and its inputs unchanged: all sizes are fixed, only contents vary."""
    return model, list(inputs)


# Maps an operator to its inputs (by position) and their axes whose sizes must be constant. None
# stands for all axes.
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
    """Returns the model with symbolic sizes of inputs, and the inputs unchanged.

    Each size above one becomes symbolic; equal sizes get the same name, as exporters do it. These
    sizes stay fixed: zero and one, the length of a vector of integers (often the rank of another
    value), and the axes that _CONSTANT lists.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    fixed_axes = _fixed_axes(changed.graph)
    for value in changed.graph.input:
        if value.type.WhichOneof("value") != "tensor_type":
            continue
        dims = value.type.tensor_type.shape.dim
        is_float = value.type.tensor_type.elem_type in _FLOATS
        if len(dims) == 1 and not is_float:
            continue
        for axis, dim in enumerate(dims):
            if dim.dim_value > 1 and not fixed_axes[value.name] & {axis, axis - len(dims), _ALL}:
                dim.dim_param = f"n{dim.dim_value}"
    return changed, list(inputs)


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _fixed_axes(graph: onnx.GraphProto) -> dict[str, set[int | None]]:
    """Maps each input of a node to its axes whose sizes stay fixed (_ALL: all axes)."""
    fixed_axes: dict[str, set[int | None]] = defaultdict(set)
    for node in graph.node:
        for number, axes in _CONSTANT.get(node.op_type, {}).items():
            if number < len(node.input):
                fixed_axes[node.input[number]] |= {_ALL} if axes is None else set(axes)
    return fixed_axes


def constant(model: onnx.ModelProto, inputs: Sequence[Any]) -> Prepared:
    """Returns the model with its tensor inputs as initialisers, and the remaining inputs.

    Sequences and optionals stay inputs.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    fixed = {t.name for t in changed.graph.initializer}
    fed_inputs = [value for value in changed.graph.input if value.name not in fixed]
    remaining = []
    for value, array in zip(fed_inputs, inputs, strict=True):
        if value.type.WhichOneof("value") == "tensor_type":
            changed.graph.initializer.append(numpy_helper.from_array(array, value.name))
            changed.graph.input.remove(value)
        else:
            remaining.append(array)
    return changed, remaining


MODES: Mapping[str, Callable[[onnx.ModelProto, Sequence[Any]], Prepared]] = MappingProxyType(
    {"static": static, "dynamic": dynamic, "constant": constant}
)
