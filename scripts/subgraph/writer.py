"""Describes small graphs as data: nodes, literal constants, and tensors that are drawn on demand.

Even a graph of gigabytes is listed and sized without an array: a `DrawnTensor` says how its values
are drawn, and `drawn` draws them. The values do not depend on when and in which order they are
drawn.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
OPSET = 20
_IR = 10
# The most bytes of weights: an ONNX file is a protocol buffer, which must be smaller than 2 GiB.
MOST_WEIGHTS = 2**31 - 2**20


@dataclass(frozen=True, slots=True)
class ValueDraw:
    """How the values of an array are drawn; `kind` is one of these.

    - normal: floats with the mean 0 and the standard deviation `a`
    - uniform: floats from `a` to `b`
    - below: integers in [0, `a`)
    - rising: integers in [0, `a`), sorted
    - skewed: integers in [0, `a`); 84 % are in the lower half and 32 % in the lowest hundredth
    - steps: integers from -8 to 8, times `a`; their sums and products are exact in f32
    """

    kind: str = "normal"
    a: float = 1.0
    b: float = 0.0


NORMAL = ValueDraw()


@dataclass(frozen=True, slots=True)
class DrawnTensor:
    """An input of a run, or a weight of the model; `dtype` is NumPy's name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    draw: ValueDraw

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """A graph of ONNX nodes, in an order in which they can run.

    `inputs` and `weights` (learnt values) are drawn from seeds. `constants` has the arrays of fixed
    values by name: axes, positions, scalars.
    """

    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[DrawnTensor, ...]
    weights: tuple[DrawnTensor, ...]
    constants: Mapping[str, Array]
    outputs: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Returns a hash of the nodes, the constants, and how inputs and weights are drawn.

        Equal graphs have equal hashes on any machine.
        """
        digest = hashlib.sha256()
        for node in self.nodes:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            row = (node.op_type, list(node.input), list(node.output), sorted(attributes.items()))
            digest.update(repr(row).encode())
        for name, array in self.constants.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + _same_anywhere(array))
        for tensor in (*self.inputs, *self.weights):
            digest.update(repr(astuple(tensor)).encode())
        digest.update(repr(self.outputs).encode())
        return digest.hexdigest()[:12]


def _same_anywhere(constant: Array) -> bytes:
    """Returns the bytes of a constant that a digest covers; they are equal on every CPU.

    Large float constants (tables of sines) are rounded to five decimals first, because their last
    bits depend on the CPU that computes them.
    """
    if constant.dtype.kind == "f" and constant.size > 1000:
        return bytes((constant.astype(np.float64).round(5) + 0.0).tobytes())
    return bytes(constant.tobytes())


@dataclass(slots=True)
class GraphWriter:
    """Writes one graph, node by node; every method returns the names of its results."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[DrawnTensor] = field(default_factory=list)
    weights: list[DrawnTensor] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def input(
        self, name: str, *shape: int, dtype: str = "float32", draw: ValueDraw = NORMAL
    ) -> str:
        self.inputs.append(DrawnTensor(name, shape, dtype, draw))
        return name

    def weight(self, name: str, *shape: int, draw: ValueDraw | None = None) -> str:
        """Adds a weight and returns its name.

        Without `draw`, its values are scaled so that a matmul with it preserves the standard
        deviation of the other operand.
        """
        default = ValueDraw("normal", float(np.sqrt(1.0 / shape[-2])) if len(shape) > 1 else 1.0)
        self.weights.append(DrawnTensor(name, shape, "float32", draw or default))
        return name

    def constant(self, value: Any, dtype: str = "float32") -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def ints(self, *values: int) -> str:
        """Adds a one-dimensional i64 constant, such as axes or a shape; returns its name."""
        return self.constant(values, "int64")

    def op(self, kind: str, *operands: str, **attributes: Any) -> str:
        """Adds a node with one result, and returns its name."""
        return self.several(kind, 1, *operands, **attributes)[0]

    def several(self, kind: str, count: int, *operands: str, **attributes: Any) -> list[str]:
        """Adds a node with `count` results, and returns their names."""
        place = len(self.nodes)
        results = [f"{kind.lower()}{place}" + (f"_{n}" if n else "") for n in range(count)]
        self.nodes.append(helper.make_node(kind, operands, results, **attributes))
        return results

    def graph(self, *results: str) -> DrawnGraph:
        """Returns the graph of all nodes so far, with the outputs `results`."""
        return DrawnGraph(
            tuple(self.nodes),
            tuple(self.inputs),
            tuple(self.weights),
            self.constants,
            results,
        )


