"""Partitions a graph's nodes into kernels: each group is a cone of nodes into one sink.

    conv -> add(bias) -> relu -> conv        { conv, add, relu }  { conv }
    matmul -> reshape -> transpose -> matmul { matmul, reshape, transpose } { matmul }

Going from the outputs up, a node joins the groups of its users if a kernel of it can be made
(`_way`) and is predicted to take no longer than without the node (`_pays`):

* pointwise work joins pointwise work, the epilogue of an anchor, or the reductions that read it;
* an anchor (a reduction or contraction) joins pointwise work that reads each of its elements once,
  or an anchor that needs the rows of a unit (attention, a product and the normalisation of its
  rows); pointwise work between them is stored too where others read it;
* an index map joins every group that reads it, unless a product had better read it as stored;
* what hands on whole matrices that data choose (the weights of an expert) joins the contraction
  that multiplies them.

The price of a node apart is that of a kernel of its own, or what it adds to the kernel that it
would be the end of.  A node that does not pay by itself may do so together with the anchor that it
completes: then all nodes up to the anchor join, or the first of them where the others are cheaper
as a kernel of their own.  Without prices every kernel that can be made is taken.

A concatenation that `join` gives no kernel is a group of its own that nothing joins.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TypeAlias

from tcc.ir.expr import Expr, Stage, reads
from tcc.ir.expr.scalar import Read, walk
from tcc.ir.graph import Graph, Node, Value, Values, uses
from tcc.ir.index import Var, free_vars, nonnegative
from tcc.ir.index.names import is_long
from tcc.ir.op import Trait
from tcc.ir.tile import MemorySpace
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import element_count
from tcc.passes.fuse.combine import chooses_matrices, combines_once
from tcc.passes.fuse.compose import compose, is_contraction, node_expr
from tcc.passes.fuse.concat_in_place import Join, find_joins
from tcc.passes.fuse.cpu_legality import TYPICAL
from tcc.passes.fuse.structure import build_group, row_major_storage
from tcc.record import record
from tcc.schedule.backend import KernelModel
from tcc.schedule.nest import costly, weight

# Nodes of a kernel: a bound of the effort, for every join looks at all of them, and of no profit:
# no group of the models has half of it.
_MOST = 64


class NodeKind(Enum):
    """What a node is to the partition."""

    OPAQUE = "opaque"  # no expression: calls, control flow
    MAP = "map"  # an index map: each result element is an operand element, or a number of its place
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"


# The nodes that join a group together, the one that was asked about first; None for no join.
_Way: TypeAlias = "list[Node] | None"
# Work that sums.
_ANCHORS = (NodeKind.REDUCTION, NodeKind.CONTRACTION)


@record
class Traits:
    """Of a node: its kind, and operations per element outside reductions."""

    kind: NodeKind
    weight: int


@dataclass(slots=True, eq=False)
class Group:
    """Nodes that become one kernel, in topological order; `sink` is the last."""

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
        """The sink's outputs that something reads, and what else later kernels read."""
        read = (v for v in self.sink.outputs if users.get(v) or v in graph.outputs)
        return (*read, *self.extra)


def partition(
    graph: Graph, model: KernelModel = TYPICAL, ends: Collection[Node] = ()
) -> tuple[Group, ...]:
    """The groups in an order in which they can run; nodes without expression stand alone.

    `model.legal` has the last word on a join; the nodes `ends` stay alone.
    """
    return _Partition(graph, model, ends).run()


def _sizes(values: Sequence[Value | None]) -> set[Var]:
    """The symbols in the sizes of values."""
    return set(free_vars(*(d for v in values if v is not None for d in v.type.shape)))


