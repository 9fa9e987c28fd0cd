"""Sizes to which open sizes broadcast are those that the model demands them to be.

    r = broadcast_size(t, s) ; ... ; require(r, s)    ->    require(t, s or 1) ; ...   with r = s

Establishes that a symbol made by `broadcast_size` is left only where the model works for each of
the sizes that it may be.  What is repeated to a size that it has is gone with the passes after.
"""

from __future__ import annotations

from collections.abc import Iterator

from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.index import Index, Var, free_vars, substitute, var_of
from tcc.ir.rewrite import Inputs, rebuild, with_sizes
from tcc.ops import OPS


def settle_sizes(graph: Graph) -> Graph:
    """`graph` with the symbols of `broadcast_size` replaced that are one of its sizes for certain,
    or that every run demands to be a size known before."""
    settled = _settled(graph)
    if not settled:
        return graph
    new = with_sizes(graph, settled)
    made = zip(graph.nodes, new.nodes, strict=True)
    demands = {b for a, b in made if _symbol(a) in settled}

    def visit(b: GraphBuilder, node: Node, _: Inputs) -> tuple[()] | None:
        if node not in demands:
            return None
        size, left, value = node.attrs.symbol, node.attrs.left, node.attrs.value
        what = "sizes do not broadcast"
        if left is not size:
            b.add(OPS["require"], (), OPS["require"].attrs(left, size, what, True), loc=node.loc)
        if size not in (left, node.attrs.right, value):
            b.add(OPS["require"], (), OPS["require"].attrs(value, size, what), loc=node.loc)
        return ()

    return settle_sizes(rebuild(new, visit))


def _symbol(node: Node) -> Var | None:
    return var_of(node.attrs.symbol) if node.op.name == "broadcast_size" else None


def _settled(graph: Graph) -> dict[Var, Index]:
    """What the symbols are that need not be symbols, without each other."""
    known = {v for value in graph.inputs for dim in value.type.shape for v in free_vars(dim)}
    before: dict[Var, frozenset[Var]] = {}  # what is known where each symbol is made
    found: dict[Var, Index] = {}
    for node in graph.nodes:
        symbol = _symbol(node)
        if symbol is not None:
            before[symbol] = frozenset(known)
            value = node.attrs.value
            if not value.terms or value in (node.attrs.left, node.attrs.right):
                found[symbol] = value
            known.add(symbol)
        for own, other in _demanded(node):
            var = var_of(own)
            if var in before and before[var].issuperset(free_vars(other)):
                found.setdefault(var, other)
        known.update(v for out in node.outputs for dim in out.type.shape for v in free_vars(dim))
    settled: dict[Var, Index] = {}
    for var in before:
        if var in found:
            settled[var] = substitute(found[var], settled)
    return settled


def _demanded(node: Node) -> Iterator[tuple[Index, Index]]:
    if node.op.name == "require" and not node.attrs.or_one:
        yield node.attrs.left, node.attrs.right
        yield node.attrs.right, node.attrs.left
