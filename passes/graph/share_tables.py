"""Reads rows of a table from the transposed table where a matmul reads that one.

    gather(%w : f32[9,4], %i) ; matmul(%x, %wt : f32[4,9])      %wt holds the transpose of %w
      ->  transpose(gather(%wt, %i) {axis=1}) ; matmul(%x, %wt)

A language model may multiply with its table of tokens.  Requires folded constants.  Establishes
that both readers have one constant, so that their kernels may share its layout.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.op import Array
from tcc.ir.types import TensorType
from tcc.passes.graph.emit import emit

# Smaller tables are not worth a search.
_LARGE = 1 << 14


def share_tables(graph: Graph) -> Graph:
    """Returns `graph` with one constant for a table and its transpose."""
    return rewritten(graph, partial(_visit, graph))


def _visit(graph: Graph, b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    if node.op.name != "gather" or node.attrs.axis != 0 or inputs[1] is None:
        return None
    source = node.inputs[0]
    assert source is not None
    type, table = source.type, graph.constants.get(source)
    if table is None or type.rank != 2 or (type.count or 0) < _LARGE:
        return None
    transposed = TensorType(type.dtype, type.shape[::-1])
    for value, handle in graph.constants.items():
        if handle == table or value.type != transposed:
            continue
        if graph.store.fact(_are_transposed, (table, handle)):
            turned = b.constant_handle(handle, value.type, value.name)
            columns = emit(b, "gather", turned, inputs[1], axis=1)
            return [emit(b, "transpose", columns, perm=(*range(1, columns.rank), 0))]
    return None


def _are_transposed(tables: Sequence[Array], others: Sequence[Array]) -> bool:
    """Returns True if all ranks have one table, and another is its transpose.

    The first row rejects most tables.
    """
    is_common = len(tables) == len(others) == 1
    return is_common and all(map(np.array_equal, tables[0], others[0].T))
