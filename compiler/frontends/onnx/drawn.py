"""Replaces the random nodes of an ONNX model by tcc's random numbers, for comparison runtimes.

    r = RandomNormalLike(x)   ->   r = Reshape(Gather(draws, 0 to Size(x)), Shape(x))

A random number depends only on its element's position. So the first n draws of a node serve every
shape of at most n elements; for more elements the runtime's Gather fails.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from tcc.frontends.onnx.importer import import_model
from tcc.frontends.onnx.reader import read_model
from tcc.frontends.onnx.schema import nodes_of
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.op import Array

_FED = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
_OPSET = 11  # the first opset with Range
# How many random numbers are stored for a node whose size is known only at run time.
_COUNT = 1 << 18


def _draws(node: onnx.NodeProto) -> bool:
    if node.op_type == "Dropout":
        return len(node.input) > 2 and bool(node.input[2])
    return node.op_type in (*_FED, "Bernoulli", "Multinomial")


def random_nodes(model: Path) -> list[onnx.NodeProto]:
    """Returns the nodes of the ONNX file that may draw random numbers, also in bodies and
    functions."""
    return [node for node in nodes_of(model) if _draws(node)]


def write_drawn(model: Path, target: Path, seed: int) -> bool:
    """Writes the ONNX file at `model` to `target`, with the random numbers of `seed` as constants.

    The weights go to a file beside `target`. Returns False, and writes nothing, if constants cannot
    replace the random nodes. That is so in loops and functions, for operators that choose at
    random, and for types that ONNX Runtime lacks.
    """
    proto = onnx.load(model)
    types = _types(model)
    opset = next((o.version for o in proto.opset_import if not o.domain), 0)
    feeds = {id(n): _Feed(n, types) for n in proto.graph.node if n.op_type in _FED}
    supported = all(feed.kind in _TYPES for feed in feeds.values())
    if len(feeds) != len(random_nodes(model)) or not supported or opset < _OPSET:
        return False
    nodes = [*proto.graph.node]
    del proto.graph.node[:]
    for node in nodes:
        if id(node) in feeds:
            feeds[id(node)].add(proto.graph, seed)
        else:
            proto.graph.node.append(node)
    onnx.save(proto, target, save_as_external_data=True, location=f"{target.name}.weights")
    return True


def _types(model: Path) -> dict[str, onnx.TypeProto.Tensor]:
    """Returns the type of every tensor whose type ONNX infers."""
    graph = onnx.shape_inference.infer_shapes(onnx.load(model, load_external_data=False)).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: value.type.tensor_type for value in values}


class _Feed:
    """A random node to be replaced by a constant of element type `kind`."""

    def __init__(self, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto.Tensor]) -> None:
        self._node, self._name = node, node.output[0]
        self._attributes = {attribute.name: attribute for attribute in node.attribute}
        other = onnx.TypeProto.Tensor(elem_type=0 if node.input else TensorProto.FLOAT)
        like = types.get(next(iter(node.input), ""), other)
        self.kind = self._attributes["dtype"].i if "dtype" in self._attributes else like.elem_type
        is_static = like.HasField("shape") and all(d.HasField("dim_value") for d in like.shape.dim)
        self._count = prod(d.dim_value for d in like.shape.dim) if is_static else _COUNT

    def add(self, graph: onnx.GraphProto, seed: int) -> None:
        """Adds the nodes to the graph that replace the random node."""
        name = self._name
        if not self._node.input:
            fixed = self._drawn(self._attributes["shape"].ints, seed)
            graph.initializer.append(from_array(fixed, name))
            return
        arrays = {
            "draws": self._drawn([self._count], seed),
            "first": np.array(0),
            "step": np.array(1),
        }
        graph.initializer.extend(from_array(a, f"{name}/{part}") for part, a in arrays.items())
        for op, inputs, result in (
            ("Shape", [self._node.input[0]], "/shape"),
            ("Size", [self._node.input[0]], "/size"),
            ("Range", [f"{name}/first", f"{name}/size", f"{name}/step"], "/places"),
            ("Gather", [f"{name}/draws", f"{name}/places"], "/flat"),
            ("Reshape", [f"{name}/flat", f"{name}/shape"], ""),
        ):
            graph.node.append(helper.make_node(op, inputs, [name + result]))

    def _drawn(self, shape: Sequence[int], seed: int) -> Array:
        """Returns tcc's random numbers for the node, in this shape."""
        name, law = self._name, self._node.op_type.removesuffix("Like")
        node = helper.make_node(law, [], [name], shape=shape, dtype=self.kind)
        node.attribute.extend(
            a for key, a in self._attributes.items() if key not in ("shape", "dtype")
        )
        result = helper.make_tensor_value_info(name, self.kind, shape)
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(
            helper.make_graph([node], "draws", [], [result]), opset_imports=opsets
        )
        return np.asarray(evaluate_graph(import_model(read_model(model)), {}, seed=seed)[name])
