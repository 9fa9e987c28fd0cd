"""Partitions a graph's nodes into groups, which become kernels; each group ends at one sink.

    conv -> add(bias) -> relu -> conv        { conv, add, relu }  { conv }
    matmul -> reshape -> transpose -> matmul { matmul, reshape, transpose } { matmul }

The nodes are visited from the outputs up.  A node joins the groups of its users under two
conditions: a kernel with the node can be built (`_way`), and it is predicted to take no longer than
without the node (`_pays`).  An anchor is a reduction or contraction.

* Pointwise work joins pointwise work, the epilogue of an anchor, or the reductions that read it.
* An anchor joins pointwise work that reads each of its elements once.  It also joins an anchor that
  needs the rows of a tile, as in attention, or in a contraction with a normalisation of its rows.
  A kernel also stores its values that later groups read, such as the sum before a norm.
* An index map joins every group that reads it, unless a contraction is better with its operand in
  memory.
* A copy of whole matrices at data-dependent indices (the weights of an expert) joins the
  contraction that multiplies the matrices.

Without a join, the price of a node is the price of a kernel of its own, or what it adds to the
price of its producers' kernel.  If the join of a node does not save time, the join of several nodes
may: the node, the anchor from whose result it is computed, and all nodes between.  Then all of them
join, or only the nodes next to the group, if the remaining nodes are cheaper as a kernel of their
own.  Without prices, every join that can be built is taken.

A concatenation that has a `Join` (`concat_in_place`) is a group of its own that nothing joins.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import TypeAlias

from tcc.ir.expr import Expr, reads
from tcc.ir.expr.scalar import Read
from tcc.ir.graph import Graph, Node, Value, Values, symbols_in
from tcc.ir.index import nonnegative
from tcc.ir.index.names import is_long
from tcc.ir.op import Trait
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import element_count
from tcc.known import all_known
from tcc.passes.choose.content import site
from tcc.passes.fuse.combine import chooses_matrices, combines_once
from tcc.passes.fuse.compose import compose, node_expr
from tcc.passes.fuse.concat_in_place import Join, find_joins
from tcc.passes.fuse.node_kinds import NodeKind, classify, seen_by_others
from tcc.passes.fuse.structure import build_group, row_major_storage
from tcc.schedule.alternatives import NO_TIME, Alternative, Seconds, Site, higher, lower
from tcc.schedule.backend import KernelModel
from tcc.zipped import zip_equal

# A kernel has at most this many nodes, because each join examines all of them. The largest group in
# `models/` has less than half as many.
_MOST = 64


# A way is the list of nodes that join a group together, the visited node first; None if the visited
# node cannot join.
_Way: TypeAlias = "list[Node] | None"
# The kinds of nodes that reduce: the anchors.
_ANCHORS = (NodeKind.REDUCTION, NodeKind.CONTRACTION)


@dataclass(slots=True, eq=False)
class Group:
    """Nodes that become one kernel, in topological order; `sink` is the last.

    `extra` has the values that the kernel stores for other groups, besides the sink's outputs.
    """

    sink: Node
    members: list[Node] = field(default_factory=list)
    anchors: list[Node] = field(default_factory=list)
    join: Join | None = None
    extra: list[Value] = field(default_factory=list)

    @property
    def anchor(self) -> Node | None:
        """The first reduction or contraction."""
        return self.anchors[0] if self.anchors else None

    def results(self, graph: Graph, users: dict[Value, list[Node]]) -> Values:
        """Returns the values that the group stores: the sink's outputs that something reads, and
        `extra`."""
        return (*(v for v in self.sink.outputs if users.get(v) or v in graph.outputs), *self.extra)


def partition(graph: Graph, model: KernelModel, ends: Collection[Node] = ()) -> tuple[Group, ...]:
    """Returns the groups of a graph's nodes, in an order in which they can run.  A node without an
    expression is a group of its own, and so is each of the nodes `ends`.  `model.legal` allows each
    group of several nodes."""
    return _Partition(graph, model, ends).run()


def _slides(node: Node) -> bool:
    """Returns True if the node's op slides a window over its operand."""
    return Trait.WINDOW in node.op.traits


