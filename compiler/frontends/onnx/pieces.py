"""Cuts an ONNX model into pieces: consecutive nodes of its graph as a model of their own.

The arrays given to a piece fix its sizes.  A value from an earlier node becomes an input of the
piece, or a constant where the caller asks for it, usually for small integers computed from shapes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx.shape_inference import InferenceError
from tcc.errors import UserError
from tcc.frontends.onnx.reader import SourceModel, read_model
from tcc.frontends.onnx.rows import bound_row
from tcc.frontends.onnx.schema import bodies, domain_of
from tcc.frontends.onnx.tensors import ELEMENT_TYPES, TensorReader
from tcc.frontends.place import placed
from tcc.frozen import frozen
from tcc.ir.op import Array, Tolerance
from tcc.ir.types import BF16

_UNSEEN = 0  # the element type of a value that is not a tensor


@frozen
class Layer:
    """A node of the model's graph.

    `name` is the node's name, else its first output's.  `reads` are the values that the node and
    its bodies read, without the model's constants.  `tolerance` is the op's tolerance class if the
    node is one row of the op table.
    """

    name: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    tolerance: Tolerance | None


class PieceModel:
    """An ONNX file that can be cut into pieces.

    `layers` are the nodes of the graph in order, and `outputs` its outputs. `constant` has the
    values that depend on no input.
    """

    def __init__(self, path: Path, sizes: Mapping[str, Sequence[int]]) -> None:
        """Reads the file; `sizes` are those of the inputs.

        Raises UserError where the file is no model, or its nodes are not in topological order.
        """
        self._source = read_model(path)
        self._graph = self._source.proto.graph
        initializers = enumerate(self._graph.initializer)
        self._constants = {tensor.name: n for n, tensor in initializers if tensor.name not in sizes}
        self._sparse = {tensor.values.name: tensor for tensor in self._graph.sparse_initializer}
        self.layers = tuple(self._layer(node) for node in self._graph.node)
        self.outputs = tuple(value.name for value in self._graph.output)
        self._check_order()
        self._types = _inferred(self._source, sizes)
        self.constant = self._constant_values()

    def bytes_of(self, value: str) -> int:
        """Returns the bytes of a value; 0 if its size is unknown before a run."""
        element, shape = self._types.get(value, (None, None))
        if element is None or shape is None or element not in ELEMENT_TYPES:
            return 0
        return math.prod(shape) * ELEMENT_TYPES[element].bytes

    def seen(self, value: str) -> bool:
        """True if NumPy has arrays of the value's type: not for a sequence, an optional or bf16."""
        element, _ = self._types.get(value, (None, None))
        if element is None:
            return True  # unknown, for example for operators of other domains
        return element in ELEMENT_TYPES and ELEMENT_TYPES[element] is not BF16

    def example(self, value: str) -> Array | None:
        """Returns ones of the value's type and size; None where these are unknown without a run."""
        element, shape = self._types.get(value, (None, None))
        if element is None or shape is None or not self.seen(value):
            return None
        return np.ones(shape, ELEMENT_TYPES[element].carrier)

    def write(
        self,
        path: Path,
        numbers: Sequence[int],
        arrays: Mapping[str, Array],
        outputs: Sequence[str],
        fixed: frozenset[str] = frozenset(),
    ) -> tuple[str, ...]:
        """Writes the layers `numbers` (in order) as a model, and returns the names of its inputs.

        Layers that `outputs` do not need are left out. `arrays` has the values that other layers
        compute; the names in `fixed` become constants.
        """
        nodes = self._needed(numbers, outputs)
        computed = {name for number in nodes for name in self.layers[number].writes}
        reads = dict.fromkeys(n for number in nodes for n in self.layers[number].reads)
        external = [name for name in reads if name not in computed]
        inputs = tuple(name for name in external if name not in fixed)
        proto = self._source.proto
        piece = onnx.ModelProto(ir_version=proto.ir_version, producer_name=proto.producer_name)
        piece.opset_import.extend(proto.opset_import)
        piece.functions.extend(proto.functions)
        graph = piece.graph
        graph.name = self._graph.name or "model"
        graph.node.extend(self._graph.node[number] for number in nodes)
        read_by_piece = {name for number in nodes for name in read_names(self._graph.node[number])}
        graph.initializer.extend(self._initializers(read_by_piece))
        graph.sparse_initializer.extend(
            h for name, h in self._sparse.items() if name in read_by_piece
        )
        for name in external:
            if name in fixed:
                graph.initializer.append(onnx.numpy_helper.from_array(arrays[name], name))
        graph.input.extend(
            _value(name, np.asarray(arrays[name]).dtype, arrays[name].shape) for name in inputs
        )
        graph.output.extend(self._output(name, arrays.get(name)) for name in outputs)
        onnx.save(piece, path)
        return inputs

    def _needed(self, numbers: Sequence[int], outputs: Iterable[str]) -> list[int]:
        needed, nodes = set(outputs), []
        for number in reversed(numbers):
            if not needed.isdisjoint(self.layers[number].writes):
                nodes.append(number)
                needed.update(self.layers[number].reads)
        return nodes[::-1]

    def _initializers(self, names: Set[str]) -> Iterator[onnx.TensorProto]:
        for number in sorted(self._constants[name] for name in names & self._constants.keys()):
            tensor = self._graph.initializer[number]
            copied = onnx.TensorProto()
            copied.CopyFrom(tensor)
            if number in self._source.weights:
                copied.raw_data = bytes(self._source.weights[number])
            elif tensor.data_location == onnx.TensorProto.EXTERNAL:
                reader = TensorReader(self._source.path)
                with placed(f"initializer {tensor.name}"):
                    array, dtype = reader.array(tensor)
                    copied.raw_data = bytes(reader.external(tensor, array.size, dtype))
                copied.data_location = onnx.TensorProto.DEFAULT
                del copied.external_data[:]
            yield copied

    def _output(self, name: str, array: Array | None) -> onnx.ValueInfoProto:
        """Returns an output of known rank.

        Its sizes are symbolic, so that it fits inputs of any size.
        """
        if array is not None:
            return _value(name, array.dtype, [None] * array.ndim)
        inferred, shape = self._types.get(name, (None, None))
        if inferred is None:
            return onnx.ValueInfoProto(name=name)
        dims = None if shape is None else [None] * len(shape)
        return onnx.helper.make_tensor_value_info(name, inferred, dims)

    def _layer(self, node: onnx.NodeProto) -> Layer:
        constants = self._constants.keys() | self._sparse.keys()
        reads = tuple(name for name in read_names(node) if name not in constants)
        writes = tuple(name for name in node.output if name)
        domain = domain_of(node)
        row = bound_row(domain, node.op_type, self._source.opsets.get(domain, 1))
        name = node.name or next(iter(writes), node.op_type)
        return Layer(name, node.op_type, reads, writes, row.tolerance if row else None)

    def _check_order(self) -> None:
        defined = {value.name for value in self._graph.input}
        for layer in self.layers:
            absent = [name for name in layer.reads if name not in defined]
            if absent:
                raise UserError(
                    f"nothing before it defines {absent[0]!r}", where=f"node {layer.name}"
                )
            defined.update(layer.writes)

    def _constant_values(self) -> frozenset[str]:
        constants: set[str] = set()
        for layer in self.layers:
            if constants.issuperset(layer.reads):
                constants.update(layer.writes)
        return frozenset(constants)


