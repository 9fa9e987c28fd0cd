"""Reads rows of a table from the transposed table where a matmul reads that one.

    gather(%w : f32[9,4], %i) ; matmul(%x, %wt : f32[4,9])      %wt holds the transpose of %w
      ->  transpose(gather(%wt, %i) {axis=1}) ; matmul(%x, %wt)

A language model may multiply with its table of tokens.  Requires folded constants.  Establishes
that both readers have one constant, so that their kernels may share its layout.
"""

from functools import partial

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.passes.graph.emit import emit

# Smaller tables are not worth a search.
_LARGE = 1 << 14


def share_tables(graph: Graph) -> Graph:
    """Returns `graph` with one constant for a table and its transpose."""
    return rewritten(graph, partial(_visit, graph))


def _visit(graph: Graph, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    if node.op.name != "gather" or node.attrs.axis != 0 or inputs[1] is None:
        return None
    table = graph.constant(node.inputs[0])
    if table is None or table.ndim != 2 or table.size < _LARGE:
        return None
    for value, handle in graph.constants.items():
        other = graph.constant(value)
        if other is None or other is table or other.dtype != table.dtype:
            continue
        if np.array_equal(other, table.T):
            turned = b.constant_handle(handle, value.type, value.name)
            columns = emit(b, "gather", turned, inputs[1], axis=1)
            return [emit(b, "transpose", columns, perm=(*range(1, columns.type.rank), 0))]
    return None
