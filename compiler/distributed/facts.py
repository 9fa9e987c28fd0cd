"""Facts of a plan: the strategy of each node, the collectives, the weights, predicted times."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tcc.distributed.cluster import part_of
from tcc.distributed.costs import Cluster, rank_bytes, work_seconds
from tcc.distributed.mesh import Mesh
from tcc.distributed.mesh_offers import NodeStrategies
from tcc.distributed.offers import expr_of
from tcc.distributed.plan import Plan, json_of, plan_of, texts_of
from tcc.distributed.problem import (
    NANOSECONDS,
    ProblemWriter,
    Solver,
    cost_of,
    largest_values,
    with_alternative,
)
from tcc.distributed.shard import mesh_sharded
from tcc.distributed.solve import predicted_seconds, solved
from tcc.distributed.states import StateNames
from tcc.distributed.strategies import whole
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, constant_bytes
from tcc.ir.op import Trait
from tcc.ops import OPS


@frozen
class PlanFacts:
    """A plan and what it does.

    `rows` has a record for each node, `collectives` one for each collective of a run, in order.
    `facts` has `ranks`, the `mesh`, bytes of weights, and the predicted seconds of a run.
    """

    plan: Plan
    rows: tuple[Mapping[str, Any], ...]
    collectives: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]


def planned(
    graph: Graph,
    cluster: Cluster,
    solver: Solver,
    fixed: Mapping[Node, NodeStrategies],
    states: StateNames = (),
) -> PlanFacts:
    """Returns the best plan for `graph` on a cluster in which nodes have the strategies `fixed`."""
    mesh, rates = cluster.mesh, cluster.rates
    solution = solved(graph, cluster, solver, fixed, states)
    choice = solution.choice
    local = mesh_sharded(graph, choice, mesh.axes, states, rates)
    free = Cluster(mesh, tuple(replace(speeds, memory=None) for speeds in rates))
    one_rank = (whole_choice(graph, mesh), free, states)
    return PlanFacts(
        plan_of(graph, choice, mesh),
        tuple(_row(node, choice[node], cluster) for node in graph.nodes if node.outputs),
        tuple(_collectives(local)),
        {
            "ranks": cluster.ranks,
            "mesh": mesh.sizes,
            "weight_bytes": constant_bytes(graph),
            "rank_weight_bytes": _constant_bytes_of_rank(local),
            "seconds": solution.seconds,
            "one_rank_seconds": predicted_seconds(graph, *one_rank),
        },
    )


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
            solver(ProblemWriter(graph, part, {}, states).problem())
            return part
    solver(ProblemWriter(graph, cluster, {}, states).problem())
    return cluster


def whole_choice(graph: Graph, mesh: Mesh) -> dict[Node, NodeStrategies]:
    """Returns the choice in which every rank computes everything."""
    axes = len(mesh.sizes)
    return {node: (whole(len(node.inputs), len(node.outputs)),) * axes for node in graph.nodes}


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
    if node in fixed:
        chosen = texts_of(fixed[node])
    else:
        chosen = texts_of(alternatives[solver(problem)[place]])
    records = []
    for number, items in enumerate(alternatives):
        forced = with_alternative(problem, place, number)
        try:
            seconds = cost_of(forced, solver(forced)) / NANOSECONDS
        except UserError:
            seconds = None
        texts = texts_of(items)
        strategy = json_of(texts)
        records.append({"strategy": strategy, "seconds": seconds, "chosen": texts == chosen})
    return records


def _row(node: Node, items: NodeStrategies, cluster: Cluster) -> dict[str, Any]:
    expr, axes = expr_of(node), cluster.mesh.axes
    return {
        "node": node.outputs[0].name,
        "op": node.op.name,
        "strategy": json_of(texts_of(items)),
        "seconds": 0.0 if expr is None else work_seconds(expr, items, axes, cluster.rates),
        "source": node.loc,
    }


def _collectives(graph: Graph) -> list[dict[str, Any]]:
    records = []
    for node in graph.nodes:
        if Trait.COLLECTIVE in node.op.traits and node.op is not OPS["rank"]:
            (operand,) = node.inputs
            assert operand is not None
            size = rank_bytes(operand.type)
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