class _Partition:
    def __init__(self, graph: Graph, model: KernelModel, ends: Collection[Node]) -> None:
        self.graph, self.model, self.ends = graph, model, frozenset(ends)
        self.users = graph.users()
        self.producers, self.kept_values = graph.producers(), graph.values_read_outside()
        self.position = {node: n for n, node in enumerate(graph.nodes)}
        self.kinds = {node: classify(node) for node in graph.nodes}
        self.joins = find_joins(graph, seen_by_others(graph), model.limits.launch_bytes)
        self.groups: dict[Node, list[Group]] = {}
        self.composed = cache(self._compose)
        self.legal, self.saved = cache(model.legal), cache(self._saved)
        self.seconds, self.exchanges = cache(model.alone), cache(self._exchanges)
        self.promises: dict[Node, set[Group]] = {}

    def run(self) -> tuple[Group, ...]:
        order: list[Group] = []
        for node in reversed(self.graph.nodes):
            if not self._needed(node):
                continue
            targets = self._user_groups(node)
            # Accepted joins of later nodes may take the node into all of the groups.
            promised = self.promises.get(node, set())
            if targets and (promised >= {*targets} or self._joins(node, targets)):
                for group in targets:
                    self._add(node, group)
            elif (first := self._first_of_several(node)) and self._joins_stored(node, first):
                self._add(node, first)
                first.extra += node.outputs
            else:
                group = Group(node, join=self.joins.get(node))
                order.append(group)
                self._add(node, group)
        return tuple(reversed(order))

    def _needed(self, node: Node) -> bool:
        """Returns True if a group reads the node, or if the node must run in any case.  It must run
        if it has no outputs, if it computes an output of the graph, or if it is a call or control
        flow that decides a size."""
        is_read = any(u in self.groups for u in self._readers(node))
        gives = node.op.call or not symbols_in(node.inputs) >= symbols_in(node.outputs)
        acts = not node.outputs or (gives and Trait.OPAQUE in node.op.traits)
        return bool(is_read or acts or self._is_kept(node))

    def _readers(self, node: Node) -> dict[Node, None]:
        return dict.fromkeys(u for v in node.outputs for u in self.users.get(v, ()))

    def _is_kept(self, node: Node) -> bool:
        return not self.kept_values.isdisjoint(node.outputs)

    def _user_groups(self, node: Node) -> list[Group]:
        """Returns the groups that the node may join: all groups that read it, or none if the node's
        result must be stored."""
        if self._is_kept(node):
            return []
        reading_groups = self._reading(node)
        may_join = len(reading_groups) == 1 or self.kinds[node] is NodeKind.MAP
        return reading_groups if may_join or self._may_repeat(node, reading_groups) else []

    def _reading(self, node: Node) -> list[Group]:
        """Returns the groups that read the node."""
        return list(dict.fromkeys(g for u in self._readers(node) for g in self.groups.get(u, ())))

    def _may_repeat(self, node: Node, groups: Sequence[Group]) -> bool:
        """Returns True if each of `groups` may compute the node again.  They may in two cases.
        Each reader of the node is computed by several groups already.  Or each group reads the node
        as an operand of contractions with constant weights, whose tiles need whole rows of the
        operand anyway."""
        if self.kinds[node] not in (NodeKind.POINTWISE, NodeKind.REDUCTION):
            return False
        # a reader that is in no group never runs
        users = [u for u in self._readers(node) if u in self.groups]
        if all(len(self.groups[u]) > 1 and self.kinds[u] is not NodeKind.MAP for u in users):
            return True
        readers = [self._anchors_fed(node, g) for g in groups]
        return all(anchors and all(map(self._weighted, anchors)) for anchors in readers)

    def _first_of_several(self, node: Node) -> Group | None:
        """Returns the group that runs first, if several groups read the node; else None."""
        reading_groups = self._reading(node)
        if self._is_kept(node) or len(reading_groups) < 2:
            return None
        return min(reading_groups, key=lambda g: self.position[g.sink])

    def _joins_stored(self, node: Node, group: Group) -> bool:
        """Returns True if pointwise work or a reduction that several groups read joins `group`, the
        first group to run.  The group then stores the node's result for the later groups.  If the
        node is the last step after an anchor (see `_completed`), the anchor may join too.  Nodes
        and groups with windows do not join."""
        if self.kinds[node] not in (NodeKind.POINTWISE, NodeKind.REDUCTION):
            return False
        if len(node.outputs) != 1 or self._way(node, group) is None:
            return False
        ways = [self._completed(node, _ANCHORS, group) or [node]]
        if any(map(_slides, (node, ways[0][-1], *group.anchors))):
            return False
        if self._is_anchor(node):  # it is no epilogue of the anchor before it
            ways.append([node])
        return any(
            self._sound(way, group, node.outputs) and self._accepted([group], [way], node.outputs)
            for way in ways
        )

    def _preparing(self, node: Node, group: Group) -> _Way:
        """Returns the nodes from `node`, which computes an operand of a contraction, back to an
        anchor.

        If all of them join, a tile computes each row of the operand once.  Returns None if the node
        reads data-dependent rows, because a kernel that gathers the rows first is faster.
        """
        expr = node_expr(node)
        if expr is not None and any(r.indirect for s in expr.stages for r in reads(s)):
            return None
        return self._completing(node, _ANCHORS, group)

    def _completing(self, node: Node, kinds: tuple[NodeKind, ...], group: Group) -> _Way:
        """Returns the nodes of `_completed` if they and their anchor may join the group; else
        None."""
        chain = self._completed(node, kinds, group)
        if chain is None or not self._persists(chain[-1], group):
            return None
        return self._if_sound(chain, group)

    def _whole_or_streaming(self, node: Node, group: Group) -> _Way:
        """Returns the node alone if a tile can hold its rows, else with the contraction before it.
        With the contraction, a tile may compute the rows in K-blocks instead (`streaming`)."""
        way = self._if_sound([node], group)
        if way is None and not self.model.scratch:
            return self._completing(node, (NodeKind.CONTRACTION,), group)
        return way

    def _passing_matrices(self, node: Node, group: Group) -> _Way:
        """Returns the node if it only copies whole matrices at data-dependent indices; else None.
        Contractions can read these matrices where they are stored."""
        expr = node_expr(node)
        if expr is None or not all(isinstance(b, Read) for s in expr.stages for b in s.body):
            return None
        kernel = self._joined_kernel((node, *group.members), group)[0]
        return self._if_sound([node], group) if chooses_matrices(kernel) else None

    def _completed(
        self, node: Node, kinds: tuple[NodeKind, ...], group: Group
    ) -> list[Node] | None:
        """Returns the nodes from `node` back to an anchor of `kinds`; None if there is none.
        `node` is the last step after the anchor: all nodes between the two are pointwise nodes and
        index maps.  No node outside of the returned nodes and `group` reads their results."""
        chain = [node]
        for member in chain:
            for value in member.inputs:
                if value not in self.producers or value in self.kept_values:
                    continue
                source = self.producers[value]
                if source in chain or source in self.joins or source in self.ends:
                    continue
                if not self._readers(source).keys() <= {*chain, *group.members}:
                    continue
                if self.kinds[source] in kinds:
                    return [*chain, source]
                if self.kinds[source] in (NodeKind.POINTWISE, NodeKind.MAP):
                    chain.append(source)
        return None

    def _add(self, node: Node, group: Group) -> None:
        group.members.insert(0, node)
        group.members.sort(key=self.position.__getitem__)
        self.groups.setdefault(node, []).append(group)
        if self._is_anchor(node):
            group.anchors.insert(0, node)

    def _joins(self, node: Node, groups: Sequence[Group]) -> bool:
        """Returns True if the node joins all of `groups`.  It joins if kernels with the node can be
        built, and if they are predicted to take no longer than without the node."""
        ways = all_known(self._way(node, group) for group in groups)
        return ways is not None and (
            self._accepted(groups, ways) or self._joins_completing(node, groups)
        )

    def _joins_completing(self, node: Node, groups: Sequence[Group]) -> bool:
        """Returns True if it saves time that `node` joins together with an anchor before it.

        `node` is computed from the anchor's result by pointwise nodes and index maps alone.
        """
        if len(groups) > 1 or not groups[0].anchors:
            return False
        chain = self._completing(node, _ANCHORS, groups[0])
        return chain is not None and self._accepted(groups, [chain])

    def _accepted(
        self, groups: Sequence[Group], ways: Sequence[list[Node]], extra: Sequence[Value] = ()
    ) -> bool:
        """Returns True if joining `ways`, a way for each group, saves time.  If so, records the
        nodes of the ways, so that they join when they are visited.  `extra` are values to store for
        other groups."""
        if not self._pays(groups, ways, extra):
            return False
        if len(groups) == 1:
            ways = [self._first_of(ways[0], groups[0], extra)]
        for way, group in zip_equal(ways, groups):
            for node in way[1:]:
                self.promises.setdefault(node, set()).add(group)
        return True

    def _way(self, node: Node, group: Group) -> _Way:
        """Returns `node` and the nodes that must join together with it; None if `node` cannot join
        the group."""
        pair = (node, group.sink)
        if node in self.joins or group.join is not None or not self.ends.isdisjoint(pair):
            return None
        kind, sink_kind = (self.kinds[n] for n in pair)
        if len(group.members) >= _MOST or NodeKind.OPAQUE in (kind, sink_kind):
            return None
        if kind in _ANCHORS:
            return self._way_of_anchor(node, group)
        fed = self._anchors_fed(node, group)
        if kind is not NodeKind.MAP and any(self.kinds[a] is NodeKind.CONTRACTION for a in fed):
            kernel = self._joined_kernel(group.members, group)[0]
            is_once = len(group.anchors) == 1 and combines_once(kernel)
            if is_once or self._completes(node, group):
                return self._if_sound([node], group)
            return self._preparing(node, group) or self._passing_matrices(node, group)
        return self._whole_or_streaming(node, group) if fed else self._if_sound([node], group)

    def _way_of_anchor(self, node: Node, group: Group) -> _Way:
        if group.anchors:
            return self._whole_or_streaming(node, group) if self._persists(node, group) else None
        rows = self.kinds[node] is NodeKind.REDUCTION and not _slides(node)
        sizes = {element_count(v.shape) for v in (*node.outputs, *group.sink.outputs)}
        if rows or len(sizes) == 1:
            return self._if_sound([node], group)
        return self._spreading(node, group)

    def _anchors_fed(self, node: Node, group: Group) -> list[Node]:
        """Returns the group's anchors that read the node's results, directly or through nodes that
        are no anchors."""
        reached = set(node.outputs)
        anchors = []
        for member in group.members:
            if not reached.isdisjoint(member.inputs):
                if member in group.anchors:
                    anchors.append(member)
                else:
                    reached.update(member.outputs)
        return anchors

    def _completes(self, node: Node, group: Group) -> bool:
        """Returns True if each reader of `node` in the group is pointwise work on results of an
        anchor of the group.  Tiles keep the result of this work for the next anchor."""
        readers = [m for m in group.members if not set(node.outputs).isdisjoint(m.inputs)]
        return not any(map(self._is_anchor, readers)) and all(
            self._follows_anchor(reader, group) for reader in readers
        )

    def _follows_anchor(self, node: Node, group: Group) -> bool:
        """Returns True if a node of the group is computed from a result of an anchor that is in the
        group, or that will join it."""
        chain = [node]
        for member in chain:
            for source in (self.producers[v] for v in member.inputs if v in self.producers):
                groups = (*self.groups.get(source, ()), *self.promises.get(source, ()))
                if source not in chain and group in groups:
                    chain.append(source)
        return any(map(self._is_anchor, chain[1:]))

    def _persists(self, node: Node, group: Group) -> bool:
        """Returns True if an anchor may join the group's anchors, so that a tile keeps rows from
        one anchor to the next.  Two contractions with constant weights do not join, because a tile
        would read the weights of both.  Groups with windows, whose tiles compute strips of whole
        rows, are an exception."""
        anchors = (node, *group.anchors)
        weighted = sum(map(self._weighted, anchors))
        return weighted <= 1 or any(map(_slides, anchors))

    def _weighted(self, node: Node) -> bool:
        """Returns True if a node is a contraction that reads a constant."""
        constant = any(v in self.graph.constants for v in node.inputs)
        return constant and self.kinds[node] is NodeKind.CONTRACTION

    def _spreading(self, node: Node, group: Group) -> _Way:
        """Returns [contraction, node that computes a factor of it] if both may join; else None.
        Each point of the sink must combine several elements of the contraction, and each element
        must be read once."""
        if self.kinds[node] is not NodeKind.CONTRACTION:
            return None
        if not combines_once(self._joined_kernel((node, *group.members), group)[0]):
            return None
        producers = [self.producers[v] for v in node.inputs if v in self.producers]
        spread = [n for n in producers if self.kinds[n] is NodeKind.POINTWISE]
        return self._if_sound([node, *spread], group) if len(spread) == 1 else None

    def _if_sound(self, nodes: list[Node], group: Group) -> _Way:
        return nodes if self._sound(nodes, group) else None

    # ---- prices ---------------------------------------------------------------------------------

    def _pays(
        self, groups: Sequence[Group], ways: Sequence[list[Node]], extra: Sequence[Value] = ()
    ) -> bool:
        """Returns True if the kernels of groups that nodes join are predicted to take no longer
        than without these nodes.  `ways` has the nodes that join each group, and `extra` has values
        to store for other groups.  Without a join, the nodes of the longest way are kernels of
        their own, or join the kernels of their producers.  Both alternatives are priced without and
        with `before`, the nodes from the end of the longest way back to an anchor."""
        if not extra and all(map(self._free, ways, groups)):
            return True
        pairs = zip_equal(ways, groups)
        joined_prices = [
            self._kernel_seconds((*way, *group.members), group, extra) for way, group in pairs
        ]
        if None in joined_prices:
            return True
        joined_seconds = sum((x or NO_TIME for x in joined_prices), NO_TIME)
        group_prices = (self._kernel_seconds(g.members, g) or NO_TIME for g in groups)
        group_seconds = sum(group_prices, NO_TIME)
        way = max(ways, key=len)
        completed = (self._completed(way[-1], _ANCHORS, groups[0]) or [])[1:]
        may_extend = len(groups) == 1 and not (extra and self._is_anchor(way[-1]))
        before = completed if may_extend else []

        def apart() -> Iterator[Seconds]:
            return (group_seconds + seconds for seconds in self._seconds_apart(way, before))

        joined = chain((joined_seconds,), self._with_anchor_before(way, before, groups[0]))
        return self.model.ledger.either(
            lambda: self._site(groups, ways, extra, way, before),
            ("join", joined),
            ("apart", apart),
            self.model.join_margin,
            way[0].loc,
        )

    def _site(
        self,
        groups: Sequence[Group],
        ways: Sequence[list[Node]],
        extra: Sequence[Value],
        way: Sequence[Node],
        before: Sequence[Node],
    ) -> Site:
        """Returns the site (the subject of a decision) of a join.  Its content is the kernels with
        and without the join, the kernel of each node of the longest `way`, and the kernel of the
        nodes `before`."""
        pairs = zip_equal(ways, groups)
        return site(
            "join",
            tuple(self._joined_kernel([*w, *g.members], g, extra) for w, g in pairs),
            tuple(self._joined_kernel(g.members, g) for g in groups),
            tuple(self._made_of([node]) for node in way),
            self._made_of(before) if before else None,
        )

    def _first_of(self, way: list[Node], group: Group, extra: Sequence[Value]) -> list[Node]:
        """Returns the nodes of a way to join: all of them, or the first nodes if it takes less time
        with the remaining nodes as a kernel of their own.  `extra` are values to store for other
        groups."""
        if len(way) < 2:
            return way
        joined = self._kernel_seconds((*way, *group.members), group, extra) or NO_TIME
        parts: list[Alternative[list[Node]]] = []
        for first, later in ((way[:n], way[n:]) for n in range(1, len(way))):
            ends = [n for n in later if not self._readers(n).keys() <= set(later)]
            if len(ends) > 1 or not self._sound(first, group, extra):
                continue
            seconds = self._kernel_seconds((*first, *group.members), group, extra) or NO_TIME
            name = f"first-{len(first)}"
            parts.append(Alternative(first, seconds + self._kernel(later), name=name))
        return self.model.ledger.decide(
            lambda: replace(self._site([group], [way], extra, way, ()), kind="join-part"),
            Alternative(way, joined, name="all"),
            parts,
            self.model.join_margin,
            way[0].loc,
        ).replacement

    def _with_anchor_before(
        self, way: list[Node], before: list[Node], group: Group
    ) -> Iterator[Seconds]:
        """Yields the seconds of a kernel of the group, `way` and `before`, minus the seconds of
        `before` alone.  Yields nothing if this kernel cannot be built, if `before` is empty, or if
        `way` does not end at an anchor."""
        nodes = [*way, *before]
        if before and self._is_anchor(way[-1]) and self._sound(nodes, group):
            yield (
                self._kernel_seconds([*nodes, *group.members], group) or NO_TIME
            ) - self._fewest_seconds(before)

    def _free(self, nodes: Sequence[Node], group: Group) -> bool:
        """Returns True if a join saves traffic and costs nothing, so that it needs no price.

        The join then repeats no work, and its stages exchange nothing through a tile's scratch.
        """
        fed = self._anchors_fed(nodes[0], group)
        if not fed and all(self.kinds[n] is NodeKind.MAP for n in nodes):
            return True
        elements, sink_elements = (
            element_count(n.outputs[0].shape) for n in (nodes[0], group.sink)
        )
        if len(nodes) > 1 or fed or not nonnegative(elements - sink_elements):
            return False
        return not self.exchanges(*self._joined_kernel([*nodes, *group.members], group))

    def _seconds_apart(self, nodes: list[Node], before: list[Node]) -> Iterator[Seconds]:
        """Yields the seconds of the nodes without a join, for several arrangements.

        The arrangements are: a kernel for each node; one kernel for all nodes, if it can be built;
        and one kernel for the nodes together with `before`, the nodes back to an anchor, minus the
        seconds of `before` alone.
        """
        yield sum((self._kernel([n]) for n in nodes), NO_TIME)
        if self._is_kernel(nodes):
            yield self._kernel(nodes)
        extended = [*nodes, *before]
        if before and not self._is_anchor(nodes[-1]):
            yield higher(NO_TIME, self._kernel(extended) - self._kernel(before))
        elif before and self.legal(*self._made_of(extended)):
            yield self._kernel(extended) - self._fewest_seconds(before)

    def _is_kernel(self, nodes: Sequence[Node]) -> bool:
        """Returns True if the nodes can be one kernel; the list has them in reverse order of
        execution."""
        *later, first = nodes
        group = Group(nodes[0], later[::-1], [*filter(self._is_anchor, later)])
        return not later or self._way(first, group) == [first]

    def _fewest_seconds(self, nodes: Sequence[Node]) -> Seconds:
        """Returns the lower of two prices: a kernel for each node, or one kernel for all."""
        return lower(sum((self._kernel([n]) for n in nodes), NO_TIME), self._kernel(nodes))

    def _made_of(self, nodes: Sequence[Node]) -> tuple[Expr, tuple[bool, ...]]:
        return self._composed(nodes, max(nodes, key=self.position.__getitem__).outputs)

    def _kernel(self, nodes: Sequence[Node]) -> Seconds:
        return self.seconds(*self._made_of(nodes)) or NO_TIME

    def _kernel_seconds(
        self, members: Sequence[Node], group: Group, extra: Sequence[Value] = ()
    ) -> Seconds | None:
        """Returns the price of a kernel of `members` that stores a group's results and `extra`."""
        return self.seconds(*self._joined_kernel(members, group, extra))

    def _joined_kernel(
        self, nodes: Sequence[Node], group: Group, extra: Sequence[Value] = ()
    ) -> tuple[Expr, tuple[bool, ...]]:
        """Returns the expression of a kernel of the nodes that stores a group's results and
        `extra`, and for each operand True if it is constant."""
        return self._composed(nodes, (*group.results(self.graph, self.users), *extra))

    def _sound(self, nodes: Sequence[Node], group: Group, extra: Sequence[Value] = ()) -> bool:
        """Returns True if a kernel of the group and `nodes` can be built and, if it has windows,
        its anchors save time by being in one kernel."""
        members = {*nodes, *group.members}
        results = (*group.results(self.graph, self.users), *extra)
        expr, constants = self._composed(members, results)
        # Nested index functions, such as reflections, may double an index with each level.
        if any(is_long(i) for s in expr.stages for node in reads(s) for i in node.indices):
            return False
        if not self.legal(expr, constants):
            return False
        if not any(map(_slides, members)):
            return True
        return self.model.ledger.either(
            lambda: site("window", *(self._composed(m, results) for m in (members, group.members))),
            ("join", [NO_TIME - self._gain(members, results)]),
            ("apart", lambda: [NO_TIME - self._gain(group.members, results)]),
            place=group.sink.loc,
        )

    def _gain(self, members: Collection[Node], results: Sequence[Value]) -> Seconds:
        """Returns the seconds that the anchors of a kernel of `members` save by being in one
        kernel."""
        if sum(map(self._is_anchor, members)) < 2:
            return NO_TIME
        return self.saved(*self._composed(members, results))

    def _composed(
        self, nodes: Collection[Node], results: Sequence[Value]
    ) -> tuple[Expr, tuple[bool, ...]]:
        """Returns the expression of a kernel of `nodes`, and for each operand True if it is
        constant."""
        return self.composed(tuple(sorted({*nodes}, key=self.position.__getitem__)), tuple(results))

    def _compose(self, members: tuple[Node, ...], results: Values) -> tuple[Expr, tuple[bool, ...]]:
        expr, values = compose(members, results, self.model.limits)
        return expr, tuple(v in self.graph.constants for v in values)

    def _saved(self, expr: Expr, constants: tuple[bool, ...]) -> Seconds:
        return self.model.gain(self._built(expr, constants))

    def _exchanges(self, expr: Expr, constants: tuple[bool, ...]) -> bool:
        """Returns True if stages of a kernel exchange values through a tile's scratch."""
        return any(b.is_local for b in self._built(expr, constants, collapsed=False).buffers)

    def _built(
        self, expr: Expr, constants: tuple[bool, ...], *, collapsed: bool = True
    ) -> TileGroup:
        """Returns the tile group of a legal kernel whose operands and results are all row-major."""
        storage, form = row_major_storage(expr, constants), self.model.form(expr, constants)
        return build_group(expr, *storage, collapsed=collapsed, limits=form)

    def _is_anchor(self, node: Node) -> bool:
        return self.kinds[node] in _ANCHORS
