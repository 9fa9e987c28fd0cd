"""Partitions a graph's nodes into kernels: each group is a cone of nodes into one sink.

    conv -> add(bias) -> relu -> conv        { conv, add, relu }  { conv }
    matmul -> reshape -> transpose -> matmul { matmul, reshape, transpose } { matmul }

Going from the outputs up, a node joins the group of its users if they are all in one group and the
join keeps every element computed about once:

* pointwise work joins pointwise work, the epilogue of an anchor, or (if cheap) the reductions that
  read it;
* an anchor (a reduction or contraction) joins pointwise work that reads each of its elements once;
* plain index maps join every group that reads them, unless that makes a contraction's loads
  irregular;
* what hands on whole matrices that data choose (the weights of an expert) joins the contraction
  that multiplies them.

A concatenation that `join` gives no kernel is a group of its own that nothing joins.
* an anchor joins another if the rows of one unit are what the other needs (attention, a product and
  the normalisation of its rows); pointwise work between them is stored too where others read it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from tcc.ir.expr import Expr, Stage, reads
from tcc.ir.expr.scalar import Read
from tcc.ir.graph import Graph, Node, Value, captures, uses
from tcc.ir.index import as_int, nonnegative
from tcc.ir.op import Trait
from tcc.ir.types import element_count
from tcc.passes.fuse.combine import chooses_matrices, combines_once
from tcc.passes.fuse.compose import compose, is_contraction, node_expr
from tcc.passes.fuse.concat_in_place import Join, find_joins
from tcc.passes.fuse.cpu_legality import TYPICAL
from tcc.passes.fuse.structure import build_group, row_major_storage
from tcc.record import record
from tcc.schedule.backend import KernelModel
from tcc.schedule.nest import weight

# Nodes of a kernel: with so many its work hides its traffic, and every join looks at all of them.
_MOST = 128


class NodeKind(Enum):
    """What a node is to the partition."""

    OPAQUE = "opaque"  # no expression: calls, control flow
    MAP = "map"  # an index map: each result element is an operand element
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"


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

    def results(self, graph: Graph, users: dict[Value, list[Node]]) -> tuple[Value, ...]:
        """The sink's outputs that something reads, and what else later kernels read."""
        read = (v for v in self.sink.outputs if users.get(v) or v in graph.outputs)
        return (*read, *self.extra)


def partition(
    graph: Graph, model: KernelModel = TYPICAL, ends: Collection[Node] = ()
) -> tuple[Group, ...]:
    """The groups in an order in which they can run; nodes without expression stand alone.

    `model.legal` has the last word on a join; nothing joins across the nodes `ends`.
    """
    return _Partition(graph, model, ends).run()


