"""Replaces calls of host functions by expressions, for targets that have no host functions."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from tcc.ir.graph import Graph, GraphBuilder, Node
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.passes.graph.legalize_calls.cumulative import express_running
from tcc.passes.graph.legalize_calls.scatter import (
    Cheapest,
    express_scatter_elements,
    express_scatter_nd,
    first_form,
)
from tcc.passes.graph.legalize_calls.selection import express_compress, express_non_zero
from tcc.passes.graph.legalize_calls.top_k import express_top_k

Express: TypeAlias = Callable[[GraphBuilder, Node, Inputs], Replacement]

EXPRESSED: Mapping[str, Express] = MappingProxyType(
    {
        "cum_sum": express_running,
        "cum_prod": express_running,
        "top_k": express_top_k,
        "non_zero": express_non_zero,
        "compress": express_compress,
    }
)
# Ops with several forms of expressions, among which prices choose.
SCATTERS: Mapping[str, Callable[[GraphBuilder, Node, Inputs, Cheapest], Replacement]] = (
    MappingProxyType(
        {
            "scatter_elements": express_scatter_elements,
            **dict.fromkeys(("scatter_nd", "scatter_rows"), express_scatter_nd),
        }
    )
)


def legalize_calls(graph: Graph, cheapest: Cheapest = first_form) -> Graph:
    """Returns `graph` with expressions in place of nodes that other targets compute on the host.

    Returns `graph` itself if it has no node to replace.  If a node has several forms, `cheapest`
    returns the index of the form to take.
    """
    return rewritten(graph, partial(_visit, cheapest=cheapest))


def _visit(b: GraphBuilder, node: Node, inputs: Inputs, cheapest: Cheapest) -> Replacement:
    name = node.op.name
    if name in SCATTERS:
        return SCATTERS[name](b, node, inputs, cheapest)
    return EXPRESSED[name](b, node, inputs) if name in EXPRESSED else None
