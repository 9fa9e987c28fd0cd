"""Replaces symbolic sizes of broadcasts by the sizes that the model requires them to equal.

    r = broadcast_size(t, s) ; ... ; require(r, s)    ->    require(t, s or 1) ; ...   with r = s
    r = name_size(4) ; ...                            ->    ...                        with r = 4

`broadcast_size` defines a symbol for the size to which two sizes broadcast, and `name_size` a
symbol for a formula of sizes.  Establishes that a symbol of `broadcast_size` is
left only if the model works for each size that the symbol may have.  A symbol of `name_size` is
left only if it stands for a formula.  Later passes drop broadcasts to a size that a value already
has.
"""

from tcc.ir.graph import Graph, GraphBuilder, Node, symbols_in
from tcc.ir.graph.rewrite import Inputs, rebuild, with_sizes
from tcc.ir.index import Index, free_vars
from tcc.ir.index.names import weight
from tcc.ops import OPS
from tcc.ops.sizes import RequireAttrs


def settle_sizes(graph: Graph) -> Graph:
    """Returns `graph` without the size symbols that another size can replace.

    A symbol of `broadcast_size` is replaced if it certainly equals one of the node's two sizes, or
    if each run requires it to equal a size that is known before the node.  A symbol of `name_size`
    is replaced if its size is so simple that it needs no name, such as a number.
    """
    while replacement := _replaceable(graph):
        graph = _replaced(graph, *replacement)
    return graph


def _replaced(graph: Graph, number: int, size: Index) -> Graph:
    """Returns `graph` with `size` in place of the symbol that node `number` defines."""
    new = with_sizes(graph, {free_vars(graph.nodes[number].attrs.symbol)[0]: size})
    node_made = new.nodes[number]

    def visit(b: GraphBuilder, node: Node, _: Inputs) -> tuple[()] | None:
        if node is not node_made:
            return None
        if node.op.name == "name_size":
            return ()
        lhs, value = node.attrs.left, node.attrs.value
        one_of_both = size in (lhs, node.attrs.right, value)
        for part, or_one in ((lhs, True),) if one_of_both else ((lhs, True), (value, False)):
            b.add(OPS["require"], (), RequireAttrs(part, size, "sizes do not broadcast", or_one))
        return ()

    return rebuild(new, visit)


def _replaceable(graph: Graph) -> tuple[int, Index] | None:
    """Returns the position of a node whose symbol another size can replace, and that size."""
    known_symbols = symbols_in(graph.inputs)
    # Maps a symbol to the position of its node, and the symbols that are known at the node.
    broadcasts: dict[Index, tuple[int, frozenset[object]]] = {}
    for number, node in enumerate(graph.nodes):
        attrs = node.attrs
        if node.op.name == "broadcast_size":
            if not attrs.value.terms or attrs.value in (attrs.left, attrs.right):
                return number, attrs.value
            broadcasts[attrs.symbol] = number, frozenset(known_symbols)
            known_symbols.update(free_vars(attrs.symbol))
        elif node.op.name == "name_size":
            if weight(attrs.value) <= 1:
                return number, attrs.value
            known_symbols.update(free_vars(attrs.symbol))
        elif node.op.name == "require" and not attrs.or_one:
            for size, other in ((attrs.left, attrs.right), (attrs.right, attrs.left)):
                if size in broadcasts and broadcasts[size][1].issuperset(free_vars(other)):
                    return broadcasts[size][0], other
        known_symbols |= symbols_in(node.outputs)
    return None
