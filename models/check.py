"""Measures the promises of every model: its outputs depend on each input and on each weight.

The oracle is ONNX Runtime with its graph optimisations off.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import numpy_helper, shape_inference

from models.inputs import Array, make_input, make_inputs
from models.manifest import ModelSpec

Outputs = list[NDArray[np.float32]]

MIN_INPUT_EFFECT = 0.05
MIN_WEIGHT_EFFECT = 1e-3


@dataclass(frozen=True, slots=True)
class Effect:
    """The distance that outputs moved when `name` was replaced or zeroed."""

    name: str
    size: float


def _is_weight(tensor: onnx.TensorProto) -> bool:
    """Returns true for a float tensor of more than one element that is not zero everywhere.

    An LSTM's initial state or an empty mask are zeros already.
    """
    is_float = tensor.data_type == onnx.TensorProto.FLOAT
    return is_float and prod(tensor.dims) > 1 and bool(numpy_helper.to_array(tensor).any())


class Oracle:
    """An unoptimised ONNX Runtime session; a caller can override its initialisers in each run."""

    def __init__(self, model: onnx.ModelProto, threads: int = 1) -> None:
        self.weights = {
            tensor.name: tensor for tensor in model.graph.initializer if _is_weight(tensor)
        }
        opened = onnx.ModelProto()
        opened.CopyFrom(model)
        known = {value.name for value in opened.graph.input}
        for tensor in self.weights.values():
            # ONNX Runtime accepts another value for an initialiser that is also a graph input.
            if tensor.name not in known:
                opened.graph.input.append(
                    onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                )
        self._session = _session(opened, threads, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        """Runs with `inputs`, which may override weights; returns the outputs in graph order."""
        outputs: Outputs = self._session.run(None, dict(inputs))
        return outputs


def _session(
    model: onnx.ModelProto, threads: int, level: ort.GraphOptimizationLevel
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def relative_error(got: Outputs, want: Outputs) -> float:
    """Returns the largest max |got - want| / max |want| over all outputs; the tolerance bounds
    it."""
    errors = []
    for one, reference in zip(got, want, strict=True):
        wide = reference.astype(np.float64)
        error = np.abs(one.astype(np.float64) - wide).max() / np.abs(wide).max()
        errors.append(float(np.nan_to_num(error, nan=np.inf)))
    return max(errors)


def _moves(got: Outputs, want: Outputs) -> list[float]:
    """Returns the root mean square of each output's change, relative to the output's range."""
    return [
        float(np.sqrt(np.mean((one - reference) ** 2)) / np.ptp(reference))
        for one, reference in zip(got, want, strict=True)
    ]


def input_effects(spec: ModelSpec, oracle: Oracle) -> Iterator[Effect]:
    """Yields, for each output, the part of its range (root mean square) by which other inputs move
    it."""
    want, got = (oracle.run(make_inputs(spec.name, seed)) for seed in (0, 1))
    for name, move in zip(spec.outputs, _moves(got, want), strict=True):
        yield Effect(name, move)


def single_input_effects(spec: ModelSpec, oracle: Oracle) -> Iterator[Effect]:
    """Yields, for each input, the error that results when another array replaces that input
    alone."""
    base = make_inputs(spec.name, 0)
    want = oracle.run(base)
    for entry in spec.inputs:
        other = base | {entry.name: make_input(entry, 1)}
        yield Effect(entry.name, relative_error(oracle.run(other), want))


def weight_effects(spec: ModelSpec, oracle: Oracle) -> Iterator[Effect]:
    """Yields, for each float weight tensor, the error that results when zeros replace it."""
    inputs = make_inputs(spec.name, 0)
    want = oracle.run(inputs)
    for name, tensor in oracle.weights.items():
        zeros = np.zeros(tuple(tensor.dims), np.float32)
        yield Effect(name, relative_error(oracle.run(inputs | {name: zeros}), want))


def is_neutral(spec: ModelSpec, weight: str) -> bool:
    """Returns true if the manifest lists `weight` as a tensor that cannot change any output."""
    return any(fnmatchcase(weight, pattern) for pattern in spec.neutral)


def headroom(spec: ModelSpec, model: onnx.ModelProto, oracle: Oracle) -> float:
    """Returns the model's rounding noise: the error of fully optimised ONNX Runtime.

    A model with noise close to its tolerance would fail correct compilers.
    """
    inputs = make_inputs(spec.name, 0)
    optimised = _session(model, 1, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    return relative_error(optimised.run(None, inputs), oracle.run(inputs))


def _conv_macs(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    weight = shapes[node.input[1]]
    # Each element of the output (the input, if transposed) meets one slice of the weight.
    side = node.output[0] if node.op_type == "Conv" else node.input[0]
    return prod(shapes[side]) * prod(weight[1:])


def _gemm_macs(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    transposed = any(item.name == "transA" and item.i for item in node.attribute)
    left = shapes[node.input[0]]
    depth = left[-2] if transposed and node.op_type == "Gemm" else left[-1]
    return prod(shapes[node.output[0]]) * depth


def _lstm_macs(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    steps, batch, _ = shapes[node.input[0]]
    return steps * batch * (prod(shapes[node.input[1]]) + prod(shapes[node.input[2]]))


_MACS = {
    "Conv": _conv_macs,
    "ConvTranspose": _conv_macs,
    "Gemm": _gemm_macs,
    "MatMul": _gemm_macs,
    "LSTM": _lstm_macs,
}


def count_macs(model: onnx.ModelProto) -> int:
    """Counts the multiply-adds of convolutions, matmuls and LSTMs, padding included."""
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in [*graph.input, *graph.output, *graph.value_info]
    }
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            value = next(item for item in node.attribute if item.name == "value").t
            shapes[node.output[0]] = numpy_helper.to_array(value).shape
    return sum(_MACS[node.op_type](node, shapes) for node in graph.node if node.op_type in _MACS)


def constant_floats(model: onnx.ModelProto) -> list[str]:
    """Returns the names of Constant nodes that hold weights, which zeroing initialisers would
    miss."""
    return [
        node.output[0]
        for node in model.graph.node
        if node.op_type == "Constant"
        for item in node.attribute
        if _is_weight(item.t)
    ]


@dataclass(frozen=True, slots=True)
class Report:
    """All measurements of one model; the functions of this module describe each."""

    hidden: tuple[str, ...]
    outputs: tuple[Effect, ...]
    inputs: tuple[Effect, ...]
    weights: tuple[Effect, ...]
    noise: float
    gmac: float


def examine(spec: ModelSpec, model: onnx.ModelProto, threads: int = 1) -> Report:
    """Measures everything on one model. Each weight needs a run, so this takes seconds to
    minutes."""
    oracle = Oracle(model, threads)
    return Report(
        hidden=tuple(constant_floats(model)),
        outputs=tuple(input_effects(spec, oracle)),
        inputs=tuple(single_input_effects(spec, oracle)),
        weights=tuple(weight_effects(spec, oracle)),
        noise=headroom(spec, model, oracle),
        gmac=count_macs(model) / 1e9,
    )


def findings(spec: ModelSpec, report: Report) -> Iterator[str]:
    """Yields a line for each promise that the model breaks."""
    for name in report.hidden:
        yield f"float weights hidden in Constant node {name}"
    for effect in report.outputs:
        if effect.size < MIN_INPUT_EFFECT:
            yield f"other inputs move output {effect.name} by {effect.size:.2%} of its range"
    for effect in report.inputs:
        if effect.size < MIN_WEIGHT_EFFECT:
            yield f"replacing input {effect.name} alone changes outputs by {effect.size:.1e}"
    for effect in report.weights:
        neutral = is_neutral(spec, effect.name)
        if neutral and effect.size > spec.tolerance:
            yield f"neutral weight {effect.name} changes outputs by {effect.size:.1e}"
        if not neutral and effect.size < MIN_WEIGHT_EFFECT:
            yield f"zeroing {effect.name} changes outputs by {effect.size:.1e}"
    if report.noise > spec.tolerance / 5:
        yield f"rounding noise {report.noise:.1e} is near the tolerance {spec.tolerance:.0e}"
    if abs(report.gmac - spec.gmac) > 0.01 * report.gmac:
        yield f"the manifest says {spec.gmac} GMAC, the graph has {report.gmac:.4g}"
