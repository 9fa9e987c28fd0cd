"""Replaces the division by a scale, after a contraction, by a multiplication by its inverse.

    quantize_linear(relu(add(mul(cast(%sums), %s), %bias)), %y, %z)
      ->  cast(add(round(relu(add(mul(cast(%sums), %s * (1 / %y)), %bias * (1 / %y)))), %z))

A division takes as long as all other operations together.  The quotient and the product differ by
at most one rounding of a float, which is a hundred thousandth of a quantisation level.  ONNX does
not specify how sums are rounded.  A value that is not the result of a contraction is still divided.
Constants must not be folded yet.
"""

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.op import Trait
from tcc.ir.types import F32, I8, U8
from tcc.ops.algebra.quantize import QuantizeAttrs
from tcc.passes.graph.emit import emit
from tcc.passes.quantize.zero_points import levels

# The ops that may stand between a contraction and its quantisation, and the largest number of them.
# No longer chain of nodes computes a constant either.
_POINTWISE = frozenset("add sub mul cast relu clip min max leaky_relu reshape".split())
_FAR = 8


def requantize(graph: Graph) -> Graph:
    """Returns `graph` with products in place of quotients after contractions.

    Returns `graph` itself if nothing is replaced.
    """
    return rewritten(graph, _visit)


def _visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    attrs = node.attrs
    if not isinstance(attrs, QuantizeAttrs) or attrs.to not in (I8, U8):
        return None
    if attrs.precision is not F32:
        return None
    x, y_scale, *zeros = inputs
    if x is None or y_scale is None or x.dtype is not F32 or not _of_sums(b, x, _FAR):
        return None
    scale = b.array(y_scale)
    if scale is None or scale.size != 1:
        return None
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale.astype(np.float32).reshape(())
    if not np.isfinite(inverse) or inverse <= 0:
        return None
    factor = b.constant(np.asarray(inverse), "inverse")
    zero = zeros[0] if zeros else None
    point = b.constant(np.zeros((), attrs.to.carrier), "zero") if zero is None else zero
    return [levels(b, _scaled(b, x, factor), point)]


def _scaled(b: GraphBuilder, x: Value, factor: Value) -> Value:
    """Returns `x` times `factor`, a positive number.

    The factor is multiplied into constants that scale `x`, if there are any.
    """
    producer = b.producer(x)
    if producer is not None and producer.op.name == "relu" and producer.inputs[0] is not None:
        return emit(b, "relu", _scaled(b, producer.inputs[0], factor))
    if producer is not None and producer.op.name in ("add", "mul"):
        lhs, rhs = producer.inputs
        assert lhs is not None
        assert rhs is not None
        if _is_constant(b, rhs) and producer.op.name == "mul":
            return emit(b, "mul", lhs, emit(b, "mul", rhs, factor))
        if _is_constant(b, rhs):
            return emit(b, "add", _scaled(b, lhs, factor), emit(b, "mul", rhs, factor))
    return emit(b, "mul", x, factor)


def _is_constant(b: GraphBuilder, value: Value, limit: int = _FAR) -> bool:
    """Returns True if `value` is computed from constants alone, by chains of at most `limit`
    nodes."""
    if b.handle(value) is not None:
        return True
    producer = b.producer(value)
    return (
        limit > 0
        and producer is not None
        and all(v is not None and _is_constant(b, v, limit - 1) for v in producer.inputs)
    )


def _of_sums(b: GraphBuilder, value: Value, limit: int) -> bool:
    """Returns True if at most `limit` pointwise ops compute `value` from a contraction."""
    producer = b.producer(value)
    if producer is None or not limit:
        return False
    if Trait.CONTRACTION in producer.op.traits:
        return True
    if producer.op.name not in _POINTWISE:
        return False
    return any(v is not None and _of_sums(b, v, limit - 1) for v in producer.inputs)
