"""Indices that data give are looked at before anything is read there.

    %y = gather(%x : f32[9,4], %i)      ->      check_indices(%i) {size=9} ; %y = gather(%x, %i)
    %y = pad(%x : f32[n], edge)         ->      require(max(n, 1), n) ; %y = pad(%x, edge)

Kernels clamp such indices, so no data ever lead outside of memory; this makes them an error, as it
is where the values are known.  Requires nothing.  Establishes that each gather, each turn by angles
of a table and each loss of labels whose indices are not places of another op's making has its
checks before it: of constant ones whether the axis is long enough, where its size is open.  The
same goes for ops that give results for an axis without elements by repeating those elements, and
for sizes that could be negative, as behind a window that is larger than its image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, bodies
from tcc.ir.index import Index, as_int, const, maximum, minimum, nonnegative
from tcc.ir.op import Array, NoAttrs
from tcc.ir.rewrite import Inputs, rewritten
from tcc.ir.types import integer_limits
from tcc.ops import OPS
from tcc.ops.sizes import CheckIndicesAttrs, RequireAttrs

# Rows that give places along an axis, and the operand whose axis it is.
_PLACES = frozenset({"arg_max", "arg_min", "top_k"})
_LOSSES = frozenset({"negative_log_likelihood_loss", "softmax_cross_entropy_loss"})


def check_indices(graph: Graph) -> Graph:
    """`graph` with checks before its gathers; itself if it needs none.

    Raises `UserError` for constant indices outside of their axis.
    """
    return rewritten(graph, _visit)


def _visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    added = _check_sizes(b, node, inputs) | _check_axes(b, node, inputs)
    added |= _check_reach(b, node, inputs)
    source, indices = _chosen(b, node, inputs)
    if source is not None and indices is not None:
        for attrs in _axes(node, source, indices):
            added |= add_check(b, indices, attrs, node.loc)
    return b.add(node.op, inputs, node.attrs, loc=node.loc) if added else None


def add_check(b: GraphBuilder, indices: Value, attrs: CheckIndicesAttrs, loc: str) -> bool:
    """Adds what says that indices lie inside of their axis, if that is not known; whether it did.

    Raises `UserError` for constant ones outside of their axis.
    """
    known = b.array(indices)
    if known is not None:
        return _check_known(b, known, attrs, loc)
    if _is_place(b, indices, attrs.size):
        return False
    b.add(OPS["check_indices"], [indices], attrs, loc=loc)
    return True


def _check_sizes(b: GraphBuilder, node: Node, inputs: Inputs) -> bool:
    """Demands sizes of results that no operand has yet to be none below zero, where that is not
    certain; whether it demanded any."""
    if bodies(node):  # these check their own
        return False
    had = {dim for v in inputs if v is not None for dim in v.type.shape}
    made = dict.fromkeys(dim for v in node.outputs for dim in v.type.shape if dim not in had)
    open_ = [dim for dim in made if not nonnegative(dim)]
    for dim in open_:
        demand = RequireAttrs(maximum(dim, 0), dim, "no size is negative")
        b.add(OPS["require"], [], demand, loc=node.loc)
    return bool(open_)


def _check_axes(b: GraphBuilder, node: Node, inputs: Inputs) -> bool:
    """Demands elements of the axes that `node` repeats elements of; whether it demanded any."""
    added = False
    for extent, results in _repeated(node, inputs):
        needed = maximum(extent, minimum(results, 1))
        if needed is extent:
            continue
        if as_int(needed - extent) is not None:
            raise UserError(
                "an axis has no elements to repeat",
                where=node.loc,
                why=f"{node.op.name} gives results for an axis of extent 0",
            )
        reason = "an axis without elements has none to repeat"
        b.add(OPS["require"], [], RequireAttrs(needed, extent, reason), loc=node.loc)
        added = True
    return added


def _check_reach(b: GraphBuilder, node: Node, inputs: Inputs) -> bool:
    """Demands an operand that is as long as its indices along the axes that they do not count
    along; whether it demanded any."""
    if node.op.name != "gather_elements" or inputs[0] is None or inputs[1] is None:
        return False
    pairs = enumerate(zip(inputs[0].type.shape, inputs[1].type.shape, strict=True))
    others = [(maximum(*pair), pair[0]) for axis, pair in pairs if axis != node.attrs.axis]
    open_ = [(needed, extent) for needed, extent in others if needed is not extent]
    for needed, extent in open_:
        demand = RequireAttrs(needed, extent, "there are more indices than elements")
        b.add(OPS["require"], [], demand, loc=node.loc)
    return bool(open_)


def _repeated(node: Node, inputs: Inputs) -> Iterator[tuple[Index, Index]]:
    """The extent of each axis whose elements are repeated, and how many results need them."""
    x = inputs[0] if inputs else None
    if x is None:
        return
    match node.op.name:
        case "pad" if node.attrs.mode != "constant":
            ends = zip(x.type.shape, node.attrs.before, node.attrs.after, strict=True)
            for dim, before, after in ends:
                kept = dim + minimum(before, 0) + minimum(after, 0)
                yield kept, maximum(before, 0) + maximum(after, 0)
        case "resize":
            for dim, size in zip(x.type.shape, node.attrs.sizes, strict=True):
                if dim is not size:
                    yield dim, size
        case "grid_sample" if node.attrs.padding_mode != "zeros":
            yield from ((dim, const(1)) for dim in x.type.shape[2:])


def _chosen(b: GraphBuilder, node: Node, inputs: Inputs) -> tuple[Value | None, Value | None]:
    """What a node reads at places that data give, and these."""
    if node.op.name.startswith("gather"):
        return inputs[0], inputs[1]
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
    (same,) = b.add(OPS["equal"], [labels, marked], NoAttrs(), loc=node.loc)
    return b.add(OPS["where"], [same, zero, labels], NoAttrs(), loc=node.loc)[0]


def _axes(node: Node, x: Value, indices: Value) -> Iterator[CheckIndicesAttrs]:
    """What each index counts along."""
    if node.op.name == "rotary_embedding":
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


def _check_known(b: GraphBuilder, indices: Array, attrs: CheckIndicesAttrs, loc: str) -> bool:
    """Whether only the run knows that constant indices are inside of their axis."""
    size = as_int(attrs.size)
    given = indices.reshape(-1)[attrs.number :: attrs.period]
    if not given.size:
        return False
    if size is None:
        needed = maximum(attrs.size, max(int(given.max()) + 1, -int(given.min())))
        if needed is not attrs.size:
            demand = RequireAttrs(needed, attrs.size, attrs.reason)
            b.add(OPS["require"], [], demand, loc=loc)
        return needed is not attrs.size
    if not np.all((given >= -size) & (given < size)):
        raise UserError(
            "an index is outside of its axis",
            where=loc,
            why=f"{given.min()} to {given.max()} where the axis has {size}",
        )
    return False


def _is_place(b: GraphBuilder, indices: Value, size: Index) -> bool:
    """Whether the indices are places in an axis of the same size: the last result of what finds
    them, for `top_k` gives the elements themselves before."""
    made = b.producer(indices)
    if made is None or made.op.name not in _PLACES or made.inputs[0] is None:
        return False
    if indices is not made.outputs[-1]:
        return False
    return made.inputs[0].type.shape[made.attrs.axis] is size
