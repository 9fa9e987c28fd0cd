"""Computes matmuls and convolutions of f32 as products of bytes, for `--precision int8`.

    matmul(%x, %w)  ->  mul(sub(matmul_integer(%q, %v), %z * sums(%v)), %r * %s)
                        %q = u8(%x / %r + %z): each row of x has a scale r and a zero point z
                        %w ~ %v * %s: each column of w has a scale s, and v is i8

    conv(%x, %w)    ->  the convolution of bytes that `int8_matmul` makes of
                        conv(dequantize(quantize(%x, r, z)), dequantize(%v, %s))

A run computes the scales of rows.  A convolution has one scale and one zero point, which come from
the range of x in calibration data.  Scales and levels of weights are computed at compile time.
Sums of products of bytes are exact.

Requires folded constants.  Layers in bodies stay as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeAlias

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, Values
from tcc.ir.graph.rewrite import Inputs, Replacement, rebuild, rewritten, without_dead
from tcc.ir.index import as_int
from tcc.ir.op import Array
from tcc.ir.types import F32, I8, I32, U8, TensorType
from tcc.ops.algebra.levels import LEAST
from tcc.passes.graph.emit import emit
from tcc.passes.quantize.int8_matmul import LONGEST, byte_conv
from tcc.passes.quantize.precision import fits
from tcc.passes.quantize.zero_points import MATMULS, with_bias

# The scale and the zero point of the values that a convolution reads.
RangeLevels: TypeAlias = tuple[np.float32, np.uint8]
# The levels of each layer that is computed in bytes, by the name of the layer's result; None for a
# matmul.
LayerLevels: TypeAlias = Mapping[str, RangeLevels | None]
# A graph with two outputs for each of some layers, and the names of the layers' results.
Probe: TypeAlias = tuple[Graph, tuple[str, ...]]

# Matrices of fewer elements stay in f32, as for `--weights int8`.
_LARGE = 1 << 14


def int8_layers(graph: Graph) -> dict[Node, Value]:
    """Returns the weight of each matmul and convolution of f32 with a constant weight, in order."""
    nodes = (n for n in graph.nodes if n.op.name in ("conv", *MATMULS) and n.result.dtype is F32)
    return {n: w for n in nodes if (w := n.inputs[1]) is not None and w in graph.constants}


def reads_ranges(node: Node) -> bool:
    """Returns True for a layer whose levels come from calibration data."""
    return node.op.name == "conv"


def levels_of_range(low: float, high: float) -> RangeLevels:
    """Returns the levels of values in the range from `low` to `high`; it is made to hold 0."""
    scale = np.float32(max(max(high, 0.0) - min(low, 0.0), LEAST) / 255)
    return scale, np.uint8(np.rint(-min(low, 0.0) / scale))


def with_int8_layers(graph: Graph, levels: LayerLevels) -> Graph:
    """Returns `graph` with the layers in `levels` computed in bytes."""
    layers = int8_layers(graph)

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        is_int8 = node in layers and node.result.name in levels
        return _in_bytes(b, node, inputs, levels) if is_int8 else None

    return rewritten(graph, visit)


def range_probe(graph: Graph) -> Probe:
    """Returns a probe of the least and the largest element that each convolution reads."""

    def measured(b: GraphBuilder, node: Node, inputs: Inputs) -> Values:
        reads = inputs[:1] if reads_ranges(node) else ()
        return tuple(_over_all(b, f"reduce_{m}", x) for x in reads if x for m in ("min", "max"))

    return _probe(graph, measured)


def error_probe(graph: Graph, levels: LayerLevels) -> Probe:
    """Returns a probe of two sums of squares for each layer that bytes can compute.

    They are the sums of the error that bytes cause in the layer's result, and of the result.  Each
    layer reads the values of the f32 model.
    """

    def measured(b: GraphBuilder, node: Node, inputs: Inputs) -> Values:
        (exact,) = b.add(node.op, inputs, node.attrs)
        results = _in_bytes(b, node, inputs, levels) or ()
        values = [part for y in results for part in (emit(b, "sub", y, exact), exact)]
        return tuple(_over_all(b, "reduce_sum_square", part) for part in values)

    return _probe(graph, measured)


def _probe(graph: Graph, measured: Callable[[GraphBuilder, Node, Inputs], Values]) -> Probe:
    layers, outputs = int8_layers(graph), dict[str, Values]()

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> None:
        if node in layers and (values := measured(b, node, inputs)):
            outputs[node.result.name] = values

    probed_graph = rebuild(graph, visit)
    ends = tuple(chain.from_iterable(outputs.values()))
    return without_dead(replace(probed_graph, outputs=ends, aliases=())), tuple(outputs)


def _over_all(b: GraphBuilder, op: str, x: Value) -> Value:
    return emit(b, op, x, axes=tuple(range(x.rank)), keepdims=False)


# ---- layers in bytes ----------------------------------------------------------------------------


def _in_bytes(b: GraphBuilder, node: Node, inputs: Inputs, levels: LayerLevels) -> Replacement:
    """Returns the result of a layer from products of bytes; None where bytes do not fit it."""
    x, w, *biases = inputs
    assert x is not None
    assert w is not None
    handle = b.common(w)
    if handle is None or not b.store.fact(fits, (handle,), F32):
        return None
    axis, input_levels = 0 if reads_ranges(node) else w.rank - 1, levels.get(node.result.name)
    scales = b.store.derive(partial(_scales, axis=axis), f"scales by {axis}", [handle])
    bytes_ = b.store.derive(partial(_bytes, axis=axis), f"bytes by {axis}", [handle, scales])
    v = b.constant_handle(bytes_, TensorType(I8, w.shape), f"{w.name}.bytes")
    s = b.constant_handle(scales, TensorType(F32, (w.shape[axis],)), f"{w.name}.scales")
    if not reads_ranges(node):
        result = _matmul(b, x, v, s)
        return None if result is None else [with_bias(b, result, biases)]
    if input_levels is None:
        return None
    point = [b.constant(np.asarray(level)) for level in input_levels]
    q = emit(b, "quantize_linear", x, *point, to=U8)
    factors = emit(b, "dequantize_linear", q, *point), emit(b, "dequantize_linear", v, s, axis=0)
    return byte_conv(b, node, (*factors, *biases))


def _matmul(b: GraphBuilder, x: Value, v: Value, s: Value) -> Value | None:
    """Returns the matmul of `x` and the levels `v` with scales `s`; None for other shapes."""
    depth, count = as_int(v.shape[0]) or 0, v.type.count or 0
    if v.rank != 2 or x.rank < 2 or depth > LONGEST or count < _LARGE:
        return None
    node = partial(emit, b)
    low, high = (
        node(m, node(f"reduce_{m}", x, axes=(x.rank - 1,), keepdims=True), _number(b, 0))
        for m in ("min", "max")
    )
    # A NaN in a row stays in its width, so all products with the row are NaN.
    width = node("max", node("sub", high, low), _number(b, LEAST))
    scale = node("div", width, _number(b, 255))
    factor = node("reciprocal", scale)
    # The products read the zero points as integers, so only these are stored.
    zero = node("cast", node("round", node("mul", node("neg", low), factor)), to=I32)
    levels = node("add", node("round", node("mul", x, factor)), node("cast", zero, to=F32))
    q = node("cast", levels, to=U8)
    columns = b.constant_handle(
        b.store.derive(_totals, "sums of columns", [*filter(None, [b.handle(v)])]),
        TensorType(I32, s.shape),
        f"{v.name}.sums",
    )
    sums = node("sub", node("matmul_integer", q, v), node("mul", zero, columns))
    return node("mul", node("cast", sums, to=F32), node("mul", scale, s))


def _number(b: GraphBuilder, number: float) -> Value:
    return b.constant(np.asarray(number, np.float32))


def _scales(w: Array, axis: int) -> Array:
    """Returns a scale (f32) for each position along `axis`; the largest weight becomes 127."""
    other_axes = tuple(n for n in range(w.ndim) if n != axis)
    scales: Array = np.maximum(np.abs(w).max(other_axes), np.float32(LEAST)) / np.float32(127)
    return scales


def _bytes(w: Array, scales: Array, axis: int) -> Array:
    shape = [-1 if n == axis else 1 for n in range(w.ndim)]
    levels: Array = np.rint(w / scales.reshape(shape)).astype(np.int8)
    return levels


def _totals(levels: Array) -> Array:
    totals: Array = levels.sum(0, dtype=np.int32)
    return totals
