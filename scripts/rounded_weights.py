"""Makes an f32 ONNX model that has the integer weights of an artifact.

The rounding rule is implemented here a second time, from the text in passes/README.md and without
tcc's own code. A runtime that computes in f32 with these weights must give the artifact's results,
except for the order of its sums.

A weight is replaced by level * scale. Consecutive weights along the axis of the sum form groups
with a common scale. A group has 32 weights; or 16 if 32 does not divide the axis; or all of them if
16 does not divide it either. With w as the weight of largest magnitude in a group:

    8 bits: scale = |w| / 127, rounded to bf16 away from zero; levels are -127 .. 127
    4 bits: scale = w / -8, rounded to bf16 away from zero; levels are -8 .. 7
    level = the nearest level to weight / scale

So w has a level of about 127 or -127 in eight bits, and of about -8 in four bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

Array = NDArray[Any]

_BITS = {"int8": 8, "int4": 4}
_RECURRENT = ("LSTM", "GRU", "RNN")


def rounded(weights: Array, axis: int, bits: int) -> Array:
    """Returns `weights` (f32), quantised to `bits` (8 or 4) bits and dequantised.

    `axis` is the axis over which the contraction sums. Each weight becomes an integer level times
    the bf16 scale of its group along `axis`.
    """
    rows = np.moveaxis(weights.astype(np.float64), axis, -1)
    length = rows.shape[-1]
    group = next((size for size in (32, 16) if length % size == 0), length)
    groups = rows.reshape(*rows.shape[:-1], length // group, group)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    steps = np.abs(largest) / 127 if bits == 8 else largest / -8
    scales = _bf16_outwards(steps.astype(np.float32)).astype(np.float64)
    lowest_level, highest_level = (-127, 127) if bits == 8 else (-8, 7)
    levels = np.clip(
        np.rint(groups / np.where(scales == 0, 1, scales)), lowest_level, highest_level
    )
    result = np.moveaxis((levels * scales).reshape(rows.shape), -1, axis)
    return np.ascontiguousarray(result, np.float32)


def _bf16_outwards(values: Array) -> Array:
    """Returns the values rounded to bf16 away from zero."""
    truncated = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    next_value = ((values.view(np.uint32) & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(
        np.float32
    )
    return np.where(truncated == values, values, next_value)


def put_rounded_weights(model: onnx.ModelProto, listed: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the weights of contractions in `model` by the rounded weights of an artifact.

    `listed` is the entry "rounded" of the artifact's manifest. Other readers of a weight, such as a
    Gather of its rows, keep the exact weight. Raises ValueError for an entry whose weight no
    contraction reads.
    """
    types = _types(listed)
    constants = _constants(model.graph)
    replaced: set[str] = set()
    for node in model.graph.node:
        for number, axis in _summed_operands(node):
            constant = constants.get(node.input[number])
            if constant is None or constant[0] not in types:
                continue
            source, array = constant
            replaced.add(source)
            name = f"{node.input[number]}/rounded {axis}"
            if name not in constants:
                tensor = numpy_helper.from_array(rounded(array, axis, _BITS[types[source]]), name)
                model.graph.initializer.append(tensor)
                constants[name] = source, array
            node.input[number] = name
    missing = [name for name in types if name not in replaced]
    if missing:
        raise ValueError(f"no product of the model reads {missing[0]!r}")
    _drop_unread(model.graph)


def _types(listed: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Maps each rounded constant of the manifest's entries to its type: "int8" or "int4".

    Raises ValueError for an entry without constants, and for a constant with two types.
    """
    types: dict[str, str] = {}
    for entry in listed:
        if entry["type"] not in _BITS or not entry["weights"]:
            raise ValueError(f"cannot tell what was rounded: {entry}")
        for name in entry["weights"]:
            if types.setdefault(name, entry["type"]) != entry["type"]:
                raise ValueError(f"{name!r} is rounded in two ways")
    return types


def _summed_operands(node: onnx.NodeProto) -> Iterator[tuple[int, int]]:
    """Yields (position of an operand, its summed axis) for the operands of a contraction.

    Yields nothing for other operators.
    """
    flags = {item.name: item.i for item in node.attribute}
    if node.op_type == "MatMul":
        yield from ((0, -1), (1, -2))
    elif node.op_type == "Gemm":
        yield 0, -2 if flags.get("transA") else -1
        yield 1, -1 if flags.get("transB") else -2
    elif node.op_type in _RECURRENT:
        yield from ((1, -1), (2, -1))


def _constants(graph: onnx.GraphProto) -> dict[str, tuple[str, Array]]:
    """Maps the names of constant matrices and of their transposes to (constant's name, array)."""
    constants = {
        tensor.name: (tensor.name, numpy_helper.to_array(tensor))
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) >= 2
    }
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in constants:
            source, array = constants[node.input[0]]
            order = next((tuple(a.ints) for a in node.attribute if a.name == "perm"), None)
            constants[node.output[0]] = source, array.transpose(order)
    return constants


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Removes constants that nothing reads: exact weights whose readers all read rounded ones."""
    read_names = {name for node in graph.node for name in node.input}
    read_names.update(value.name for value in graph.output)
    for number in reversed(range(len(graph.initializer))):
        if graph.initializer[number].name not in read_names:
            del graph.initializer[number]
