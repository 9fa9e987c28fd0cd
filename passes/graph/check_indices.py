"""Indices that data give are looked at before anything is read there.

    %y = gather(%x : f32[9,4], %i)      ->      check_indices(%i) {size=9} ; %y = gather(%x, %i)

Kernels clamp such indices, so no data ever lead outside of memory; this makes them an error, as it
is where the values are known.  Requires nothing.  Establishes that each gather, each turn by angles
of a table and each loss of labels whose indices are neither places of another op's making nor
within the axis by their bounds has its checks before it: of constant ones whether the axis is long
enough, where its size is open; that
caches have room for the rows they are given; and what `tcc.passes.graph.check_sizes` demands.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import Index, as_int, maximum
from tcc.ir.op import Array
from tcc.ir.types import integer_limits
from tcc.ops import OPS
from tcc.ops.sizes import CheckIndicesAttrs
from tcc.passes.graph.check_sizes import check_sizes, demand
from tcc.passes.graph.emit import emit
from tcc.passes.graph.integer_bounds import Bounds, integer_bounds

# Rows that give places along an axis, and the operand whose axis it is.
_PLACES = frozenset({"arg_max", "arg_min", "top_k"})
_LOSSES = frozenset({"negative_log_likelihood_loss", "softmax_cross_entropy_loss"})


def check_indices(graph: Graph) -> Graph:
    """`graph` with checks before its gathers; itself if it needs none.

    Raises `UserError` for constant indices outside of their axis.
    """
    return rewritten(graph, partial(_visit, found={}))


def _visit(b: GraphBuilder, node: Node, inputs: Inputs, found: dict[Value, Bounds]) -> Replacement:
    added = check_sizes(b, node, inputs) | _check_rows(b, node, inputs)
    source, indices = _chosen(b, node, inputs)
    if source is not None and indices is not None:
        for attrs in _axes(node, source, indices):
            added |= add_check(b, indices, attrs, found)
    return b.add(node.op, inputs, node.attrs) if added else None


def add_check(
    b: GraphBuilder,
    indices: Value,
    attrs: CheckIndicesAttrs,
    found: dict[Value, Bounds],
) -> bool:
    """Adds what says that indices lie inside of their axis, if that is not known; whether it did.

    `found` keeps bounds between calls.  Raises `UserError` for constant ones outside of their axis.
    """
    known = b.array(indices)
    if known is not None:
        return _check_known(b, known, attrs)
    if _is_place(b, indices, attrs.size) or _inside(b, indices, attrs, found):
        return False
    b.add(OPS["check_indices"], [indices], attrs)
    return True


def _check_rows(b: GraphBuilder, node: Node, inputs: Inputs) -> bool:
    """Demands that a cache has room for the rows it is given; whether it demanded anything."""
    if node.op.name != "tensor_scatter" or inputs[0] is None or inputs[1] is None:
        return False
    extent, rows = (x.type.shape[node.attrs.axis] for x in inputs[:2] if x is not None)
    places = inputs[2] if len(inputs) > 2 else None
    reason = "a cache has no room for the rows"
    if places is not None and node.attrs.mode == "linear":
        attrs = CheckIndicesAttrs(extent - rows + 1, reason=reason, signed=False)
        return add_check(b, places, attrs, {})
    return demand(b, maximum(extent, rows), extent, reason)


def _chosen(b: GraphBuilder, node: Node, inputs: Inputs) -> tuple[Value | None, Value | None]:
    """What a node reads at places that data give, and these."""
    if node.op.name.startswith("gather"):
        return inputs[0], inputs[1]
    if node.op.name == "scatter_rows":
        return inputs[2], inputs[3]
    if node.op.name == "rotary_embedding" and len(inputs) > 3:
        return inputs[1], inputs[3]
    if node.op.name in _LOSSES and inputs[1] is not None:
        return inputs[0], _labels(b, inputs[1], node)
    return None, None


def _labels(b: GraphBuilder, labels: Value, node: Node) -> Value:
    """The labels of a loss, with the first class in place of those that it ignores."""
    ignored, dtype = node.attrs.ignore_index, labels.type.dtype
    low, high = integer_limits(dtype)
    if ignored is None or not low <= ignored <= high:
        return labels
    known = b.array(labels)
    if known is not None:
        return b.constant(np.where(known == ignored, 0, known).astype(dtype.carrier), "labels")
    marked, zero = (b.constant(np.array(n, dtype.carrier), "label") for n in (ignored, 0))
    return emit(b, "where", emit(b, "equal", labels, marked), zero, labels)


def _axes(node: Node, x: Value, indices: Value) -> Iterator[CheckIndicesAttrs]:
    """What each index counts along."""
    if node.op.name in ("rotary_embedding", "scatter_rows"):
        yield CheckIndicesAttrs(x.type.shape[0])
        return
    if node.op.name in _LOSSES:
        yield CheckIndicesAttrs(x.type.shape[1], reason="a label is none of the classes")
        return
    if node.op.name != "gather_nd":
        yield CheckIndicesAttrs(x.type.shape[node.attrs.axis])
        return
    period, first = as_int(indices.type.shape[-1]) or 0, node.attrs.batch_dims
    for number in range(period):
        yield CheckIndicesAttrs(x.type.shape[first + number], period, number)


def _check_known(b: GraphBuilder, indices: Array, attrs: CheckIndicesAttrs) -> bool:
    """Whether only the run knows that constant indices are inside of their axis."""
    least, size = as_int(attrs.least), as_int(attrs.size)
    given = indices.reshape(-1)[attrs.number :: attrs.period]
    if not given.size:
        return False
    if size is None and (least is None or given.min() >= least):
        needed = maximum(attrs.size, int(given.max()) + 1)
        if least is None:
            needed = maximum(needed, -int(given.min()))
        return demand(b, needed, attrs.size, attrs.reason)
    if size is None or least is None or not np.all((given >= least) & (given < size)):
        raise UserError(
            attrs.reason,
            where=b.loc,
            why=f"{given.min()} to {given.max()} where there are {attrs.size.key}",
        )
    return False


def _inside(
    b: GraphBuilder, indices: Value, attrs: CheckIndicesAttrs, found: dict[Value, Bounds]
) -> bool:
    """Whether all indices lie inside of an axis of known size, by their bounds."""
    least, size = as_int(attrs.least), as_int(attrs.size)
    if least is None or size is None:
        return False
    low, high = integer_bounds(b, indices, found)
    return least <= low and high < size


def _is_place(b: GraphBuilder, indices: Value, size: Index) -> bool:
    """Whether the indices are places in an axis of the same size: the last result of what finds
    them, for `top_k` gives the elements themselves before."""
    made = b.producer(indices)
    if made is None or made.op.name not in _PLACES or made.inputs[0] is None:
        return False
    if indices is not made.outputs[-1]:
        return False
    return made.inputs[0].type.shape[made.attrs.axis] is size