class _Partition:
    def __init__(self, graph: Graph, model: KernelModel, ends: Collection[Node]) -> None:
        self.graph, self.model, self.ends = graph, model, frozenset(ends)
        self.users = graph.users()
        self.producers, self.kept = graph.producers(), graph.kept()
        self.position = {node: n for n, node in enumerate(graph.nodes)}
        self.traits = {node: classify(node) for node in graph.nodes}
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
            if targets and (self._promised(node, targets) or self._joins(node, targets)):
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
        """Whether anything that runs reads the node; nodes without outputs act by themselves, and
        calls and bodies may give a size that others use."""
        read = any(u in self.groups for u in self._readers(node))
        gives = node.op.call or not _sizes(node.inputs) >= _sizes(node.outputs)
        acts = not node.outputs or (gives and Trait.OPAQUE in node.op.traits)
        return bool(read or acts or self._is_kept(node))

    def _readers(self, node: Node) -> dict[Node, None]:
        return dict.fromkeys(u for v in node.outputs for u in self.users.get(v, ()))

    def _is_kept(self, node: Node) -> bool:
        return not self.kept.isdisjoint(node.outputs)

    def _user_groups(self, node: Node) -> list[Group]:
        """The groups that read the node, or none if it must be stored anyway."""
        if self._is_kept(node):
            return []
        found = self._reading(node)
        alone = len(found) == 1 or self.traits[node].kind is NodeKind.MAP
        return found if alone or self._may_repeat(node, found) else []

    def _reading(self, node: Node) -> list[Group]:
        """The groups that read the node."""
        return list(dict.fromkeys(g for u in self._readers(node) for g in self.groups.get(u, ())))

    def _may_repeat(self, node: Node, groups: Sequence[Group]) -> bool:
        """Whether several groups may do the node again: it prepares rows for their products, each
        unit of which makes the whole factor in any case."""
        if self.traits[node].kind not in (NodeKind.POINTWISE, NodeKind.REDUCTION):
            return False
        users = [u for u in self._readers(node) if u in self.groups]  # the others are not needed
        if all(len(self.groups[u]) > 1 and self.traits[u].kind is not NodeKind.MAP for u in users):
            return True
        fed = [self._anchors_fed(node, g) for g in groups]
        return all(f and all(map(self._weighted, f)) for f in fed)

    def _first_of_several(self, node: Node) -> Group | None:
        """The first to run of several groups that read the node."""
        found = self._reading(node)
        if self._is_kept(node) or len(found) < 2:
            return None
        return min(found, key=lambda g: self.position[g.sink])

    def _joins_stored(self, node: Node, group: Group) -> bool:
        """Whether pointwise work joins the first group that reads it, which then stores it for the
        later ones: where a reduction reads its rows, and the product it completes, if it completes
        one, comes too."""
        if self.traits[node].kind is not NodeKind.POINTWISE or len(node.outputs) != 1:
            return False
        if not group.anchors or any(Trait.WINDOW in a.op.traits for a in group.anchors):
            return False
        if self._way(node, group) is None:
            return False
        completed = self._completed(node, _ANCHORS, group) or [node]
        last = completed[-1]
        if last is not node and (
            self.traits[last].kind is NodeKind.REDUCTION or Trait.WINDOW in last.op.traits
        ):
            return False
        sound = self._sound(completed, group, stored=node.outputs)
        return sound and self._taken([group], [completed], stored=node.outputs)

    def _preparing(self, node: Node, group: Group) -> _Way:
        """The node where it makes a factor from the results of an anchor that comes too, so that a
        unit makes each row of the factor once.  Rows that data choose are better copied side by
        side."""
        return None if self._choosy(node) else self._completing(node, _ANCHORS, group)

    def _completing(self, node: Node, kinds: tuple[NodeKind, ...], group: Group) -> _Way:
        """The node together with the anchor of `kinds` that it completes."""
        chain = self._completed(node, kinds, group)
        if chain is None or not self._persists(chain[-1], group):
            return None
        return self._if_sound(chain, group)

    def _whole_or_streaming(self, node: Node, group: Group) -> _Way:
        """The node, if need be together with the product that it completes: rows that a unit cannot
        hold as they come from memory it may take a run at a time as it makes them."""
        found = self._if_sound([node], group)
        if found is None and not self.model.scratch:
            return self._completing(node, (NodeKind.CONTRACTION,), group)
        return found

    def _choosy(self, node: Node) -> bool:
        """Whether data choose what the node reads."""
        expr = node_expr(node)
        return expr is not None and any(r.indirect for s in expr.stages for r in reads(s))

    def _choosing(self, node: Node, group: Group) -> _Way:
        """The node where it hands on whole matrices that data choose, which products can read
        where they lie."""
        expr = node_expr(node)
        if expr is None or not all(isinstance(b, Read) for s in expr.stages for b in s.body):
            return None
        joined = self._joined((node, *group.members), group)[0]
        return self._if_sound([node], group) if chooses_matrices(joined) else None

    def _completed(
        self, node: Node, kinds: tuple[NodeKind, ...], group: Group
    ) -> list[Node] | None:
        """The node, the anchor of `kinds` whose results it completes, and what lies between."""
        chain = [node]
        for member in chain:
            for value in member.inputs:
                source = self.producers.get(value) if value is not None else None
                if source is None or source in chain or value in self.kept:
                    continue
                if source in self.joins or source in self.ends:
                    continue
                if not self._readers(source).keys() <= {*chain, *group.members}:
                    continue
                if self.traits[source].kind in kinds:
                    return [*chain, source]
                if self.traits[source].kind in (NodeKind.POINTWISE, NodeKind.MAP):
                    chain.append(source)
        return None

    def _add(self, node: Node, group: Group) -> None:
        group.members.insert(0, node)
        group.members.sort(key=self.position.__getitem__)
        self.groups.setdefault(node, []).append(group)
        if self._is_anchor(node):
            group.anchors.insert(0, node)

    def _joins(self, node: Node, groups: Sequence[Group]) -> bool:
        """Whether the node joins all of `groups`: kernels of it can be made, and are predicted to
        take no longer than without it."""
        ways = [self._way(node, group) for group in groups]
        found = [way for way in ways if way is not None]
        if len(found) < len(ways):
            return False
        return self._taken(groups, found) or self._joins_completing(node, groups)

    def _joins_completing(self, node: Node, groups: Sequence[Group]) -> bool:
        """Whether a node that does not pay by itself does so with the anchor before it."""
        if len(groups) > 1 or not groups[0].anchors:
            return False
        chain = self._completing(node, _ANCHORS, groups[0])
        return chain is not None and self._taken(groups, [chain])

    def _taken(
        self, groups: Sequence[Group], ways: Sequence[list[Node]], stored: Sequence[Value] = ()
    ) -> bool:
        """Whether the groups with their `ways` pay; then the nodes of these will join them."""
        if not self._pays(groups, ways, stored):
            return False
        if len(groups) == 1 and not stored:
            ways = [self._first_of(ways[0], groups[0])]
        for way, group in zip(ways, groups, strict=True):
            for node in way[1:]:
                self.promises.setdefault(node, set()).add(group)
        return True

    def _promised(self, node: Node, groups: Sequence[Group]) -> bool:
        """Whether the node was priced, and taken, as a part of all that joined `groups`."""
        return self.promises.get(node, set()) >= set(groups)

    def _way(self, node: Node, group: Group) -> _Way:
        """What joins if the node does: itself, and what makes its join worth while; None where no
        sound kernel holds it."""
        if (
            node in self.joins
            or group.join is not None
            or not self.ends.isdisjoint((node, group.sink))
        ):
            return None
        if len(group.members) >= _MOST:
            return None
        own, sink = self.traits[node].kind, self.traits[group.sink].kind
        if own is NodeKind.OPAQUE or sink is NodeKind.OPAQUE:
            return None
        if own in _ANCHORS:
            return self._way_of_anchor(node, group)
        fed = self._anchors_fed(node, group)
        if own is not NodeKind.MAP and any(
            self.traits[a].kind is NodeKind.CONTRACTION for a in fed
        ):
            if len(group.anchors) == 1 and combines_once(self._joined(group.members, group)[0]):
                return self._if_sound([node], group)
            return self._preparing(node, group) or self._choosing(node, group)
        return self._whole_or_streaming(node, group) if fed else self._if_sound([node], group)

    def _way_of_anchor(self, node: Node, group: Group) -> _Way:
        if group.anchors:
            return self._whole_or_streaming(node, group) if self._persists(node, group) else None
        rows = self.traits[node].kind is NodeKind.REDUCTION and Trait.WINDOW not in node.op.traits
        if rows or self._reads_once(node, group):
            return self._if_sound([node], group)
        return self._spreading(node, group)

    def _anchors_fed(self, node: Node, group: Group) -> list[Node]:
        """The anchors that the node's results reach inside the group without passing another."""
        reached = set(node.outputs)
        found = []
        for member in group.members:
            if reached & {v for v in member.inputs if v is not None}:
                if member in group.anchors:
                    found.append(member)
                else:
                    reached.update(member.outputs)
        return found

    def _persists(self, node: Node, group: Group) -> bool:
        """Whether an anchor may join others: rows stay in a unit from one to the next.  Of two
        products with weights of their own each would wait for the other's, unless windows read
        strips of rows."""
        anchors = (node, *group.anchors)
        weighted = sum(map(self._weighted, anchors))
        return weighted <= 1 or any(Trait.WINDOW in a.op.traits for a in anchors)

    def _weighted(self, node: Node) -> bool:
        """Whether a node is a product by a constant."""
        constant = any(v in self.graph.constants for v in node.inputs)
        return constant and self.traits[node].kind is NodeKind.CONTRACTION

    def _reads_once(self, node: Node, group: Group) -> bool:
        sizes = {element_count(v.type.shape) for v in (*node.outputs, *group.sink.outputs)}
        return len(sizes) == 1

    def _spreading(self, node: Node, group: Group) -> _Way:
        """The node where points of the sink are made of several elements of a product each, no two
        of the same, and a node that makes a factor of the product from fewer elements comes too."""
        if self.traits[node].kind is not NodeKind.CONTRACTION:
            return None
        if not combines_once(self._joined((node, *group.members), group)[0]):
            return None
        made = [self.producers[v] for v in node.inputs if v is not None and v in self.producers]
        spread = [n for n in made if self.traits[n].kind is NodeKind.POINTWISE]
        return self._if_sound([node, *spread], group) if len(spread) == 1 else None

    def _if_sound(self, nodes: list[Node], group: Group) -> _Way:
        return nodes if self._sound(nodes, group) else None

    # ---- prices ---------------------------------------------------------------------------------

    def _pays(
        self, groups: Sequence[Group], ways: Sequence[list[Node]], stored: Sequence[Value] = ()
    ) -> bool:
        """Whether the groups with their `ways` are predicted to take no longer than without, where
        the nodes of the longest way are kernels of their own or complete what makes their
        operands; each with or without the anchor before it."""
        if not stored and all(map(self._free, ways, groups)):
            return True
        pairs = zip(ways, groups, strict=True)
        both = [self._alone((*way, *group.members), group, stored) for way, group in pairs]
        if None in both:
            return True
        joined = sum(x or 0.0 for x in both)
        apart = sum(self._alone(g.members, g) or 0.0 for g in groups)
        way = max(ways, key=len)
        completed = (self._completed(way[-1], _ANCHORS, groups[0]) or [])[1:]
        alone = len(groups) == 1 and not (stored and self._is_anchor(way[-1]))
        before = completed if alone else []

        def pays(joined: float) -> bool:
            own = self._seconds_apart(way, before)
            return all(joined <= (apart + each) * self.model.tolerance for each in own)

        return pays(joined) or any(map(pays, self._with_anchor_before(way, before, groups[0])))

    def _first_of(self, way: list[Node], group: Group) -> list[Node]:
        """The nodes of a way that pays that had better join: all, or the first alone where a kernel
        of the others is predicted to take less."""
        best = way
        least = self._alone((*way, *group.members), group) or 0.0
        least /= self.model.tolerance
        for first, rest in ((way[:n], way[n:]) for n in range(1, len(way))):
            ends = [n for n in rest if not self._readers(n).keys() <= set(rest)]
            if len(ends) > 1 or not self._sound(first, group):
                continue
            seconds = (self._alone((*first, *group.members), group) or 0.0) + self._kernel(rest)
            if seconds < least:
                best, least = first, seconds
        return best

    def _with_anchor_before(
        self, way: list[Node], before: list[Node], group: Group
    ) -> Iterator[float]:
        """Seconds that the anchor before an anchor leaves of a kernel with both, where that can be
        made."""
        made = [*way, *before]
        if before and self._is_anchor(way[-1]) and self._sound(made, group):
            yield (self._alone([*made, *group.members], group) or 0.0) - self._least(before)

    def _free(self, nodes: Sequence[Node], group: Group) -> bool:
        """Whether a join saves traffic and costs nothing: it repeats no work, and its stages
        exchange nothing through a unit's scratch."""
        fed = self._anchors_fed(nodes[0], group)
        if not fed and all(self.traits[n].kind is NodeKind.MAP for n in nodes):
            return True
        own, sink = (element_count(n.outputs[0].type.shape) for n in (nodes[0], group.sink))
        if len(nodes) > 1 or fed or not nonnegative(own - sink):
            return False
        return not self.exchanges(*self._joined([*nodes, *group.members], group))

    def _seconds_apart(self, nodes: list[Node], before: list[Node]) -> Iterator[float]:
        """Seconds of the nodes in one kernel each, in one where that can be made, and beyond those
        of the anchor `before` them in a kernel with it."""
        yield sum(self._kernel([n]) for n in nodes)
        if self._is_kernel(nodes):
            yield self._kernel(nodes)
        made = [*nodes, *before]
        if before and not self._is_anchor(nodes[-1]):
            yield max(0.0, self._kernel(made) - self._kernel(before))
        elif before and self.legal(*self._made_of(made)):
            yield self._kernel(made) - self._least(before)

    def _is_kernel(self, nodes: Sequence[Node]) -> bool:
        """Whether the first to run of the nodes, which stands last, joins the others."""
        *others, first = nodes
        group = Group(nodes[0], others[::-1], [*filter(self._is_anchor, others)])
        return not others or self._way(first, group) == [first]

    def _least(self, nodes: Sequence[Node]) -> float:
        """Seconds of the nodes in one kernel each, or in one, whichever are less."""
        return min(sum(self._kernel([n]) for n in nodes), self._kernel(nodes))

    def _made_of(self, nodes: Sequence[Node]) -> tuple[Expr, tuple[bool, ...]]:
        return self._composed(nodes, max(nodes, key=self.position.__getitem__).outputs)

    def _kernel(self, nodes: Sequence[Node]) -> float:
        return self.seconds(*self._made_of(nodes)) or 0.0

    def _alone(
        self, members: Sequence[Node], group: Group, stored: Sequence[Value] = ()
    ) -> float | None:
        """Seconds of a kernel of `members` with the results of a group and what is `stored`."""
        return self.seconds(*self._joined(members, group, stored))

    def _joined(
        self, nodes: Sequence[Node], group: Group, stored: Sequence[Value] = ()
    ) -> tuple[Expr, tuple[bool, ...]]:
        """A kernel of the nodes with the results of a group and what is `stored`."""
        return self._composed(nodes, (*group.results(self.graph, self.users), *stored))

    def _sound(self, nodes: Sequence[Node], group: Group, stored: Sequence[Value] = ()) -> bool:
        """Whether the group joined by `nodes` has a structure that lowers well."""
        members = {*nodes, *group.members}
        results = (*group.results(self.graph, self.users), *stored)
        expr, constants = self._composed(members, results)
        # Copies of an index inside one another, as of reflections, may double with each.
        if any(is_long(i) for s in expr.stages for node in reads(s) for i in node.indices):
            return False
        if not self.legal(expr, constants):
            return False
        if not any(Trait.WINDOW in m.op.traits for m in members):
            return True
        return self._gain(members, results) >= self._gain(group.members, results)

    def _gain(self, members: Collection[Node], results: Sequence[Value]) -> float:
        """Cycles that the anchors of a kernel of `members` save by being in one."""
        if sum(map(self._is_anchor, members)) < 2:
            return 0.0
        return self.saved(*self._composed(members, results))

    def _composed(
        self, nodes: Collection[Node], results: Sequence[Value]
    ) -> tuple[Expr, tuple[bool, ...]]:
        """The expression of a kernel of `nodes`, and which of its operands are constants."""
        return self.composed(tuple(sorted({*nodes}, key=self.position.__getitem__)), tuple(results))

    def _compose(self, members: tuple[Node, ...], results: Values) -> tuple[Expr, tuple[bool, ...]]:
        expr, values = compose(members, results, self.model.limits)
        return expr, tuple(v in self.graph.constants for v in values)

    def _saved(self, expr: Expr, constants: tuple[bool, ...]) -> float:
        return self.model.gain(self._built(expr, constants))

    def _exchanges(self, expr: Expr, constants: tuple[bool, ...]) -> bool:
        """Whether stages of a kernel exchange values through a unit's scratch."""
        built = self._built(expr, constants, collapsed=False)
        return any(b.scope is MemorySpace.LOCAL for b in built.buffers)

    def _built(
        self, expr: Expr, constants: tuple[bool, ...], *, collapsed: bool = True
    ) -> TileGroup:
        """The group of a legal kernel, with everything row-major."""
        storage, form = row_major_storage(expr, constants), self.model.form(expr, constants)
        return build_group(expr, *storage, collapsed=collapsed, limits=form)

    def _is_anchor(self, node: Node) -> bool:
        return self.traits[node].kind in _ANCHORS


