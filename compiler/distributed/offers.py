"""The strategies of all nodes of a graph.

A matmul may divide its columns in three groups, for queries, keys and values, but only what reads
them tells that there are three.  So nodes are visited from the last to the first, and pass on the
groups in which they need their operands.
"""

from tcc.distributed.sharding import Split
from tcc.distributed.strategies import Strategy, strategies, whole
from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, Node, Value, bodies
from tcc.ir.op import Trait


def expr_of(node: Node) -> Expr | None:
    """Returns the expression by which ranks share a node; None for a node that stays whole."""
    if node.op.expr is None or Trait.OPAQUE in node.op.traits or bodies(node):
        return None
    return node.op.expr([None if v is None else v.type for v in node.inputs], node.attrs)


def offers(graph: Graph, ranks: int) -> dict[Node, tuple[Strategy, ...]]:
    """Returns the strategies of each node of `graph` on `ranks` ranks, `whole` first."""
    wishes: dict[Value, dict[Split, None]] = {}
    offered: dict[Node, tuple[Strategy, ...]] = {}
    for node in reversed(graph.nodes):
        expr = expr_of(node)
        if expr is None:
            offered[node] = (whole(len(node.inputs), len(node.outputs)),)
            continue
        splits = [(n, split) for n, v in enumerate(node.outputs) for split in wishes.get(v, ())]
        offered[node] = strategies(expr, ranks, tuple(splits))
        for strategy in offered[node]:
            for value, sharding in zip(node.inputs, strategy.operands, strict=True):
                if value is not None and isinstance(sharding, Split) and sharding.groups > 1:
                    wishes.setdefault(value, {})[sharding] = None
    return {node: offered[node] for node in graph.nodes}
