"""Folds per-channel scales and shifts into the weights before them.

    %a = conv(%x, %w) ; %b = batch_normalization(%a, ...)      %b = conv(%x, %w', %bias')
    %a = conv(%x, %w) ; %b = mul(%a, %scale)                   %b = conv(%x, %w')
    %b = batch_normalization(%x, ...)                          %a = mul(%x, %s) ; %b = add(%a, %t)

Weights and parameters must be constant, and nothing else may read the product.  New constants are
computed in f64 and rounded once.  Requires folded constants.  Establishes that no
batch_normalization with constant parameters is left, and no scale or shift by channel directly
behind a convolution, its transpose or gemm, or scale behind a matmul, that could be folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, bodies, uses, walk_nodes
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int
from tcc.ir.op import Array
from tcc.passes.graph.emit import emit
from tcc.record import record

_CONVOLUTIONS = ("conv", "conv_transpose")
# The operands of which a node may be an affine map by channel.
_OPERANDS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"batch_normalization": (0,), "mul": (0, 1), "add": (0, 1), "sub": (0,), "div": (0,)}
)


@record
class Affine:
    """x -> x * scale + shift along one axis; both f64 vectors as long as the axis, or None."""

    scale: Array | None
    shift: Array | None


def fold_batch_norm(graph: Graph) -> Graph:
    """`graph` with what can be folded in weights; itself where nothing can."""
    fold = _Fold(graph)
    # What leaves the range of a type is looked for, and not folded.
    with np.errstate(all="ignore"):
        while (changed := rewritten(graph, fold.visit)) is not graph:
            graph = changed
            fold = _Fold(graph)
    return graph


class _Fold:
    """One sweep; `uses` counts the readers of each value: outputs count twice, and so does what a
    body reads of the graph around it, which stays there."""

    def __init__(self, graph: Graph) -> None:
        self.uses: dict[Value, int] = dict.fromkeys(graph.outputs, 2)
        for node in walk_nodes(graph):
            self.uses.update((v, 2) for body in bodies(node) for v in body.outputs)
        for node in walk_nodes(graph):
            for value in uses(node):
                self.uses[value] = self.uses.get(value, 0) + 1

    def visit(self, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        for number in _OPERANDS.get(node.op.name, ()):
            value, old = inputs[number], node.inputs[number]
            producer = None if value is None else b.producer(value)
            if producer is None or old is None or self.uses.get(old) != 1:
                continue
            axis = _channel_axis(producer)
            affine = None if axis is None else _affine(b, node, inputs, number, axis)
            if affine is not None:
                folded = _folded(b, producer, affine)
                if folded is not None:
                    return folded
        return _plain(b, node, inputs) if node.op.name == "batch_normalization" else None


def _channel_axis(producer: Node) -> int | None:
    """The axis along which the product's weights may be scaled."""
    if producer.op.name in _CONVOLUTIONS:
        return 1
    if producer.op.name in ("gemm", "matmul"):
        rank = producer.outputs[0].type.rank
        return rank - 1 if rank > 1 else None
    return None


# ---- what a node does to its operand ------------------------------------------------------------


def _affine(b: GraphBuilder, node: Node, inputs: Inputs, number: int, axis: int) -> Affine | None:
    """The node as an affine map of operand `number` along `axis`, else None."""
    value = inputs[number]
    assert value is not None
    length = as_int(value.type.shape[axis])
    name = node.op.name
    if length is None:
        return None
    if name == "batch_normalization":
        return _parameters(b, node, inputs) if axis == 1 else None
    other = inputs[1 - number]
    array = None if other is None else b.array(other)
    if array is None or not value.type.dtype.is_float:
        return None
    vector = _vector(array, value.type.rank, axis, length)
    if vector is None:
        return None
    match name:
        case "mul":
            return Affine(vector, None)
        case "div":
            return Affine(1 / vector, None) if vector.all() else None
        case "add":
            return Affine(None, vector)
    return Affine(None, -vector)