def drawn(name: str, tensors: Sequence[DrawnTensor]) -> dict[str, Array]:
    """Draws the tensors of the case `name`; returns the arrays by name.

    The seed of an array consists of the names of the case and of the tensor.
    """
    return {item.name: _drawn(name, item) for item in tensors}


def _drawn(case: str, item: DrawnTensor) -> Array:
    seeds = [zlib.crc32(text.encode()) for text in (case, item.name)]
    rng, draw, shape = np.random.default_rng(seeds), item.draw, item.shape
    values: Array
    match draw.kind:
        case "normal":
            values = rng.standard_normal(shape, np.float32)
            values *= np.float32(draw.a)
        case "uniform":
            values = rng.random(shape, np.float32) * np.float32(draw.b - draw.a)
            values += np.float32(draw.a)
        case "below":
            values = rng.integers(0, int(draw.a), shape)
        case "rising":
            values = np.sort(rng.integers(0, int(draw.a), shape))
        case "skewed":
            values = (rng.random(shape) ** 4 * draw.a).astype(np.int64)
        case "steps":
            values = rng.integers(-8, 9, shape) * draw.a
        case _:
            raise ValueError(f"tensor {item.name!r} has the unknown draw {draw.kind!r}")
    return values.astype(item.dtype, copy=False)


def skeleton(graph: DrawnGraph) -> onnx.ModelProto:
    """Returns the model with inferred types; weights are inputs in it, which need no arrays."""
    inputs = [
        helper.make_tensor_value_info(
            t.name, helper.np_dtype_to_tensor_dtype(np.dtype(t.dtype)), t.shape
        )
        for t in (*graph.inputs, *graph.weights)
    ]
    model = _model(graph, inputs, [onnx.ValueInfoProto(name=name) for name in graph.outputs], {})
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def model_of(name: str, graph: DrawnGraph) -> onnx.ModelProto:
    """Returns the model with its weights; raises ValueError if they exceed the limit of a file."""
    if sum(t.bytes for t in graph.weights) > MOST_WEIGHTS:
        raise ValueError(f"{name}: weights of 2 GiB or more do not fit into one ONNX file")
    typed = skeleton(graph).graph
    weight_names = {t.name for t in graph.weights}
    inputs = [value for value in typed.input if value.name not in weight_names]
    return _model(graph, inputs, list(typed.output), drawn(name, graph.weights))


def _model(
    graph: DrawnGraph,
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Array],
) -> onnx.ModelProto:
    initializers = [
        numpy_helper.from_array(a, n) for n, a in (*graph.constants.items(), *weights.items())
    ]
    proto = helper.make_graph(graph.nodes, "subgraph", inputs, outputs, initializers)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(proto, opset_imports=[opset], ir_version=_IR)


def live_bytes(graph: DrawnGraph) -> int:
    """Returns the most bytes that are live at once if nodes run one by one, in order.

    A value is live from the node that writes it to the last node that reads it. Inputs, weights and
    constants are always live.
    """
    typed = skeleton(graph).graph
    values = {v.name: _bytes(v) for v in (*typed.value_info, *typed.output)}
    last = {name: place for place, node in enumerate(graph.nodes) for name in node.input}
    last |= dict.fromkeys(graph.outputs, len(graph.nodes))
    live = sum(t.bytes for t in (*graph.inputs, *graph.weights))
    peak = live = live + sum(a.nbytes for a in graph.constants.values())
    for place, node in enumerate(graph.nodes):
        live += sum(values[name] for name in node.output)
        peak = max(peak, live)
        ends = {n for n in (*node.input, *node.output) if n in values and last.get(n, -1) <= place}
        live -= sum(values[name] for name in ends)
    return peak


def _bytes(value: onnx.ValueInfoProto) -> int:
    """Returns the bytes of a value.

    Raises ValueError if a size is unknown, which does not occur in these graphs.
    """
    kind = value.type.tensor_type
    sizes = [d.dim_value for d in kind.shape.dim]
    if kind.elem_type == TensorProto.UNDEFINED or not all(
        d.HasField("dim_value") for d in kind.shape.dim
    ):
        raise ValueError(f"the size of {value.name!r} is unknown")
    itemsize = helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
    return int(np.prod(sizes, dtype=np.int64)) * itemsize
