"""Proves that a plan is right, by rules that stand apart from those of the solver.

divisions    ranks have equal blocks of every axis that a strategy divides
arrays       every rank's array has the shape of its sharding; blocks of constants are compared
exchanges    every change of sharding is in the ranks' graph, and nothing else is exchanged
costs        the plan states the exchanges and the weights that the ranks' graph has
memory       weights and values fit the memory of each host at every step
order        in every group of ranks, all members exchange the same in the same order
"""

from collections.abc import Mapping, Sequence

from tcc.distributed.costs import Host
from tcc.distributed.exchanges import (
    Division,
    Exchange,
    check_exchanges,
    exchange_of,
    is_exchange,
    sums_by_kind,
)
from tcc.distributed.plan import Plan
from tcc.distributed.shard import divides
from tcc.distributed.sharding import type_bytes
from tcc.errors import InternalError, UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Value, bodies, uses, walk_graphs, walk_nodes
from tcc.ir.graph.verify import verify_graph
from tcc.ir.op import Trait

# A step of a run: the group of ranks that exchange data, and the collective by which they do so.
Step = tuple[tuple[int, ...], Exchange]


@frozen
class Proof:
    """The facts that were proved of a plan for `ranks` ranks.

    The graph has `nodes` nodes with results; `divided` nodes have a part of the work on each rank.
    `arrays` is the number of arrays that were compared with their shardings.  `costs` has for each
    kind of exchange their number in a run and the bytes that a rank hands to them; `stated` says
    whether the plan states these costs.  A rank has `weight_bytes` of weights, and at most
    `peak_bytes` of weights and values, at the node `peak`.  `groups` are the groups of ranks that
    exchange data.
    """

    ranks: int
    nodes: int
    divided: int
    arrays: int
    costs: Mapping[str, tuple[int, int]]
    stated: bool
    weight_bytes: int
    peak_bytes: int
    peak: str
    groups: tuple[tuple[int, ...], ...]


def prove(division: Division, plan: Plan, hosts: Sequence[Host] = ()) -> Proof:
    """Returns the facts that are proved of a plan, whose divisions `check_divisions` has checked.

    Raises UserError if the plan states other costs than its strategies have, and if a host of
    `hosts`, which have the ranks in order, has too little memory.  Raises InternalError if the
    graph of the ranks is not what the strategies say.
    """
    verify_graph(division.local)
    exchanges = check_exchanges(division)
    graphs = walk_graphs(division.local)
    weights = sum(type_bytes(value.type) for graph in graphs for value in graph.constants)
    costs = sums_by_kind(exchanges)
    _check_costs(plan, exchanges, costs, weights)
    bytes, peak = _peak(division.local)
    _check_memory(plan, hosts, weights + bytes, weights, peak)
    groups = check_order([_steps(division.local, rank, division.mesh.ranks)
                          for rank in range(division.mesh.ranks)])  # fmt: skip
    return Proof(
        division.mesh.ranks,
        sum(bool(node.outputs) for node in division.choice),
        sum(map(divides, division.choice.values())),
        sum(map(len, division.arrays.values())),
        costs, plan.exchanges is not None, weights, weights + bytes, peak, groups,
    )  # fmt: skip


# ---- costs and memory ----------------------------------------------------------------------------


def _check_costs(
    plan: Plan,
    exchanges: Sequence[Exchange],
    costs: Mapping[str, tuple[int, int]],
    weights: int,
) -> None:
    """Raises UserError if the plan states other exchanges or weights; it may state none."""
    stated = costs if plan.exchanges is None else plan.exchanges
    hint = "tcc plan MODEL --plan FILE -o FILE writes the costs of its strategies"
    for kind in sorted({*stated, *costs}):
        if stated.get(kind, (0, 0)) != costs.get(kind, (0, 0)):
            (count, size), (number, bytes) = (t.get(kind, (0, 0)) for t in (stated, costs))
            first = next((item.value for item in exchanges if item.kind == kind), "")
            raise UserError(
                f"the plan does not pay every {kind}",
                where=f"{plan.place}: {first or kind}",
                why=f"it states {count} of {size} bytes together, and the strategies need {number} "
                f"of {bytes} bytes",
                hint=hint,
            )
    if plan.weight_bytes not in (None, weights):
        raise UserError(
            "the plan states other weights than a rank has",
            where=plan.place,
            why=f"it states {plan.weight_bytes} bytes, and a rank has {weights}",
            hint=hint,
        )


