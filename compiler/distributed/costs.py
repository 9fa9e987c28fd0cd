"""Predicted seconds of a plan's parts: the work of a node on a rank, and changes of sharding.

They are roofline counts: operations at a rate, constants read from memory at a rate, and bytes
between ranks at a rate behind a latency.  They only rank alternatives.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, prod
from operator import attrgetter
from typing import Any

from tcc.distributed.changes import transfer
from tcc.distributed.mesh import Mesh, MeshAxis
from tcc.distributed.offers import (
    NodeStrategies,
    expr_of,
    mesh_expr,
    operand_shardings,
    result_shardings,
)
from tcc.distributed.routes import Route, mesh_type, route
from tcc.distributed.sharding import WHOLE, Partial, Sharding, Shardings, type_bytes
from tcc.distributed.strategies import whole
from tcc.frozen import frozen
from tcc.ir.expr import Expr, extent
from tcc.ir.expr.scalar import Apply, walk
from tcc.ir.graph import Graph, Node
from tcc.ir.op import Trait
from tcc.ir.types import TensorType
from tcc.passes.rank_prices import exchanged
from tcc.schedule.nest import typical
from tcc.zipped import zip_equal


@frozen
class LinkRate:
    """A measured speed of the link between two hosts, or inside a host: `between` has both names.

    A collective of the kind `kind` (or of any kind: `any`) that hands over at least `bytes` bytes
    takes `latency` seconds, and a second for every `rate` bytes.
    """

    between: tuple[str, str]
    kind: str
    bytes: int
    latency: float
    rate: float

    def seconds(self, bytes: int) -> float:
        """Returns the seconds of a collective of so many bytes."""
        return self.latency + bytes / self.rate


@frozen
class RankRates:
    """The speeds and the memory of a rank, and the speeds of the links between ranks.

    `operations` and `memory_bytes` are per second of one rank, `link_bytes` per second of one rank
    into a collective; `latency` is the seconds that a collective of no bytes takes.  The defaults
    are measured on cores with AVX2 and AVX-512 whose ranks share memory: matmuls, decode steps, and
    all_reduces of 4 KiB (1.6 us) and 384 KiB (18 us).  `links` replace
    `link_bytes` and `latency` for the collectives that they name.  `memory` is the most bytes that
    weights and values of a rank may take; None for any number.
    """

    operations: float = 1e11
    memory_bytes: float = 2e10
    link_bytes: float = 1.5e10
    latency: float = 2e-6
    links: tuple[LinkRate, ...] = ()
    memory: int | None = None

    def exchange_seconds(self, kind: str, bytes: int) -> float:
        """Returns the seconds of a collective in which a rank hands over `bytes` bytes.

        Every link takes part, so the slowest link counts.  The row of a link with the most bytes
        that are not above `bytes` counts, or else the row with the fewest bytes.
        """
        rows: dict[tuple[str, str], list[LinkRate]] = {}
        for link in self.links:
            if link.kind in (kind, ANY):
                rows.setdefault(link.between, []).append(link)
        if not rows:
            return self.latency + bytes / self.link_bytes
        return max(_row(links, kind, bytes).seconds(bytes) for links in rows.values())


ANY = "any"
HOST = RankRates()


@frozen
class Host:
    """A host: its name, its number of ranks, and the memory of each rank in bytes."""

    name: str
    ranks: int
    memory_bytes: int


@frozen
class Cluster:
    """A mesh of ranks, their speeds along each axis of the mesh, and the hosts.

    The axes differ in links alone; work and memory are those of the first axis, which are the least
    of all hosts.  The first host has the first ranks.
    """

    mesh: Mesh
    rates: tuple[RankRates, ...]
    hosts: tuple[Host, ...] = ()

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return self.mesh.ranks


# The names of cost models: each leaves out a part of the predicted seconds.
COSTS = "all", "zero-links", "zero-compute"


def with_costs(cluster: Cluster, name: str) -> Cluster:
    """Returns a cluster whose predicted seconds follow one of `COSTS`.

    With `zero-links` collectives take no time, with `zero-compute` operations and the reading of
    constants.
    """
    free: dict[str, Any] = {}
    if name == "zero-links":
        free = {"latency": 0.0, "link_bytes": inf, "links": ()}
    elif name == "zero-compute":
        free = {"operations": inf, "memory_bytes": inf}
    return _with_rates(cluster, **free)


def with_memory(cluster: Cluster, memory: int | None) -> Cluster:
    """Returns a cluster whose ranks have `memory` bytes; None for any number."""
    return _with_rates(cluster, memory=memory)


def _with_rates(cluster: Cluster, **fields: Any) -> Cluster:
    return replace(cluster, rates=tuple(replace(speeds, **fields) for speeds in cluster.rates))


def one_host(ranks: int, rates: RankRates = HOST) -> Cluster:
    """Returns a cluster of one host."""
    return Cluster(Mesh((ranks,)), (rates,))


def _row(links: Sequence[LinkRate], kind: str, bytes: int) -> LinkRate:
    links = [link for link in links if link.kind == kind] or links
    fitting = [link for link in links if link.bytes <= bytes]
    if fitting:
        return max(fitting, key=attrgetter("bytes"))
    return min(links, key=attrgetter("bytes"))


def change_seconds(
    type: TensorType, source: Sharding, result: Sharding, ranks: int, rates: RankRates
) -> float | None:
    """Returns the seconds of a change of sharding; None for a change that does not exist."""
    change = transfer(type, source, result, ranks)
    if change is None:
        return None
    return rates.exchange_seconds(change.kind, change.bytes) if change.kind else 0.0


def cheapest_route(
    type: TensorType,
    source: Shardings,
    result: Shardings,
    sizes: Sequence[int],
    rates: Sequence[RankRates],
) -> Route | None:
    """Returns the fastest changes of sharding on a mesh of `sizes`; None if none exist.

    `rates` are the speeds along each axis.
    """
    return route(
        type, source, result, sizes,
        lambda axis, type, old, new: change_seconds(type, old, new, sizes[axis], rates[axis]),
    )  # fmt: skip


def work_seconds(
    expr: Expr, items: NodeStrategies, axes: Sequence[MeshAxis], rates: Sequence[RankRates]
) -> float:
    """Returns the seconds of a rank's operations, and of the reductions between them.

    `items` has a strategy for each axis.  A symbolic extent counts as its typical value.
    """
    operations = 0.0
    shares = dict.fromkeys(range(len(expr.stages)), 1.0)
    for strategy in items:
        for number, block in strategy.blocks:
            shares[number] *= block.share
    for number, stage in enumerate(expr.stages):
        points = prod(typical(extent(loop)) for loop in stage.loops)
        applied = sum(isinstance(scalar, Apply) for scalar in walk(*stage.body))
        # Each point also stores, or makes a step of a reduction.
        operations += points * (applied + 1) * shares[number]
    seconds = operations / rates[0].operations
    if any(strategy.reduced for strategy in items):
        stages = mesh_expr(expr, items, axes).stages
        for strategy, axis, speeds in zip_equal(items, axes, rates):
            for number, monoids in strategy.reduced:
                for type, monoid in zip_equal(stages[number].types, monoids):
                    partial = Partial(monoid)
                    seconds += change_seconds(type, partial, WHOLE, axis.ranks, speeds) or 0.0
    return seconds


def call_seconds(
    node: Node, items: NodeStrategies, sizes: Sequence[int], rates: RankRates
) -> float:
    """Returns the seconds in which a node without expression, such as a host function, reads a
    rank's operands and writes its results."""
    shardings = (*operand_shardings(items), *result_shardings(items))
    pairs = zip_equal((*node.inputs, *node.outputs), shardings)
    return sum(rank_bytes(v.type, s, sizes) for v, s in pairs if v) / rates.memory_bytes


