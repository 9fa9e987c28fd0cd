"""The picture of a plan has the right rows."""

from __future__ import annotations

from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import RankRates, one_host
from tcc.distributed.exchanges import is_exchange
from tcc.distributed.facts import planned
from tcc.distributed.layers import Crossing, PlanLayer, Row, plan_rows
from tcc.ir.graph import Graph

from .networks import NETWORKS, mlp

RATES = RankRates(operations=1e9, memory_bytes=1e9, link_bytes=1e11, latency=1e-7)


def rows(graph: Graph, ranks: int = 2) -> list[Row]:
    return [*plan_rows(planned(graph, one_host(ranks, RATES), partition_solver(), {}).division)]


def test_nodes_between_exchanges_are_layers_by_how_ranks_hold_them() -> None:
    first, second, third = rows(mlp())
    assert isinstance(first, PlanLayer)
    assert (first.nodes, first.ops, first.kind) == (("h", "r"), ("matmul", "relu"), "split")
    assert (first.rank_bytes, first.bytes) == (256 * 512 * 4, 256 * 1024 * 4)
    assert isinstance(second, PlanLayer)
    assert (second.nodes, second.kind) == (("y",), "partial")
    assert third == Crossing("all_reduce", 16 * 256 * 4, ((0, 1),))


def test_every_exchange_has_a_row_and_every_node_with_results_is_in_a_layer() -> None:
    for network in NETWORKS.values():
        graph = network()
        division = planned(graph, one_host(4, RATES), partition_solver(), {}).division
        every_row = [*plan_rows(division)]
        exchanges = [row.kind for row in every_row if isinstance(row, Crossing)]
        assert exchanges == [node.op.name for node in division.local.nodes if is_exchange(node)]
        nodes = sum(len(row.nodes) for row in every_row if isinstance(row, PlanLayer))
        assert nodes == len(graph.nodes)
