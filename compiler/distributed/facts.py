"""Facts of a plan: the strategy of each node, the collectives, the weights, predicted times."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tcc.distributed.cluster import Host
from tcc.distributed.costs import HOST, RankRates, rank_bytes, work_seconds
from tcc.distributed.divisions import check_divisions
from tcc.distributed.exchanges import Division
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import expr_of, offers
from tcc.distributed.plan import Plan, fixed_strategies, plan_of
from tcc.distributed.proof import Proof, prove
from tcc.distributed.shard import sharded_with_arrays
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
    `facts` has `ranks`, bytes of weights, and the predicted seconds of a run.  `division` is what
    the ranks run.
    """

    plan: Plan
    rows: tuple[Mapping[str, Any], ...]
    collectives: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    division: Division


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
    division = _division(graph, choice, ranks, states)
    local = division.local
    collectives = tuple(_collectives(local))
    weights = constant_bytes(local)
    alone = {node: whole(len(node.inputs), len(node.outputs)) for node in graph.nodes}
    return PlanFacts(
        replace(plan_of(graph, choice, ranks), exchanges=_sums(collectives), weight_bytes=weights),
        tuple(_row(node, choice[node], ranks, rates) for node in graph.nodes if node.outputs),
        collectives,
        {
            "ranks": ranks,
            "weight_bytes": constant_bytes(graph),
            "rank_weight_bytes": weights,
            "seconds": predicted_seconds(graph, choice, ranks, rates, states),
            "one_rank_seconds": predicted_seconds(graph, alone, ranks, rates, states),
        },
        division,
    )


def _division(
    graph: Graph, choice: Mapping[Node, Strategy], ranks: int, states: StateNames
) -> Division:
    local, arrays = sharded_with_arrays(graph, choice, Mesh((ranks,)).axis(0), states)
    return Division(graph, choice, ranks, local, arrays, states)


def proved(
    graph: Graph,
    plan: Plan,
    ranks: int,
    solver: Solver,
    rates: RankRates = HOST,
    states: StateNames = (),
    hosts: Sequence[Host] = (),
) -> Proof:
    """Returns the facts that are proved of `plan`; the solver chooses for nodes that it leaves out.

    Raises UserError for a plan that is wrong or does not fit `graph`, and where a host of `hosts`
    has too little memory for it.
    """
    check_divisions(graph, plan)
    fixed = fixed_strategies(graph, plan, ranks)
    # The hosts' memory is proved below, so that a complete plan is judged and not the solver.
    choice = solve_strategies(graph, ranks, replace(rates, memory=None), solver, fixed, states)
    return prove(_division(graph, choice, ranks, states), plan, hosts)


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


def _sums(collectives: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Returns the number of collectives of each kind, and their bytes."""
    sums: dict[str, tuple[int, int]] = {}
    for item in collectives:
        count, size = sums.get(item["kind"], (0, 0))
        sums[item["kind"]] = count + 1, size + item["bytes"]
    return dict(sorted(sums.items()))
