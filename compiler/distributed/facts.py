"""Facts of a plan: the strategy of each node, the collectives, the weights, predicted times."""

from collections.abc import Mapping
from typing import Any

from tcc.distributed.costs import HOST, RankRates, rank_bytes, work_seconds
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import expr_of, offers
from tcc.distributed.plan import Plan, plan_of
from tcc.distributed.shard import sharded
from tcc.distributed.sharding import WHOLE
from tcc.distributed.solve import Solver, predicted_seconds, solve_strategies
from tcc.distributed.states import StateNames
from tcc.distributed.strategies import Strategy, whole
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, constant_bytes
from tcc.ir.op import Trait
from tcc.ops import OPS


@frozen
class PlanFacts:
    """A plan and what it does.

    `rows` has a record for each node, `collectives` one for each collective of a run, in order.
    `facts` has `ranks`, bytes of weights, and the predicted seconds of a run.
    """

    plan: Plan
    rows: tuple[Mapping[str, Any], ...]
    collectives: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]


def planned(
    graph: Graph,
    ranks: int,
    solver: Solver,
    fixed: Mapping[Node, Strategy],
    rates: RankRates = HOST,
    states: StateNames = (),
) -> PlanFacts:
    """Returns the best plan for `graph` on `ranks` ranks in which nodes have the strategies
    `fixed`."""
    choice = solve_strategies(graph, ranks, rates, solver, fixed, states)
    local = sharded(graph, choice, Mesh((ranks,)).axis(0), states)
    alone = {node: whole(len(node.inputs), len(node.outputs)) for node in graph.nodes}
    return PlanFacts(
        plan_of(graph, choice, ranks),
        tuple(_row(node, choice[node], ranks, rates) for node in graph.nodes if node.outputs),
        tuple(_collectives(local)),
        {
            "ranks": ranks,
            "weight_bytes": constant_bytes(graph),
            "rank_weight_bytes": _constant_bytes_of_rank(local),
            "seconds": predicted_seconds(graph, choice, ranks, rates, states),
            "one_rank_seconds": predicted_seconds(graph, alone, ranks, rates, states),
        },
    )


def explained(
    graph: Graph,
    ranks: int,
    solver: Solver,
    fixed: Mapping[Node, Strategy],
    name: str,
    rates: RankRates = HOST,
    states: StateNames = (),
) -> list[dict[str, Any]]:
    """Returns a record for each strategy of the node called `name`: its text, the predicted seconds
    of a run in which the solver chooses all strategies that are not in `fixed`, and whether the
    solver chose it.

    Raises UserError if no node has this name.
    """
    node = next((n for n in graph.nodes if n.outputs and n.outputs[0].name == name), None)
    if node is None:
        raise UserError(
            "no node has this name",
            where=f"--explain {name}",
            hint="tcc plan without --explain lists the nodes",
        )
    chosen = solve_strategies(graph, ranks, rates, solver, fixed, states)[node]
    records = []
    for strategy in offers(graph, ranks)[node]:
        choice = solve_strategies(graph, ranks, rates, solver, {**fixed, node: strategy}, states)
        seconds = predicted_seconds(graph, choice, ranks, rates, states)
        records.append(
            {"strategy": repr(strategy), "seconds": seconds, "chosen": strategy == chosen}
        )
    return records


def _row(node: Node, strategy: Strategy, ranks: int, rates: RankRates) -> dict[str, Any]:
    expr = expr_of(node)
    return {
        "node": node.outputs[0].name,
        "op": node.op.name,
        "strategy": repr(strategy),
        "seconds": 0.0 if expr is None else work_seconds(expr, strategy, ranks, rates),
        "source": node.loc,
    }


def _collectives(graph: Graph) -> list[dict[str, Any]]:
    records = []
    for node in graph.nodes:
        if Trait.COLLECTIVE in node.op.traits and node.op is not OPS["rank"]:
            (operand,) = node.inputs
            assert operand is not None
            size = rank_bytes(operand.type, WHOLE, 1)
            records.append({"kind": node.op.name, "bytes": size, "source": node.loc})
    return records


def _constant_bytes_of_rank(graph: Graph) -> int:
    """Returns the bytes of the first rank's constants."""
    total = 0
    for value, handle in graph.constants.items():
        arrays = graph.store.per_rank(handle)
        array = graph.store.get(handle) if arrays is None else arrays[0]
        total += array.size * value.type.dtype.bits // 8
    return total