_Types = Mapping[str, tuple[int | None, tuple[int, ...] | None]]


def _inferred(source: SourceModel, sizes: Mapping[str, Sequence[int]]) -> _Types:
    """Returns the element type and shape of every value for which ONNX's shape inference finds
    them."""
    model = onnx.ModelProto()
    model.CopyFrom(source.proto)
    for value in model.graph.input:
        if value.name in sizes and value.type.HasField("tensor_type"):
            element = value.type.tensor_type.elem_type
            fixed = onnx.helper.make_tensor_value_info(value.name, element, sizes[value.name])
            value.CopyFrom(fixed)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (InferenceError, ValueError, RuntimeError):
        return MappingProxyType({})  # the importer reports the bad model, with a better message
    graph = model.graph
    return MappingProxyType(
        {
            value.name: _type(value.type)
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
    )


def _type(declared: onnx.TypeProto) -> tuple[int | None, tuple[int, ...] | None]:
    kind = declared.WhichOneof("value")
    if kind is None:
        return None, None
    if kind != "tensor_type":
        return _UNSEEN, None
    tensor = declared.tensor_type
    element = tensor.elem_type or None
    if not tensor.HasField("shape"):
        return element, None
    dims = tensor.shape.dim
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims):
        return element, None
    return element, tuple(dim.dim_value for dim in dims)


def _value(name: str, dtype: np.dtype[Any], dims: Sequence[int | None]) -> onnx.ValueInfoProto:
    element = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    return onnx.helper.make_tensor_value_info(name, element, dims)


def read_names(node: onnx.NodeProto) -> tuple[str, ...]:
    """Returns the names that a node and its bodies read from outside, each once."""
    names = dict.fromkeys(name for name in node.input if name)
    for body in bodies(node):
        defined = {value.name for value in body.input}
        defined.update(tensor.name for tensor in body.initializer)
        for inner in body.node:
            names.update(dict.fromkeys(name for name in read_names(inner) if name not in defined))
            defined.update(inner.output)
        names.update(dict.fromkeys(out.name for out in body.output if out.name not in defined))
    return tuple(names)
