"""Adds checks of data-dependent indices, before anything is read at these indices.

    %y = gather(%x : f32[9,4], %i)      ->      check_indices(%i) {size=9} ; %y = gather(%x, %i)

Kernels clamp data-dependent indices, so no read is outside of memory.  The check makes the run fail
for an index outside of its axis.  A constant index outside of its axis is an error of the compile.

Requires nothing.  Establishes a check before each gather and each rotation by a table of angles.
There is no check if an op like top_k computed the indices for the same axis, or if bounds prove
that all indices are inside of their axis.  For a constant index along an axis of symbolic size, the
size of the axis is checked instead.  Caches are checked to have room for their new rows.  The
checks of `tcc.passes.graph.check_sizes` are added too.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import Index, as_int, maximum
from tcc.ir.op import Array
from tcc.ops import OPS
from tcc.ops.shapes import present
from tcc.ops.sizes import CheckIndicesAttrs
from tcc.passes.graph.check_sizes import check_sizes, demand
from tcc.passes.graph.integer_bounds import Bounds, integer_bounds

# Ops whose last result holds indices along an axis of their first operand.
_PLACES = frozenset({"arg_max", "arg_min", "top_k"})


def check_indices(graph: Graph) -> Graph:
    """Returns `graph` with checks before its gathers; `graph` itself if it needs no check.

    Raises `UserError` for constant indices outside of their axis.
    """
    return rewritten(graph, partial(_visit, bounds={}))


def _visit(b: GraphBuilder, node: Node, inputs: Inputs, bounds: dict[Value, Bounds]) -> Replacement:
    is_checked = check_sizes(b, node, inputs) | _check_rows(b, node, inputs)
    source, indices = _indexed(node, inputs)
    if source is not None and indices is not None:
        for attrs in _axes(node, source, indices):
            is_checked |= add_check(b, indices, attrs, bounds)
    return b.add(node.op, inputs, node.attrs) if is_checked else None


def add_check(
    b: GraphBuilder,
    indices: Value,
    attrs: CheckIndicesAttrs,
    bounds: dict[Value, Bounds],
) -> bool:
    """Adds a check that indices lie inside of their axis, unless that is known already.

    Returns True if it added a check.  `bounds` caches bounds between calls.  Raises `UserError` for
    constant indices outside of their axis.
    """
    constant = b.array(indices)
    if constant is not None:
        return _check_constant(b, constant, attrs)
    if _is_place(b, indices, attrs.size) or _inside(b, indices, attrs, bounds):
        return False
    b.add(OPS["check_indices"], [indices], attrs)
    return True


def _check_rows(b: GraphBuilder, node: Node, inputs: Inputs) -> bool:
    """Adds a check that a cache has room for its new rows; returns True if it added one."""
    if node.op.name != "tensor_scatter":
        return False
    extent, rows = (x.shape[node.attrs.axis] for x in present(inputs, 2))
    places = inputs[2] if len(inputs) > 2 else None
    reason = "a cache has no room for the rows"
    if places is not None and node.attrs.mode == "linear":
        attrs = CheckIndicesAttrs(extent - rows + 1, reason=reason, signed=False)
        return add_check(b, places, attrs, {})
    return demand(b, maximum(extent, rows), extent, reason)


def _indexed(node: Node, inputs: Inputs) -> tuple[Value | None, Value | None]:
    """Returns the operand that a node reads at data-dependent indices, and the indices.

    Returns (None, None) if there is no such operand.
    """
    if node.op.name.startswith("gather"):
        return inputs[0], inputs[1]
    if node.op.name == "scatter_rows":
        return inputs[2], inputs[3]
    if node.op.name == "rotary_embedding" and len(inputs) > 3:
        return inputs[1], inputs[3]
    return None, None


def _axes(node: Node, x: Value, indices: Value) -> Iterator[CheckIndicesAttrs]:
    """Yields the checks that the indices of a node need.

    There is one check, except for gather_nd: each component of its tuples of indices has a check.
    """
    if node.op.name in ("rotary_embedding", "scatter_rows"):
        yield CheckIndicesAttrs(x.shape[0])
        return
    if node.op.name != "gather_nd":
        axis = 1 if node.op.name == "gather_levels" else node.attrs.axis
        yield CheckIndicesAttrs(x.shape[axis])
        return
    period, first = as_int(indices.shape[-1]) or 0, node.attrs.batch_dims
    for number in range(period):
        yield CheckIndicesAttrs(x.shape[first + number], period, number)


def _check_constant(b: GraphBuilder, indices: Array, attrs: CheckIndicesAttrs) -> bool:
    """Checks constant indices against the numeric size of their axis.

    If the size is symbolic, adds a check of the size and returns True; else returns False.  Raises
    `UserError` for an index outside of its axis.
    """
    low, size = as_int(attrs.least), as_int(attrs.size)
    values = indices.reshape(-1)[attrs.number :: attrs.period]
    if not values.size:
        return False
    if size is None and (low is None or values.min() >= low):
        needed = maximum(attrs.size, int(values.max()) + 1)
        if low is None:
            needed = maximum(needed, -int(values.min()))
        return demand(b, needed, attrs.size, attrs.reason)
    if size is None or low is None or not np.all((values >= low) & (values < size)):
        raise UserError(
            attrs.reason,
            where=b.loc,
            why=f"{values.min()} to {values.max()} where there are {attrs.size.key}",
        )
    return False


def _inside(
    b: GraphBuilder, indices: Value, attrs: CheckIndicesAttrs, bounds: dict[Value, Bounds]
) -> bool:
    """Returns True if the axis has a numeric size and bounds prove that all indices are inside."""
    first, size = as_int(attrs.least), as_int(attrs.size)
    if first is None or size is None:
        return False
    low, high = integer_bounds(b, indices, bounds)
    return first <= low and high < size


def _is_place(b: GraphBuilder, indices: Value, size: Index) -> bool:
    """Returns True if an op like `top_k` computed the indices, along an axis of the same size.

    Only the last result of the op counts: `top_k` returns elements first, then their indices.
    """
    producer = b.producer(indices)
    if producer is None or producer.op.name not in _PLACES or producer.inputs[0] is None:
        return False
    return indices is producer.outputs[-1] and producer.inputs[0].shape[producer.attrs.axis] is size
