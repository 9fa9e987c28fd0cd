"""Facts of a plan: the strategy of each node, the collectives, the weights, predicted times."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tcc.distributed.cluster import on_mesh, part_of
from tcc.distributed.costs import Cluster, local_seconds, node_seconds, with_memory
from tcc.distributed.divisions import check_divisions
from tcc.distributed.exchanges import Division, exchange_of, is_exchange, sums_by_kind
from tcc.distributed.mesh import Mesh
from tcc.distributed.offers import NodeStrategies
from tcc.distributed.plan import Plan, check_model, fixed_strategies, json_of, plan_of, texts_of
from tcc.distributed.planner import GraphPlanner
from tcc.distributed.problem import (
    FORBIDDEN,
    NANOSECONDS,
    ProblemWriter,
    Solver,
    cost_of,
    largest_values,
    with_alternative,
)
from tcc.distributed.proof import Proof, prove
from tcc.distributed.shard import sharded_with_arrays
from tcc.distributed.solve import solved
from tcc.distributed.states import StateNames
from tcc.distributed.strategies import whole
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, constant_bytes
from tcc.passes.rank_prices import RankPrices
from tcc.zipped import zip_equal


@frozen
class PlanFacts:
    """A plan and what it does.

    `rows` has a record for each node, `collectives` one for each collective of a run, in order.
    `facts` has `ranks`, the `mesh`, bytes of weights, and the predicted seconds of a run.
    `division` is what the ranks run.
    """

    plan: Plan
    rows: tuple[Mapping[str, Any], ...]
    collectives: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    division: Division


def planned(
    graph: Graph,
    cluster: Cluster,
    solver: Solver,
    fixed: Mapping[Node, NodeStrategies],
    states: StateNames = (),
    prices: RankPrices | None = None,
    lean: bool = False,
) -> PlanFacts:
    """Returns the fastest plan for `graph` on a cluster in which nodes have the strategies `fixed`,
    or the plan of least memory if `lean`.

    The predicted times come from `prices`, or from counts without them.
    """
    mesh = cluster.mesh
    planner = GraphPlanner(graph, cluster, solver, fixed, states, prices)
    best = planner.lean() if lean else planner.best()
    choice, local = best.choice, best.local
    nodes = [node for node in local.nodes if is_exchange(node)]
    exchanges = [*map(exchange_of, nodes)]
    weights = constant_bytes(local)
    beside = None if fixed or lean else planner.lean_beside(best)
    if prices is None:
        free, axes = with_memory(cluster, None), len(mesh.sizes)
        everything = {n: (whole(len(n.inputs), len(n.outputs)),) * axes for n in graph.nodes}
        one_rank = solved(graph, free, solver, everything, states).seconds
    else:
        one_rank = prices.seconds(graph) + local_seconds(graph, cluster)
    return PlanFacts(
        replace(
            plan_of(graph, choice, mesh), exchanges=sums_by_kind(exchanges), weight_bytes=weights
        ),
        tuple(_row(graph, node, choice[node], cluster) for node in graph.nodes if node.outputs),
        tuple(
            {"kind": item.kind, "bytes": item.bytes, "source": node.loc}
            for node, item in zip_equal(nodes, exchanges)
        ),
        {
            "ranks": cluster.ranks,
            "mesh": mesh.sizes,
            "weight_bytes": constant_bytes(graph),
            "rank_weight_bytes": weights,
            "rank_bytes": planner.memory(best),
            "seconds": planner.seconds(best),
            "one_rank_seconds": one_rank,
            "priced": prices is not None,
            "lean": beside and {
                "rank_weight_bytes": constant_bytes(beside.local),
                "seconds": planner.seconds(beside),
            },
        },
        Division(graph, choice, mesh, local, best.arrays, states),
    )  # fmt: skip


def fewest_ranks(
    graph: Graph, cluster: Cluster, solver: Solver, states: StateNames = ()
) -> Cluster:
    """Returns the part of a cluster with the fewest ranks whose memory has room for `graph`.

    Raises UserError if all ranks together have no room, or if their memory is unknown.
    """
    memory = cluster.rates[0].memory
    if memory is None:
        raise UserError(
            "the memory of a rank is unknown",
            where="--objective ranks",
            hint="give --cluster FILE, in which hosts have memory_bytes",
        )
    weights, room = constant_bytes(graph), memory - largest_values(graph)
    # Ranks that divide every weight evenly need at least so many.
    first = max(1, -(-weights // room)) if room > 0 else cluster.ranks
    for ranks in range(min(first, cluster.ranks), cluster.ranks):
        part = part_of(cluster, ranks)
        if ranks == 1:
            return part
        with suppress(UserError):  # does not fit
            solved(graph, part, solver, {}, states)
            return part
    solved(graph, cluster, solver, {}, states)
    return cluster


def proved(
    graph: Graph, plan: Plan, cluster: Cluster, solver: Solver, states: StateNames = ()
) -> Proof:
    """Returns the facts that are proved of `plan`; the solver chooses for nodes that it leaves out.

    Raises UserError for a plan that is wrong or does not fit `graph`, and where a host of the
    cluster has too little memory for it.
    """
    mesh = Mesh(plan.mesh)
    cluster = on_mesh(cluster, plan.mesh)
    check_model(graph, plan, mesh)
    check_divisions(graph, plan)
    fixed = fixed_strategies(graph, plan, mesh)
    # The hosts' memory is proved below, so that a complete plan is judged and not the solver.
    choice = solved(graph, with_memory(cluster, None), solver, fixed, states).choice
    local, arrays = sharded_with_arrays(graph, choice, mesh.axes, states, cluster.rates)
    return prove(Division(graph, choice, mesh, local, arrays, states), plan, cluster.hosts)


def explained(
    graph: Graph,
    cluster: Cluster,
    solver: Solver,
    fixed: Mapping[Node, NodeStrategies],
    name: str,
    states: StateNames = (),
) -> list[dict[str, Any]]:
    """Returns a record for each strategy of the node called `name`: its texts, the predicted
    seconds of a run in which the solver chooses all strategies that are not in `fixed`, and whether
    the solver chose it.

    A strategy with which no plan fits the memory has None for the seconds.  Raises UserError if no
    node has this name.
    """
    node = next((n for n in graph.nodes if n.outputs and n.outputs[0].name == name), None)
    if node is None:
        raise UserError(
            "no node has this name",
            where=f"--explain {name}",
            hint="tcc plan without --explain lists the nodes",
        )
    free = {other: items for other, items in fixed.items() if other is not node}
    writer = ProblemWriter(graph, cluster, free, states)
    problem, place = writer.problem(), graph.nodes.index(node)
    alternatives = writer.strategies[place]
    choice = fixed[node] if node in fixed else alternatives[solver(problem)[place]]
    records = []
    for number, items in enumerate(alternatives):
        forced = with_alternative(problem, place, number)
        cost = FORBIDDEN
        with suppress(UserError):  # does not fit
            cost = cost_of(forced, solver(forced))
        seconds = None if cost >= FORBIDDEN else cost / NANOSECONDS
        is_choice = texts_of(items) == texts_of(choice)
        strategy = json_of(texts_of(items))
        records.append({"strategy": strategy, "seconds": seconds, "chosen": is_choice})
    return records


def _row(graph: Graph, node: Node, items: NodeStrategies, cluster: Cluster) -> dict[str, Any]:
    return {
        "node": node.result.name,
        "op": node.op.name,
        "strategy": json_of(texts_of(items)),
        "seconds": node_seconds(graph, node, items, cluster),
        "source": node.loc,
    }
