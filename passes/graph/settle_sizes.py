"""Sizes to which symbolic sizes broadcast are those that the model demands them to be.

    r = broadcast_size(t, s) ; ... ; require(r, s)    ->    require(t, s or 1) ; ...   with r = s
    r = name_size(4) ; ...                            ->    ...                        with r = 4

Establishes that a symbol made by `broadcast_size` is left only where the model works for each of
the sizes that it may be, and one made by `name_size` where it stands for a formula.  What is
repeated to a size that it has is gone with the passes after.
"""

from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.graph.rewrite import Inputs, rebuild, with_sizes
from tcc.ir.index import Index, free_vars
from tcc.ir.index.names import weight
from tcc.ops import OPS
from tcc.ops.sizes import RequireAttrs


def settle_sizes(graph: Graph) -> Graph:
    """`graph` with the symbols of `broadcast_size` replaced that are one of its sizes for certain,
    or that every run demands to be a size known before, and those of `name_size` that need none."""
    while (found := _settled(graph)) is not None:
        graph = _replaced(graph, *found)
    return graph


def _replaced(graph: Graph, number: int, size: Index) -> Graph:
    """`graph` with `size` for the symbol that node `number` makes."""
    symbol = graph.nodes[number].attrs.symbol
    new = with_sizes(graph, {free_vars(symbol)[0]: size})
    made = new.nodes[number]

    def visit(b: GraphBuilder, node: Node, _: Inputs) -> tuple[()] | None:
        if node is not made:
            return None
        if node.op.name == "name_size":
            return ()
        left, value = node.attrs.left, node.attrs.value
        one_of_both = size in (left, node.attrs.right, value)
        for part, or_one in ((left, True),) if one_of_both else ((left, True), (value, False)):
            b.add(OPS["require"], (), RequireAttrs(part, size, "sizes do not broadcast", or_one))
        return ()

    return rebuild(new, visit)


def _settled(graph: Graph) -> tuple[int, Index] | None:
    """The number of a node whose symbol need not be one, and what that is."""
    known = {v for value in graph.inputs for dim in value.type.shape for v in free_vars(dim)}
    made: dict[Index, tuple[int, frozenset[object]]] = {}  # with what is known there
    for number, node in enumerate(graph.nodes):
        attrs = node.attrs
        if node.op.name == "broadcast_size":
            if not attrs.value.terms or attrs.value in (attrs.left, attrs.right):
                return number, attrs.value
            made[attrs.symbol] = number, frozenset(known)
            known.update(free_vars(attrs.symbol))
        elif node.op.name == "name_size":
            if weight(attrs.value) <= 1:
                return number, attrs.value
            known.update(free_vars(attrs.symbol))
        elif node.op.name == "require" and not attrs.or_one:
            for own, other in ((attrs.left, attrs.right), (attrs.right, attrs.left)):
                if own in made and made[own][1].issuperset(free_vars(other)):
                    return made[own][0], other
        known.update(v for out in node.outputs for dim in out.type.shape for v in free_vars(dim))
    return None