def _parameters(b: GraphBuilder, node: Node, inputs: Inputs) -> Affine | None:
    arrays = [None if v is None else b.array(v) for v in inputs[1:]]
    found = [a.astype(np.float64) for a in arrays if a is not None]
    if len(found) < 4:
        return None
    scale, bias, mean, variance = found
    by = scale / np.sqrt(variance + node.attrs.epsilon)
    shift = bias - mean * by
    return Affine(by, shift) if np.isfinite(by).all() and np.isfinite(shift).all() else None


def _vector(array: Array, rank: int, axis: int, length: int) -> Array | None:
    """A constant that varies along `axis` alone, as a vector of `length` in f64."""
    if array.ndim > rank:
        return None
    whole = array.reshape((1,) * (rank - array.ndim) + array.shape)
    others = whole.shape[:axis] + whole.shape[axis + 1 :]
    if any(n != 1 for n in others) or whole.shape[axis] not in (1, length):
        return None
    vector = np.broadcast_to(whole.reshape(-1), (length,)).astype(np.float64)
    return vector if np.isfinite(vector).all() else None


# ---- what becomes of the product ----------------------------------------------------------------


def _folded(b: GraphBuilder, producer: Node, affine: Affine) -> Replacement:
    """The product with the affine map in its weights, or None if they are not constant."""
    operands = [None if v is None else b.array(v) for v in producer.inputs]
    weights = operands[1]
    absent = len(operands) < 3 or producer.inputs[2] is None
    bias = None if absent else operands[2]
    if weights is None or (bias is None and not absent) or weights.dtype.kind != "f":
        return None
    source = producer.inputs[1]
    assert source is not None
    if source.type.dtype.carrier != weights.dtype or source.type.dtype.bits < 32:
        return None
    if producer.op.name == "matmul" and (affine.shift is not None or weights.ndim < 2):
        return None
    attrs = producer.attrs
    if producer.op.name == "gemm":
        bias = None if bias is None else bias * np.float64(attrs.beta)
        attrs = replace(attrs, beta=1.0)
    inputs = [producer.inputs[0], source]
    if affine.scale is not None:
        scaled = _scaled(weights, producer, affine.scale)
        if not np.isfinite(scaled).all():
            return None
        inputs[1] = b.constant(scaled, source.name)
    moved = _moved(bias, affine)
    if moved is not None:
        shift = moved.astype(weights.dtype)
        if not np.isfinite(shift).all():
            return None
        inputs.append(b.constant(shift, "bias"))
    return b.add(producer.op, inputs, attrs, loc=producer.loc)


def _moved(bias: Array | None, affine: Affine) -> Array | None:
    if bias is None:
        return affine.shift
    wide = bias.astype(np.float64)
    if affine.scale is not None:
        wide = wide * affine.scale
    return wide if affine.shift is None else wide + affine.shift


def _scaled(weights: Array, producer: Node, scale: Array) -> Array:
    """Weights times `scale` along the axis of the product's channels, rounded once."""
    shape = weights.shape
    match producer.op.name:
        case "conv":
            factors = scale.reshape(-1, *[1] * (weights.ndim - 1))
        case "conv_transpose":
            groups = producer.attrs.group
            weights = weights.reshape(groups, shape[0] // groups, *shape[1:])
            factors = scale.reshape(groups, 1, shape[1], *[1] * (len(shape) - 2))
        case "gemm" if producer.attrs.trans_b:
            factors = scale.reshape(-1, 1)
        case _:
            factors = scale
    # The loop runs in f64 in small pieces: no copy of large weights in f64.
    result = np.empty_like(weights)
    np.multiply(weights, factors, out=result, casting="same_kind")
    return result.reshape(shape)


def _plain(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    """Batch normalisation as a product and a sum."""
    x = inputs[0]
    assert x is not None
    found = _parameters(b, node, inputs)
    if found is None or found.scale is None or found.shift is None or x.type.dtype.bits < 32:
        return None
    value: Value = x
    for op, vector in (("mul", found.scale), ("add", found.shift)):
        column = vector.reshape(-1, *[1] * max(x.type.rank - 2, 0)).astype(x.type.dtype.carrier)
        value = emit(b, op, value, b.constant(column, op))
    return (value,)