def node_seconds(
    graph: Graph,
    node: Node,
    items: NodeStrategies,
    cluster: Cluster,
    work: Callable[..., float] = work_seconds,
) -> float:
    """Returns the seconds of a rank's part of a node, and of reading its part of constants.

    `work` is `work_seconds`, which may keep its results.
    """
    expr, sizes, rates = expr_of(node), cluster.mesh.sizes, cluster.rates
    if expr is None:
        return call_seconds(node, items, sizes, rates[0])
    constants = constants_of(graph, node, items)
    return work(expr, items, cluster.mesh.axes, rates) + sum(
        constant_seconds(type, shardings, sizes, rates[0]) for type, shardings in constants
    )


def constants_of(
    graph: Graph, node: Node, items: NodeStrategies
) -> list[tuple[TensorType, Shardings]]:
    """Returns the type and the shardings of each constant that a node reads; a constant that is
    two operands counts once."""
    operands = zip_equal(node.inputs, operand_shardings(items))
    return [(v.type, s) for v, s in dict.fromkeys(operands) if v and v in graph.constants]


def local_seconds(graph: Graph, cluster: Cluster) -> float:
    """Returns the seconds of the exchanges and the host functions in a run of a rank's graph.

    Collectives that start early and end late are priced as if the rank waited for them.
    """
    axes = zip_equal(cluster.mesh.axes, cluster.rates)
    rates = {axis.members: speeds for axis, speeds in axes}
    seconds = sum(
        rates[members].exchange_seconds(kind, bytes) for kind, bytes, members in exchanged(graph)
    )
    for node in graph.nodes:
        if Trait.COLLECTIVE not in node.op.traits and expr_of(node) is None:
            undivided = whole(len(node.inputs), len(node.outputs))
            seconds += call_seconds(node, (undivided,), (1,), cluster.rates[0])
    return seconds


def constant_seconds(
    type: TensorType, shardings: Shardings, sizes: Sequence[int], rates: RankRates
) -> float:
    """Returns the seconds in which a rank reads its part of a constant."""
    return rank_bytes(type, shardings, sizes) / rates.memory_bytes


def rank_bytes(type: TensorType, shardings: Shardings = (), sizes: Sequence[int] = ()) -> int:
    """Returns the bytes of the array that a rank has; a symbolic size counts as its typical
    value."""
    return type_bytes(mesh_type(type, shardings, sizes))
