"""The strategies of nodes on a mesh: a strategy for each axis.

The strategy of an axis divides the node that the strategies of earlier axes leave to a rank.  On
2x2 ranks a matmul of 64 rows, 64 columns and 64 terms of each sum has, among others,

    split(0), whole -> split(0)  whole, split(1) -> split(1)        32 rows, 32 columns
    whole, split(1) -> split(1)  whole, split(1) -> split(1)        16 columns
    whole, split(1) -> split(1)  split(1), split(0) -> partial(sum) 32 columns, sums of 32 terms

With several axes, strategies whose blocks are padded or have copies are left out.
"""

from collections.abc import Sequence
from typing import TypeAlias

from tcc.distributed.changes import rank_number
from tcc.distributed.local_nodes import local_expr
from tcc.distributed.mesh import MeshAxis
from tcc.distributed.offers import expr_of, offers
from tcc.distributed.sharding import Shardings, Split
from tcc.distributed.strategies import Strategy, strategies, whole
from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, Node, Value
from tcc.ir.index import Index

# A strategy for each axis of a mesh.
NodeStrategies: TypeAlias = tuple[Strategy, ...]


def mesh_offers(graph: Graph, axes: Sequence[MeshAxis]) -> dict[Node, tuple[NodeStrategies, ...]]:
    """Returns the strategies of each node along the `axes` of a mesh, the whole ones first."""
    first, *later = axes
    offered: dict[Node, tuple[NodeStrategies, ...]] = {
        node: tuple((strategy,) for strategy in items if not later or _is_exact(strategy))
        for node, items in offers(graph, first.ranks).items()
    }
    for number, axis in enumerate(later, 1):
        offered = _extended(graph, axes[:number], axis, offered)
    return offered


def _extended(
    graph: Graph,
    axes: Sequence[MeshAxis],
    axis: MeshAxis,
    offered: dict[Node, tuple[NodeStrategies, ...]],
) -> dict[Node, tuple[NodeStrategies, ...]]:
    """Returns the strategies `offered` along `axes`, each with all strategies along one more
    axis."""
    wishes: dict[Value, dict[Split, None]] = {}
    extended: dict[Node, tuple[NodeStrategies, ...]] = {}
    for node in reversed(graph.nodes):
        expr = expr_of(node)
        if expr is None:
            undivided = whole(len(node.inputs), len(node.outputs))
            extended[node] = tuple((*items, undivided) for items in offered[node])
            continue
        splits = tuple((n, s) for n, v in enumerate(node.outputs) for s in wishes.get(v, ()))
        extended[node] = tuple(
            (*items, strategy)
            for items in offered[node]
            for strategy in strategies(mesh_expr(expr, items, axes), axis.ranks, splits)
            if _is_exact(strategy)
        )
        for *_, strategy in extended[node]:
            for value, sharding in zip(node.inputs, strategy.operands, strict=True):
                if value is not None and isinstance(sharding, Split) and sharding.groups > 1:
                    wishes.setdefault(value, {})[sharding] = None
    return {node: extended[node] for node in graph.nodes}


def _is_exact(strategy: Strategy) -> bool:
    """True where every rank has its own block, without padding."""
    splits = (s for s in (*strategy.operands, *strategy.results) if isinstance(s, Split))
    blocks = (block for _, block in strategy.blocks)
    return not any(s.block or s.copies > 1 for s in splits) and not any(
        block.is_padded or block.copies > 1 for block in blocks
    )


def mesh_expr(expr: Expr, items: NodeStrategies, axes: Sequence[MeshAxis]) -> Expr:
    """Returns the expression that a rank computes with a strategy for each of `axes`.

    Its size symbol is the number of the rank.
    """
    for strategy, axis in zip(items, axes, strict=True):

        def place(axis: MeshAxis = axis) -> Index:
            return axis.place(rank_number(axis.all_ranks))

        expr = local_expr(expr, strategy, axis.ranks, place)
    return expr


def operand_shardings(items: NodeStrategies) -> tuple[Shardings, ...]:
    """Returns the shardings of each operand along all axes."""
    return tuple(zip(*(strategy.operands for strategy in items), strict=True))


def result_shardings(items: NodeStrategies) -> tuple[Shardings, ...]:
    """Returns the shardings of each result along all axes."""
    return tuple(zip(*(strategy.results for strategy in items), strict=True))
