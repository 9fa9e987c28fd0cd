"""Indices that data give are looked at before anything is read there.

    %y = gather(%x : f32[9,4], %i)      ->      check_indices(%i) {size=9} ; %y = gather(%x, %i)

Kernels clamp such indices, so no data ever lead outside of memory; this makes them an error, as it
is where the values are known.  Requires nothing.  Establishes that each gather, and each turn by
angles of a table, whose indices are neither constant nor places of another op's making has its
checks before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.index import Index, as_int
from tcc.ir.op import Array
from tcc.ir.rewrite import Inputs, rewritten
from tcc.ops import OPS
from tcc.ops.sizes import CheckIndicesAttrs

# Rows that give places along an axis, and the operand whose axis it is.
_PLACES = frozenset({"arg_max", "arg_min", "top_k"})


def check_indices(graph: Graph) -> Graph:
    """`graph` with checks before its gathers; itself if it needs none.

    Raises `UserError` for constant indices outside of their axis.
    """
    return rewritten(graph, _visit)


def _visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    source, indices = _chosen(node, inputs)
    if source is None or indices is None:
        return None
    axes = _axes(node, source, indices)
    added = [add_check(b, indices, attrs, node.loc) for attrs in axes]
    return b.add(node.op, inputs, node.attrs, loc=node.loc) if any(added) else None


def add_check(b: GraphBuilder, indices: Value, attrs: CheckIndicesAttrs, loc: str) -> bool:
    """Adds a check of indices if they need one; whether they did.

    Raises `UserError` for constant ones outside of their axis.
    """
    known = b.array(indices)
    if known is not None:
        _check_known(known, attrs, loc)
        return False
    if _is_place(b, indices, attrs.size):
        return False
    b.add(OPS["check_indices"], [indices], attrs, loc=loc)
    return True


def _chosen(node: Node, inputs: Inputs) -> tuple[Value | None, Value | None]:
    """What a node reads at places that data give, and these."""
    if node.op.name.startswith("gather"):
        return inputs[0], inputs[1]
    if node.op.name == "rotary_embedding" and len(inputs) > 3:
        return inputs[1], inputs[3]
    return None, None


def _axes(node: Node, x: Value, indices: Value) -> Iterator[CheckIndicesAttrs]:
    """What each index counts along."""
    if node.op.name == "rotary_embedding":
        yield CheckIndicesAttrs(x.type.shape[0])
        return
    if node.op.name != "gather_nd":
        yield CheckIndicesAttrs(x.type.shape[node.attrs.axis])
        return
    period, first = as_int(indices.type.shape[-1]) or 0, node.attrs.batch_dims
    for number in range(period):
        yield CheckIndicesAttrs(x.type.shape[first + number], period, number)


def _check_known(indices: Array, attrs: CheckIndicesAttrs, loc: str) -> None:
    size = as_int(attrs.size)
    given = indices.reshape(-1)[attrs.number :: attrs.period]
    if size is not None and given.size and not np.all((given >= -size) & (given < size)):
        raise UserError(
            "an index is outside of its axis",
            where=loc,
            why=f"{given.min()} to {given.max()} where the axis has {size}",
        )


def _is_place(b: GraphBuilder, indices: Value, size: Index) -> bool:
    """Whether the indices are places in an axis of the same size: the last result of what finds
    them, for `top_k` gives the elements themselves before."""
    made = b.producer(indices)
    if made is None or made.op.name not in _PLACES or made.inputs[0] is None:
        return False
    if indices is not made.outputs[-1]:
        return False
    return made.inputs[0].type.shape[made.attrs.axis] is size
