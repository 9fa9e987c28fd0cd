"""Fuses gathers of rows into scatters, which then read the rows of a table directly.

    %r = gather(%table, %ids) {axis=0} ; %y = scatter_nd(%x, %i, %r)
      ->   %y = scatter_rows(%x, %i, %table, %ids)

An embedding bag that a model computes by Gather and ScatterND then needs no memory for its rows.
Requires nothing.  Establishes that no `scatter_nd` outside of bodies has updates from a gather
along the first axis, directly or through reshapes, unless other nodes read the gathered rows too.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from tcc.ir.graph import Graph, GraphBuilder, Node, Value, uses
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int
from tcc.passes.graph.emit import emit


def scatter_rows(graph: Graph) -> Graph:
    """Returns `graph` with gathers fused into its scatters; `graph` itself if nothing is fused."""
    readers = Counter(value for node in graph.nodes for value in uses(node))
    readers.update(graph.outputs)
    producers = graph.producers()

    def read_once(value: Value | None) -> bool:
        """Returns True if `value` has a single reader.

        If `value` is a reshape of a value, that value must have a single reader too.
        """
        if value is None or readers[value] != 1:
            return False
        node = producers.get(value)
        return node is None or node.op.name != "reshape" or read_once(node.inputs[0])

    return rewritten(graph, partial(_visit, read_once=read_once))


def _visit(
    b: GraphBuilder, node: Node, inputs: Inputs, read_once: Callable[[Value | None], bool]
) -> Replacement:
    if node.op.name != "scatter_nd":
        return None
    x, indices, updates = inputs
    gather = _gather(b, updates)
    if x is None or indices is None or gather is None or not read_once(node.inputs[2]):
        return None
    table, ids = gather.inputs
    tuples, depth = indices.shape[:-1], as_int(indices.shape[-1])
    if table is None or ids is None or table.shape[1:] != x.shape[depth:]:
        return None
    rows = ids if ids.shape == tuples else emit(b, "reshape", ids, shape=tuples)
    return [emit(b, "scatter_rows", x, indices, table, rows, reduction=node.attrs.reduction)]


def _gather(b: GraphBuilder, value: Value | None) -> Node | None:
    """Returns the gather along the first axis that computes `value`, directly or through
    reshapes."""
    node = b.producer(value)
    if node is not None and node.op.name == "reshape":
        return _gather(b, node.inputs[0])
    return node if node is not None and node.op.name == "gather" and not node.attrs.axis else None
