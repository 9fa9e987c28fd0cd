"""Adds checks of sizes that are known only at run time, before anything relies on them.

    %y = pad(%x : f32[n], edge)    ->    require(max(n, 1), n) ; %y = pad(%x, edge)

Establishes three conditions.  No size of a result is negative, as it would be for a window larger
than its image.  An axis is not empty if a node repeats some of its elements or selects among them.
The operand of gather_elements is at least as long as the indices, along all axes except the
gathered axis.
"""

from collections.abc import Iterator
from typing import TypeAlias

from tcc.errors import UserError
from tcc.ir.graph import GraphBuilder, Node, bodies
from tcc.ir.graph.rewrite import Inputs
from tcc.ir.index import Index, as_int, const, maximum, minimum, nonnegative
from tcc.ir.types import element_count
from tcc.ops import OPS
from tcc.ops.shapes import present
from tcc.ops.sizes import RequireAttrs
from tcc.zipped import zip_equal

# A demand: the size that an axis must have, the size that it has, and the reason in the message.
_Demand: TypeAlias = tuple[Index, Index, str]
_CHOOSING = frozenset({"arg_max", "arg_min"})


def check_sizes(b: GraphBuilder, node: Node, inputs: Inputs) -> bool:
    """Adds the checks of sizes that `node` needs; returns True if it added any.

    Raises `UserError` for a check that fails in every run.
    """
    demands = (*_of_results(node, inputs), *_of_axes(node, inputs), *_of_reach(node, inputs))
    return any([demand(b, *args) for args in demands])


def demand(b: GraphBuilder, needed: Index, extent: Index, reason: str) -> bool:
    """Adds a check that the size `extent` of an axis equals `needed`.

    Returns True if it added one, and False if the two are known to be equal.  `needed` may depend
    on `extent`: max(extent, 1) checks that the axis is not empty.
    """
    if needed is extent:
        return False
    b.add(OPS["require"], [], RequireAttrs(needed, extent, reason))
    return True


def _of_results(node: Node, inputs: Inputs) -> Iterator[_Demand]:
    """Yields the demands that sizes of results are not negative.

    There is no demand for a size that an operand has too, because it cannot be negative.
    """
    if bodies(node):  # the sizes of loops and branches are checked in their bodies
        return
    had = {dim for v in inputs if v for dim in v.shape}
    for dim in dict.fromkeys(dim for v in node.outputs for dim in v.shape if dim not in had):
        if not nonnegative(dim):
            yield maximum(dim, 0), dim, "no size is negative"


def _of_axes(node: Node, inputs: Inputs) -> Iterator[_Demand]:
    """Yields the demands that axes are not empty if `node` repeats or selects their elements."""
    taking = "choose" if node.op.name in _CHOOSING else "repeat"
    for extent, results in _axes_read(node, inputs):
        needed = maximum(extent, minimum(results, 1))
        if needed is not extent and as_int(needed - extent) is not None:
            raise UserError(
                f"an axis has no elements to {taking}",
                where=node.loc,
                why=f"{node.op.name} gives results for an axis of extent 0",
            )
        yield needed, extent, f"an axis without elements has none to {taking}"


def _axes_read(node: Node, inputs: Inputs) -> Iterator[tuple[Index, Index]]:
    """Yields pairs for axes whose elements are repeated or selected.

    A pair has the extent of the axis, and the number of results that need one of its elements.
    """
    x = inputs[0] if inputs else None
    if x is None:
        return
    match node.op.name:
        case "arg_max" | "arg_min":
            axis = node.attrs.axis
            yield x.shape[axis], element_count(x.shape[:axis] + x.shape[axis + 1 :])
        case "pad" if node.attrs.mode != "constant":
            ends = zip_equal(x.shape, node.attrs.before, node.attrs.after)
            for dim, before, after in ends:
                inner = dim + minimum(before, 0) + minimum(after, 0)
                yield inner, maximum(before, 0) + maximum(after, 0)
        case "resize":
            for dim, size in zip_equal(x.shape, node.attrs.sizes):
                if dim is not size:
                    yield dim, size
        case "grid_sample" if node.attrs.padding_mode != "zeros":
            yield from ((dim, const(1)) for dim in x.shape[2:])


def _of_reach(node: Node, inputs: Inputs) -> Iterator[_Demand]:
    """Yields the demands of gather_elements.

    The operand must be at least as long as the indices, along all axes except the gathered axis.
    """
    if node.op.name != "gather_elements":
        return
    x, indices = present(inputs)
    for axis, (extent, count) in enumerate(zip_equal(x.shape, indices.shape)):
        if axis != node.attrs.axis:
            yield maximum(extent, count), extent, "there are more indices than elements"
