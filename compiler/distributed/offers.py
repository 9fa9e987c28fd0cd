"""The strategies of all nodes of a graph.

A matmul may divide its columns in three groups, for queries, keys and values, but only what reads
them tells that there are three.  Padded blocks hold whole heads, but only a reshape tells how long
a head is.  So nodes tell producers the groups and the padded blocks in which they need operands,
and readers the padded blocks in which they have results.  A split of which a node tells a neighbour
is called a wish: the neighbour then offers a strategy with this split, if it can.
"""

from collections.abc import Iterable, Iterator, Mapping

from tcc.distributed.free_axes import free_strategies
from tcc.distributed.sharding import Split
from tcc.distributed.strategies import Strategy, strategies
from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, Node, Value, bodies
from tcc.ir.op import Trait


def expr_of(node: Node) -> Expr | None:
    """Returns the expression by which ranks share a node; None for a node that stays whole."""
    if node.op.expr is None or Trait.OPAQUE in node.op.traits or bodies(node):
        return None
    return node.op.expr([None if v is None else v.type for v in node.inputs], node.attrs)


def offers(graph: Graph, ranks: int) -> dict[Node, tuple[Strategy, ...]]:
    """Returns the strategies of each node of `graph` on `ranks` ranks, `whole` first.

    Sweeps over the nodes, backward and forward in turns, end when no node tells a neighbour a new
    split.
    """
    offers = _Offers(graph, ranks)
    while offers.stale:
        offers.sweep(reversed(graph.nodes))
        offers.sweep(graph.nodes)
    return {node: offers.offered[node] for node in graph.nodes}


class _Offers:
    """The strategies of nodes so far, and the splits of values of which nodes tell neighbours.

    `stale` are the nodes whose strategies must be computed anew, because a neighbour told them a
    new split.
    """

    def __init__(self, graph: Graph, ranks: int) -> None:
        self._ranks = ranks
        self._producers, self._users = graph.producers(), graph.users()
        # The splits that readers of a value need, and those in which its producer has it.
        self._needed: dict[Value, dict[Split, None]] = {}
        self._computed: dict[Value, dict[Split, None]] = {}
        self.offered: dict[Node, tuple[Strategy, ...]] = {}
        self.stale = set(graph.nodes)

    def sweep(self, nodes: Iterable[Node]) -> None:
        """Computes the strategies of stale nodes, in the order of `nodes`; records their wishes."""
        for node in nodes:
            if node in self.stale:
                self.stale.remove(node)
                self.offered[node] = self._strategies(node)
                for strategy in self.offered[node]:
                    self._record(node, strategy)

    def _strategies(self, node: Node) -> tuple[Strategy, ...]:
        needed = tuple(_wishes(node.outputs, self._needed))
        computed = tuple(_wishes(node.inputs, self._computed))
        expr = expr_of(node)
        if expr is None:
            return free_strategies(node, self._ranks, needed, computed)
        return strategies(expr, self._ranks, needed, computed)

    def _record(self, node: Node, strategy: Strategy) -> None:
        for value, sharding in zip(node.inputs, strategy.operands, strict=True):
            if value is None or not isinstance(sharding, Split):
                continue
            splits = self._needed.setdefault(value, {})
            if _is_wish(sharding) and sharding not in splits:
                splits[sharding] = None
                if value in self._producers:
                    self.stale.add(self._producers[value])
        for value, sharding in zip(node.outputs, strategy.results, strict=True):
            splits = self._computed.setdefault(value, {})
            if isinstance(sharding, Split) and sharding.block and sharding not in splits:
                splits[sharding] = None
                self.stale.update(self._users.get(value, ()))


def _is_wish(split: Split) -> bool:
    """True for a split with groups or padded blocks, which a neighbour does not offer by itself.

    A node offers plain splits into equal blocks of an axis without being told.
    """
    return split != Split(split.axis)


def _wishes(
    values: Iterable[Value | None], splits: Mapping[Value, Iterable[Split]]
) -> Iterator[tuple[int, Split]]:
    for number, value in enumerate(values):
        if value is not None:
            yield from ((number, split) for split in splits.get(value, ()))