class _Partition:
    def __init__(self, graph: Graph, model: KernelModel, ends: Collection[Node]) -> None:
        self.graph, self.model, self.ends = graph, model, ends
        self.users = graph.users()
        self.producers = {v: n for n in graph.nodes for v in n.outputs}
        self.kept = {*graph.outputs, *(v for pair in graph.aliases for v in pair)}
        for node in graph.nodes:
            self.kept.update(captures(node))
        self.position = {node: n for n, node in enumerate(graph.nodes)}
        self.traits = {node: classify(node) for node in graph.nodes}
        self.joins = find_joins(graph, seen_by_others(graph), model.limits.launch_bytes)
        self.groups: dict[Node, list[Group]] = {}
        self.legal, self.saved = cache(model.legal), cache(self._saved)

    def run(self) -> tuple[Group, ...]:
        order: list[Group] = []
        for node in reversed(self.graph.nodes):
            if not self._needed(node):
                continue
            targets = self._user_groups(node)
            if targets and all(self._joins(node, g) for g in targets):
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
        calls may give a size that others use."""
        read = any(u in self.groups for u in self._readers(node))
        acts = not node.outputs or (node.op.call and Trait.OPAQUE in node.op.traits)
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
        """Whether several groups may do the node again: it prepares few rows for their products,
        each unit of which makes the whole factor in any case."""
        if self.traits[node].kind not in (NodeKind.POINTWISE, NodeKind.REDUCTION):
            return False
        rows = as_int(element_count(node.outputs[0].type.shape[:-1]))
        if rows is None or rows > self.model.limits.few_rows:
            return False
        users = self._readers(node)
        if all(len(self.groups[u]) > 1 and self.traits[u].kind is not NodeKind.MAP for u in users):
            return True
        fed = [self._anchors_fed(node, g) for g in groups]
        return all(f and all(map(self._weights, f)) for f in fed)

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
        if not self._joins(node, group):
            return False
        completed = self._completed(node, _ANCHORS, group) or [node]
        last = completed[-1]
        if last is not node and (
            self.traits[last].kind is NodeKind.REDUCTION or Trait.WINDOW in last.op.traits
        ):
            return False
        return self._sound(completed, group, stored=node.outputs)

    def _prepares(self, node: Node, group: Group) -> bool:
        """Whether pointwise work makes a factor from the results of an anchor that comes too, so
        that a unit makes each row of the factor once.  Rows that data choose are better copied side
        by side."""
        return not self._choosy(node) and self._joins_completed(node, _ANCHORS, group)

    def _joins_completed(self, node: Node, kinds: tuple[NodeKind, ...], group: Group) -> bool:
        """Whether the node joins together with the anchor of `kinds` that it completes."""
        chain = self._completed(node, kinds, group)
        return chain is not None and self._persists(chain[-1], group) and self._sound(chain, group)

    def _sound_or_streams(self, node: Node, group: Group) -> bool:
        """Whether the node joins, if need be together with the product that it completes: rows that
        a unit cannot hold as they come from memory it may take a run at a time as it makes them."""
        return self._sound([node], group) or (
            not self.model.scratch and self._joins_completed(node, (NodeKind.CONTRACTION,), group)
        )

    def _choosy(self, node: Node) -> bool:
        """Whether data choose what the node reads."""
        expr = node_expr(node)
        return expr is not None and any(r.indirect for s in expr.stages for r in reads(s))

    def _chooses(self, node: Node, group: Group) -> bool:
        """Whether the node hands on whole matrices that data choose, which products can read where
        they lie."""
        expr = node_expr(node)
        if expr is None or not all(isinstance(b, Read) for s in expr.stages for b in s.body):
            return False
        joined = self._expr((node, *group.members), group)
        return chooses_matrices(joined) and self._sound([node], group)

    def _completed(
        self, node: Node, kinds: tuple[NodeKind, ...], group: Group
    ) -> list[Node] | None:
        """The node, the anchor of `kinds` whose results it completes, and what lies between."""
        chain = [node]
        for member in chain:
            for value in member.inputs:
                source = self.producers.get(value) if value is not None else None
                if source is None or source in chain or value in self.kept or source in self.joins:
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

    def _joins(self, node: Node, group: Group) -> bool:
        if node in self.joins or node in self.ends or group.join is not None:
            return False
        if len(group.members) >= _MOST:
            return False
        own, sink = self.traits[node].kind, self.traits[group.sink].kind
        if own is NodeKind.OPAQUE or sink is NodeKind.OPAQUE:
            return False
        if own in _ANCHORS:
            if group.anchors:
                return self._persists(node, group) and self._sound_or_streams(node, group)
            rows = own is NodeKind.REDUCTION and Trait.WINDOW not in node.op.traits
            if rows or self._reads_once(node, group):
                return self._sound([node], group)
            return self._spreads_first(node, group)
        fed = self._anchors_fed(node, group)
        if not fed:
            return self._worth_repeating(node, group) and self._sound([node], group)
        if own is not NodeKind.MAP and any(
            self.traits[a].kind is NodeKind.CONTRACTION for a in fed
        ):
            if len(group.anchors) == 1 and combines_once(self._expr(group.members, group)):
                return self._sound([node], group)
            return self._prepares(node, group) or self._chooses(node, group)
        return self.traits[node].weight <= self.model.limits.cheap and self._sound_or_streams(
            node, group
        )

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
        products with weights of their own each would wait for the other's, unless a core's cache
        holds the weights of all."""
        anchors = (node, *group.anchors)
        weights = [size for a in anchors if (size := self._weights(a))]
        if any(Trait.WINDOW in a.op.traits for a in anchors):
            return sum(weights) <= self.model.limits.near
        return len(weights) <= 1

    def _weights(self, node: Node) -> int:
        """Bytes of the constants of a product."""
        if self.traits[node].kind is not NodeKind.CONTRACTION:
            return 0
        constants = [v.type for v in node.inputs if v is not None and v in self.graph.constants]
        return sum((as_int(element_count(t.shape)) or 0) * t.dtype.bytes for t in constants)

    def _reads_once(self, node: Node, group: Group) -> bool:
        sizes = {element_count(v.type.shape) for v in (*node.outputs, *group.sink.outputs)}
        return len(sizes) == 1

    def _spreads_first(self, node: Node, group: Group) -> bool:
        """Whether points of the sink are made of several elements of a product each, no two of the
        same, and a node that makes a factor of the product from fewer elements comes too."""
        if self.traits[node].kind is not NodeKind.CONTRACTION:
            return False
        if not combines_once(self._expr((node, *group.members), group)):
            return False
        made = [self.producers[v] for v in node.inputs if v is not None and v in self.producers]
        spread = [n for n in made if self.traits[n].kind is NodeKind.POINTWISE]
        return len(spread) == 1 and self._sound([*spread, node], group)

    def _expr(self, members: Sequence[Node], group: Group) -> Expr:
        return compose(members, group.results(self.graph, self.users), self.model.limits)[0]

    def _worth_repeating(self, node: Node, group: Group) -> bool:
        """Costly work is not repeated for each element of a larger result."""
        if self.traits[node].weight <= self.model.limits.cheap:
            return True
        own = element_count(node.outputs[0].type.shape)
        return nonnegative(own - element_count(group.sink.outputs[0].type.shape))

    def _sound(self, nodes: Sequence[Node], group: Group, stored: Sequence[Value] = ()) -> bool:
        """Whether the group joined by `nodes` has a structure that lowers well."""
        members = sorted({*nodes, *group.members}, key=self.position.__getitem__)
        results = (*group.results(self.graph, self.users), *stored)
        if not self.legal(*self._composed(members, results)):
            return False
        if not any(Trait.WINDOW in m.op.traits for m in members):
            return True
        return self._gain(members, results) >= self._gain(group.members, results)

    def _gain(self, members: Sequence[Node], results: Sequence[Value]) -> float:
        """Cycles that the anchors of a kernel of `members` save by being in one."""
        if sum(map(self._is_anchor, members)) < 2:
            return 0.0
        return self.saved(*self._composed(members, results))

    def _composed(
        self, members: Sequence[Node], results: Sequence[Value]
    ) -> tuple[Expr, tuple[bool, ...]]:
        """The expression of a kernel of `members`, and which of its operands are constants."""
        expr, values = compose(members, results, self.model.limits)
        return expr, tuple(v in self.graph.constants for v in values)

    def _saved(self, expr: Expr, constants: tuple[bool, ...]) -> float:
        built = build_group(expr, *row_major_storage(expr, constants), limits=self.model.limits)
        return self.model.gain(built)

    def _is_anchor(self, node: Node) -> bool:
        return self.traits[node].kind in _ANCHORS


def seen_by_others(graph: Graph) -> set[Value]:
    """Values that more than kernels look at: the caller, bodies, calls and states."""
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
    return Traits(NodeKind.POINTWISE, expr_weight(expr))


def expr_weight(expr: Expr) -> int:
    """Operations per element of the heaviest stage."""
    return max(weight(s) for s in expr.stages)


def _is_map(stage: Stage) -> bool:
    return all(isinstance(s, Read) and s.fill is None and not s.indirect for s in stage.body)
