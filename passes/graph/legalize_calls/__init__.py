"""Functions of the host as expressions: `legalize_calls`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.passes.graph.legalize_calls.cumulative import express_running
from tcc.passes.graph.legalize_calls.scatter import express_scatter_elements, express_scatter_nd
from tcc.passes.graph.legalize_calls.selection import express_compress, express_non_zero
from tcc.passes.graph.legalize_calls.top_k import express_top_k

Express: TypeAlias = Callable[[GraphBuilder, Node, Inputs], Replacement]

EXPRESSED: Mapping[str, Express] = MappingProxyType(
    {
        "cum_sum": express_running,
        "cum_prod": express_running,
        "scatter_elements": express_scatter_elements,
        "scatter_nd": express_scatter_nd,
        "top_k": express_top_k,
        "non_zero": express_non_zero,
        "compress": express_compress,
    }
)


def legalize_calls(graph: Graph) -> Graph:
    """`graph` with expressions for what else functions of the host would compute; itself where
    there is nothing of that."""
    return rewritten(graph, _visit)


def _visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
    express = EXPRESSED.get(node.op.name)
    return None if express is None else express(b, node, inputs)