def _check_memory(plan: Plan, hosts: Sequence[Host], peak: int, weights: int, node: str) -> None:
    first = 0
    for host in hosts:
        if first < plan.ranks and peak > host.memory_bytes:
            raise UserError(
                f"the plan does not fit the memory of host {host.name}",
                where=f"{plan.place}: {node}",
                why=f"rank {first} needs {peak} bytes there, {weights} of them for weights, and "
                f"has {host.memory_bytes}",
                hint="divide more weights (tcc plan --cluster does), take more ranks, or allow "
                "more memory",
            )
        first += host.ranks


def _peak(graph: Graph) -> tuple[int, str]:
    """Returns the most bytes of values that nodes have computed and that are still needed, and the
    name of the node where they are.

    Memory for values that fusion never stores counts too, so a run needs less.  Values of bodies
    add to those around them.  A result replaces an operand of its size that ends at the node where
    elements depend on their own element only.
    """
    last: dict[Value, int] = {}
    for number, node in enumerate(graph.nodes):
        last.update(dict.fromkeys(uses(node), number))
    last.update(dict.fromkeys(graph.outputs, len(graph.nodes)))
    sizes: dict[Value, int] = {}
    peak, place = 0, graph.name
    for number, node in enumerate(graph.nodes):
        ending = [v for v in dict.fromkeys(uses(node)) if v in sizes and last[v] == number]
        new = {value: type_bytes(value.type) for value in node.outputs}
        in_place = Trait.ELEMENTWISE in node.op.traits or is_exchange(node)
        shared = next((s for v in ending if in_place for s in new.values() if sizes[v] == s), 0)
        inner = max((_peak(body)[0] for body in bodies(node)), default=0)
        live = sum(sizes.values()) + sum(new.values()) - shared + inner
        if live > peak:
            peak, place = live, node.loc or node.op.name
        sizes |= {value: size for value, size in new.items() if last.get(value, number) > number}
        for value in ending:
            del sizes[value]
    return peak, place


# ---- the order of exchanges ----------------------------------------------------------------------


def _steps(graph: Graph, rank: int, ranks: int) -> list[Step]:
    """Returns the exchanges of a rank in order, each with the ranks that take part.

    Raises InternalError for an exchange in a body, which ranks might run a different number of
    times.
    """
    outer = set(graph.nodes)
    steps = []
    for node in walk_nodes(graph):
        if is_exchange(node):
            if node not in outer:
                raise InternalError("an exchange depends on control flow", where=node.loc)
            groups = node.attrs.members or (tuple(range(ranks)),)
            steps += [(group, exchange_of(node)) for group in groups if rank in group]
    return steps


def check_order(steps: Sequence[Sequence[Step]]) -> tuple[tuple[int, ...], ...]:
    """Returns the groups of ranks that exchange data, where `steps` has the exchanges of each rank.

    An exchange runs when it is the next one of all ranks of its group.  Raises InternalError if
    ranks then wait for each other without end.
    """
    positions = [0] * len(steps)
    groups: dict[tuple[int, ...], None] = {}
    waiting = [*range(len(steps))]
    while waiting:
        rank = waiting.pop()
        if positions[rank] == len(steps[rank]):
            continue
        step = steps[rank][positions[rank]]
        group = step[0]
        heads = [steps[r][positions[r] : positions[r] + 1] for r in group]
        if all(head and head[0] == step for head in heads):
            groups[group] = None
            for member in group:
                positions[member] += 1
            waiting += group
    for rank, position in enumerate(positions):
        if position < len(steps[rank]):
            group, exchange = steps[rank][position]
            raise InternalError(
                "ranks would wait for each other without end",
                where=exchange.value,
                why=f"rank {rank} waits in {exchange.kind} for all of {group}",
            )
    return tuple(sorted(groups))
