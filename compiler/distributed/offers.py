"""The strategies of all nodes of a graph on a mesh: a strategy for each axis.

The strategy of an axis divides the node that the strategies of earlier axes leave to a rank.  On
2x2 ranks a matmul of 64 rows, 64 columns and 64 terms of each sum has, among others,

    split(0), whole -> split(0)  whole, split(1) -> split(1)        32 rows, 32 columns
    whole, split(1) -> split(1)  whole, split(1) -> split(1)        16 columns
    whole, split(1) -> split(1)  split(1), split(0) -> partial(sum) 32 columns, sums of 32 terms

A matmul may divide its columns in three groups, for queries, keys and values, but only what reads
them tells that there are three.  Padded blocks hold whole heads, but only a reshape tells how long
a head is.  So nodes tell producers the groups and the padded blocks in which they need operands,
and readers the padded blocks in which they have results.  A split of which a node tells a neighbour
is called a wish: the neighbour then offers a strategy with this split, if it can.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tcc.distributed.changes import rank_number
from tcc.distributed.free_axes import free_strategies
from tcc.distributed.local_nodes import local_expr
from tcc.distributed.mesh import MeshAxis
from tcc.distributed.sharding import Shardings, Split
from tcc.distributed.strategies import Strategy, strategies, whole
from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, Node, Value, bodies, types_of
from tcc.ir.index import Index
from tcc.ir.op import Trait
from tcc.zipped import zip_equal

# A strategy for each axis of a mesh.
NodeStrategies: TypeAlias = tuple[Strategy, ...]
# A node, and its strategies along earlier axes.
_Site: TypeAlias = tuple[Node, NodeStrategies]
# A value, and its shardings along earlier axes.
_Part: TypeAlias = tuple[Value, Shardings]


def expr_of(node: Node) -> Expr | None:
    """Returns the expression by which ranks share a node; None for a node that stays whole."""
    if node.op.expr is None or Trait.OPAQUE in node.op.traits or bodies(node):
        return None
    return node.op.expr(types_of(node.inputs), node.attrs)


def mesh_offers(graph: Graph, axes: Sequence[MeshAxis]) -> dict[Node, tuple[NodeStrategies, ...]]:
    """Returns the strategies of each node along the `axes` of a mesh, the whole ones first."""
    offered: dict[Node, tuple[NodeStrategies, ...]] = {node: ((),) for node in graph.nodes}
    for number, axis in enumerate(axes):
        extension = _Offers(axes[:number], axis, offered)
        while extension.stale:
            extension.sweep([*reversed(graph.nodes)])
            extension.sweep(graph.nodes)
        offered = {
            node: tuple(
                (*items, s) for items in offered[node] for s in extension.offered[node, items]
            )
            for node in graph.nodes
        }
    return offered


class _Offers:
    """The strategies of nodes along one more axis so far, and the splits of values of which nodes
    tell neighbours.

    Sweeps over the nodes, backward and forward in turns, end when no node tells a neighbour a new
    split.  `stale` are the nodes, with strategies along the `earlier` axes, whose strategies must
    be computed anew, because a neighbour told them a new split.
    """

    def __init__(
        self,
        earlier: Sequence[MeshAxis],
        axis: MeshAxis,
        offered: Mapping[Node, Sequence[NodeStrategies]],
    ) -> None:
        self._earlier, self._axis, self._items = earlier, axis, offered
        self.offered: dict[_Site, tuple[Strategy, ...]] = {}
        self.stale = {(node, items) for node, row in offered.items() for items in row}
        # The nodes that compute a part of a value, and those that read it.
        self._producers: dict[_Part | None, list[_Site]] = {}
        self._readers: dict[_Part | None, list[_Site]] = {}
        # The splits that readers of a part need, and those in which its producer has it.
        self._needed: dict[_Part, dict[Split, None]] = {}
        self._computed: dict[_Part, dict[Split, None]] = {}
        for site in self.stale:
            for part in self._results(site):
                self._producers.setdefault(part, []).append(site)
            for part in self._operands(site):
                self._readers.setdefault(part, []).append(site)

    def sweep(self, nodes: Sequence[Node]) -> None:
        """Computes the strategies of stale nodes, in the order of `nodes`; records their wishes."""
        for node in nodes:
            for items in self._items[node]:
                site = node, items
                if site in self.stale:
                    self.stale.remove(site)
                    self.offered[site] = self._strategies(site)
                    for strategy in self.offered[site]:
                        self._record(site, strategy)

    def _operands(self, site: _Site) -> list[_Part | None]:
        node, items = site
        return _parts(node.inputs, [strategy.operands for strategy in items])

    def _results(self, site: _Site) -> list[_Part | None]:
        node, items = site
        return _parts(node.outputs, [strategy.results for strategy in items])

    def _strategies(self, site: _Site) -> tuple[Strategy, ...]:
        node, items = site
        undivided = whole(len(node.inputs), len(node.outputs))
        if self._axis.ranks == 1:
            return (undivided,)
        needed = tuple(_wishes(self._results(site), self._needed))
        computed = tuple(_wishes(self._operands(site), self._computed))
        expr = expr_of(node)
        if expr is None:
            # A block of a host function's operands offers no further division.
            is_whole = all(s == undivided for s in items)
            ranks = self._axis.ranks
            return free_strategies(node, ranks, needed, computed) if is_whole else (undivided,)
        local = mesh_expr(expr, items, self._earlier)
        offers = strategies(local, self._axis.ranks, needed, computed)
        return tuple(strategy for strategy in offers if _fits(items, strategy))

    def _record(self, site: _Site, strategy: Strategy) -> None:
        for part, sharding in zip_equal(self._operands(site), strategy.operands):
            # A node offers plain splits into equal blocks of an axis without being told.
            if part and isinstance(sharding, Split) and sharding != Split(sharding.axis):
                self._tell(part, sharding, self._needed, self._producers)
        for part, sharding in zip_equal(self._results(site), strategy.results):
            if part and isinstance(sharding, Split) and sharding.block:
                self._tell(part, sharding, self._computed, self._readers)

    def _tell(
        self,
        part: _Part,
        split: Split,
        splits: dict[_Part, dict[Split, None]],
        neighbours: Mapping[_Part | None, Sequence[_Site]],
    ) -> None:
        wishes = splits.setdefault(part, {})
        if split not in wishes:
            wishes[split] = None
            self.stale.update(neighbours.get(part, ()))


def _fits(items: NodeStrategies, strategy: Strategy) -> bool:
    """True where no axis of an array that has padding is divided once more."""
    return not any(
        isinstance(a, Split) and isinstance(b, Split) and a.block and a.axis == b.axis
        for earlier in items
        for a, b in zip_equal(earlier.shardings, strategy.shardings)
    )


def _parts(values: Sequence[Value | None], rows: Sequence[Shardings]) -> list[_Part | None]:
    """Returns each value with its sharding in each row; None for an absent value."""
    columns = zip_equal(*rows) if rows else ((),) * len(values)
    return [None if v is None else (v, c) for v, c in zip_equal(values, columns)]


def _wishes(
    parts: Iterable[_Part | None], splits: Mapping[_Part, Iterable[Split]]
) -> Iterator[tuple[int, Split]]:
    for number, part in enumerate(parts):
        if part is not None:
            yield from ((number, split) for split in splits.get(part, ()))


def mesh_expr(expr: Expr, items: NodeStrategies, axes: Sequence[MeshAxis]) -> Expr:
    """Returns the expression that a rank computes with a strategy for each of `axes`.

    Its size symbol is the number of the rank.
    """
    for strategy, axis in zip_equal(items, axes):

        def place(axis: MeshAxis = axis) -> Index:
            return axis.place(rank_number(axis.all_ranks))

        expr = local_expr(expr, strategy, axis.ranks, place)
    return expr


def operand_shardings(items: NodeStrategies) -> tuple[Shardings, ...]:
    """Returns the shardings of each operand along all axes."""
    return tuple(zip_equal(*(strategy.operands for strategy in items)))


def result_shardings(items: NodeStrategies) -> tuple[Shardings, ...]:
    """Returns the shardings of each result along all axes."""
    return tuple(zip_equal(*(strategy.results for strategy in items)))
