"""Products lose the rows or columns that the gather which reads them never chooses.

    %y = matmul(%q, %k) : f32[12,249,512]               %p = slice(%k) ; %y = matmul(%q, %p)
    %z = gather_elements(%y, %i), 67 <= %i < 440  ->    %z = gather_elements(%y, sub(%i, 67))

Bounds of indices are those of `integer_bounds`.  Rows of what is left take whole lines of memory:
a vector stored across two lines takes twice as long.  A product that others read too stays whole.
Requires nothing.
"""

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int, const
from tcc.ops.shapes import replaced
from tcc.passes.graph.emit import emit
from tcc.passes.graph.integer_bounds import integer_bounds

_LINE = 64  # bytes


def drop_unread_columns(graph: Graph) -> Graph:
    """`graph` with products of the rows and columns that their gathers may read; itself where
    they may read all."""
    users, kept = graph.users(), graph.kept()

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        source = node.inputs[0] if node.op.name in ("gather", "gather_elements") else None
        if source is None or source in kept or len(users.get(source, ())) != 1:
            return None
        return _of_part(b, node, *(v for v in inputs if v))

    return rewritten(graph, visit)


def _of_part(b: GraphBuilder, node: Node, product: Value, indices: Value) -> Replacement:
    """The gather from a product of what it may read; None where that is all, or unknown."""
    made, axis = b.producer(product), node.attrs.axis
    number, size = axis - product.type.rank + 2, as_int(product.type.shape[axis])
    if made is None or made.op.name != "matmul" or number < 0 or size is None:
        return None
    factors = [v for v in made.inputs if v and v.type.rank > 1]
    low, high = integer_bounds(b, indices, {})
    unit = _LINE // product.type.dtype.bytes if number else 1
    count = -(-(high + 1 - low) // unit) * unit
    if len(factors) < 2 or not 0 <= low <= high < size or count >= size:
        return None
    low, shape = min(low, size - count), factors[number].type.shape
    at, zeros, ones = len(shape) + number - 2, (const(0),) * len(shape), (1,) * len(shape)
    starts, sizes = replaced(zeros, at, const(low)), replaced(shape, at, const(count))
    factors[number] = emit(b, "slice", factors[number], starts=starts, steps=ones, sizes=sizes)
    part = b.add(made.op, factors, made.attrs)
    return b.add(node.op, [*part, _less(b, indices, low)], node.attrs)


def _less(b: GraphBuilder, indices: Value, low: int) -> Value:
    """`indices` less `low`, subtracted before they are repeated along axes."""
    made = b.producer(indices)
    if made and made.op.name == "expand" and made.inputs[0]:
        return b.add(made.op, [_less(b, made.inputs[0], low)], made.attrs)[0]
    return emit(b, "sub", indices, b.constant(np.array(low, indices.type.dtype.carrier), "low"))