def seen_by_others(graph: Graph) -> set[Value]:
    """Values that more than kernels look at: the caller, bodies, calls and states.  Their types and
    their storage, row-major, are what these take."""
    seen = {*graph.inputs, *graph.outputs}
    seen.update(v for pair in graph.aliases for v in pair)
    for node in graph.nodes:
        if classify(node).kind is NodeKind.OPAQUE:
            seen.update((*uses(node), *node.outputs))
    return seen


def classify(node: Node) -> Traits:
    """The traits of a node, from its expression."""
    expr = node_expr(node)
    if expr is None or not node.outputs:
        return Traits(NodeKind.OPAQUE, 0)
    if any(is_contraction(s) for s in expr.stages):
        return Traits(NodeKind.CONTRACTION, 0)
    if any(s.monoid is not None for s in expr.stages):
        return Traits(NodeKind.REDUCTION, 0)
    if all(_is_map(s) for s in expr.stages):
        return Traits(NodeKind.MAP, 0)
    return Traits(NodeKind.POINTWISE, max(map(weight, expr.stages)))


def _is_map(stage: Stage) -> bool:
    if not reads(stage):
        return not any(map(costly, walk(*stage.body)))
    return all(isinstance(s, Read) and s.fill is None and not s.indirect for s in stage.body)
