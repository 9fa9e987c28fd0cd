"""An ONNX model whose random nodes give the draws that tcc makes of a seed, for other runtimes.

    r = RandomNormalLike(x)   ->   r = Reshape(Slice(draws, 0, Size(x)), Shape(x))

An element's draw depends on its number alone, so the first draws of a node suit any shape.  How
many there must be only a run tells: each node's `NAME/count` is an output of the result.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from tcc.frontends.onnx.importer import import_model
from tcc.frontends.onnx.reader import read_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.op import Array, NamedArrays

_LAWS = ("RandomNormal", "RandomUniform")
_RANDOM = frozenset((*_LAWS, *(f"{law}Like" for law in _LAWS), "Bernoulli", "Multinomial"))
_FED = _RANDOM - {"Multinomial"}
_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
_OPSET = 10  # the first whose Slice takes its ends as operands
_COUNT, _FIRST = "/count", 1 << 16  # the draws of a node whose size no run has told


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of bodies too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body)


def _draws(node: onnx.NodeProto) -> bool:
    training = node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2])
    return node.domain in ("", "ai.onnx") and (node.op_type in _RANDOM or training)


def has_draws(model: onnx.ModelProto) -> bool:
    """Whether a node of the model, or of one of its functions, may draw random numbers."""
    inlined = (node for function in model.functions for node in function.node)
    return any(map(_draws, (*_nodes(model.graph), *inlined)))


def write_drawn(model: Path, target: Path, seed: int, counts: Mapping[str, int]) -> bool:
    """Writes the ONNX file at `model` as `target` with the draws of `seed`, as many of each node as
    `counts` says by its output's name, and its weights in a file beside.

    Returns False, and writes nothing, where other runtimes cannot be given the draws: those of
    loops, functions and classes, and of types that they lack.
    """
    proto = onnx.load(model)
    nodes = [node for node in proto.graph.node if _draws(node)]
    inner = len([*filter(_draws, _nodes(proto.graph))]) > len(nodes)
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    kinds = _element_types(model)
    named = {node.output[0]: _type_of(node, kinds) for node in nodes}
    fits = all(n.op_type in _FED for n in nodes) and all(k in _TYPES for k in named.values())
    if inner or any(map(_draws, _function_nodes(proto))) or opset < _OPSET or not fits:
        return False
    found: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        kind = named.get(node.output[0]) if _draws(node) else None
        found += [node] if kind is None else _fed(proto.graph, node, kind, seed, counts)
    del proto.graph.node[:]
    proto.graph.node.extend(found)
    onnx.save(proto, target, save_as_external_data=True, location=f"{target.name}.weights")
    return True


def missing_draws(outputs: NamedArrays, counts: Mapping[str, int]) -> dict[str, int]:
    """The draws that a run asked for, by node, where there were fewer."""
    asked = {n.removesuffix(_COUNT): int(a) for n, a in outputs.items() if n.endswith(_COUNT)}
    return {name: count for name, count in asked.items() if count > counts.get(name, _FIRST)}


def _function_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for function in model.functions:
        yield from function.node


def _element_types(model: Path) -> dict[str, int]:
    """The element type of every tensor that ONNX infers one of."""
    proto = onnx.load(model, load_external_data=False)
    graph = onnx.shape_inference.infer_shapes(proto).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _attributes(node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
    return {attribute.name: attribute for attribute in node.attribute}


def _type_of(node: onnx.NodeProto, kinds: Mapping[str, int]) -> int:
    """The element type of what a node draws: of Bernoulli that of its chances."""
    given = _attributes(node).get("dtype")
    if given is not None and node.op_type != "Bernoulli":
        return int(given.i)
    return kinds.get(node.input[0], 0) if node.input else TensorProto.FLOAT


def _flat_draws(node: onnx.NodeProto, kind: int, count: int, seed: int) -> Array:
    """The first draws of a node."""
    attributes = _attributes(node)
    law = "RandomUniform" if node.op_type == "Bernoulli" else node.op_type.removesuffix("Like")
    drawn = make_node(law, [], [node.output[0]], shape=[count], dtype=kind)
    drawn.attribute.extend(a for n, a in attributes.items() if n not in ("shape", "dtype"))
    result = make_tensor_value_info(node.output[0], kind, [count])
    model = make_model(
        make_graph([drawn], "draws", [], [result]), opset_imports=[make_opsetid("", 17)]
    )
    graph = import_model(read_model(model))
    return np.asarray(evaluate_graph(graph, {}, seed=seed)[node.output[0]])


def _fed(
    graph: onnx.GraphProto, node: onnx.NodeProto, kind: int, seed: int, counts: Mapping[str, int]
) -> Iterator[onnx.NodeProto]:
    """Nodes that give what `node` draws; their constants and counts are added to the graph."""
    name = node.output[0]
    attributes = _attributes(node)
    drawn, shape, size, held, flat, all_of = (
        f"{name}/{part}" for part in ("draws", "shape", "size", "zeros", "flat", "all")
    )

    def constant(text: str, array: Array) -> str:
        graph.initializer.append(from_array(array, f"{name}/{text}"))
        return f"{name}/{text}"

    one = constant("one", np.array([1]))
    if "shape" in attributes:
        constant("shape", np.array(attributes["shape"].ints, np.int64))
        yield make_node("ConstantOfShape", [shape], [f"{name}/like"])
        source = f"{name}/like"
    else:
        source = node.input[0]
        yield make_node("Shape", [source], [shape])
    yield make_node("Size", [source], [f"{name}{_COUNT}"])
    graph.output.append(make_tensor_value_info(f"{name}{_COUNT}", TensorProto.INT64, []))
    array = _flat_draws(node, kind, counts.get(name, _FIRST), seed)
    constant("draws", array)
    yield make_node("Reshape", [f"{name}{_COUNT}", one], [size])
    # Where there are too few the rest is zeros; the count tells.
    zero = from_array(np.zeros(1, array.dtype))
    yield make_node("ConstantOfShape", [size], [held], value=zero)
    yield make_node("Concat", [drawn, held], [all_of], axis=0)
    begin = constant("begin", np.array([0]))
    yield make_node("Slice", [all_of, begin, size], [flat])
    if node.op_type != "Bernoulli":
        yield make_node("Reshape", [flat, shape], [name])
        return
    yield make_node("Reshape", [flat, shape], [f"{name}/uniform"])
    yield make_node("Less", [f"{name}/uniform", source], [f"{name}/less"])
    to = attributes["dtype"].i if "dtype" in attributes else kind
    yield make_node("Cast", [f"{name}/less"], [name], to=to)
