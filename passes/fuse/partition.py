"""Partitions a graph's nodes into kernels: each group is a cone of nodes into one sink.

    conv -> add(bias) -> relu -> conv        { conv, add, relu }  { conv }
    matmul -> reshape -> transpose -> matmul { matmul, reshape, transpose } { matmul }

Going from the outputs up, a node joins the group of its users if they are all in one group and the
join keeps every element computed about once:

* pointwise work joins pointwise work, the epilogue of an anchor, or (if cheap) the reductions that
  read it;
* an anchor (a reduction or contraction) joins pointwise work that reads each of its elements once;
* plain index maps join every group that reads them, unless that makes a contraction's loads
  irregular.

A concatenation that `join` gives no kernel is a group of its own that nothing joins.
A group holds one anchor.  Only its sink's outputs are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tcc.errors import TccError
from tcc.ir.expr import Expr, Stage
from tcc.ir.graph import Graph, Node, Value, captures
from tcc.ir.group import TileGroup
from tcc.ir.index import linear_in, nonnegative
from tcc.ir.layout import row_major
from tcc.ir.op import Trait
from tcc.ir.scalar import Read
from tcc.ir.tile import Scope
from tcc.ir.types import element_count
from tcc.passes.fuse.compose import CHEAP, compose, is_contraction, node_expr
from tcc.passes.fuse.join import Join, find_joins
from tcc.passes.fuse.structure import Storage, build_group
from tcc.schedule.nest import product, weight


class Kind(Enum):
    """What a node is to the partition."""

    OPAQUE = "opaque"  # no expression: calls, control flow
    MAP = "map"  # an index map: each result element is an operand element
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"


@dataclass(frozen=True, slots=True)
class Traits:
    """Of a node: its kind, and operations per element outside reductions."""

    kind: Kind
    weight: int


@dataclass(slots=True)
class Group:
    """Nodes that become one kernel, in topological order; `sink` is the last."""

    sink: Node
    members: list[Node] = field(default_factory=list)
    anchor: Node | None = None
    join: Join | None = None

    def results(self, graph: Graph, users: dict[Value, list[Node]]) -> tuple[Value, ...]:
        """The sink's outputs that something reads."""
        outputs = set(graph.outputs)
        return tuple(v for v in self.sink.outputs if v in outputs or users.get(v))


def partition(graph: Graph) -> tuple[Group, ...]:
    """The groups in an order in which they can run; nodes without expression stand alone."""
    return _Partition(graph).run()


class _Partition:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = graph.users()
        self.kept = {*graph.outputs, *(v for pair in graph.aliases for v in pair)}
        for node in graph.nodes:
            self.kept.update(captures(node))
        self.position = {node: n for n, node in enumerate(graph.nodes)}
        self.traits = {node: classify(node) for node in graph.nodes}
        self.joins = find_joins(graph, seen_by_others(graph))
        self.groups: dict[Node, list[Group]] = {}
        self.sound: dict[Expr, bool] = {}

    def run(self) -> tuple[Group, ...]:
        order: list[Group] = []
        for node in reversed(self.graph.nodes):
            if not self._needed(node):
                continue
            targets = self._user_groups(node)
            if targets and all(self._joins(node, g) for g in targets):
                for group in targets:
                    self._add(node, group)
            else:
                group = Group(node, join=self.joins.get(node))
                order.append(group)
                self._add(node, group)
        return tuple(reversed(order))

    def _needed(self, node: Node) -> bool:
        """Whether anything that runs reads the node; nodes without outputs act by themselves, and
        calls may give a size that others use."""
        read = any(u in self.groups for v in node.outputs for u in self.users.get(v, ()))
        acts = not node.outputs or (node.op.call and Trait.OPAQUE in node.op.traits)
        return bool(read or acts or any(v in self.kept for v in node.outputs))

    def _user_groups(self, node: Node) -> list[Group]:
        """The groups that read the node, or none if it must be stored anyway."""
        if any(v in self.kept for v in node.outputs):
            return []
        found: list[Group] = []
        for value in node.outputs:
            for user in self.users.get(value, ()):
                found += (g for g in self.groups.get(user, ()) if g not in found)
        return found if len(found) == 1 or self.traits[node].kind is Kind.MAP else []

    def _add(self, node: Node, group: Group) -> None:
        group.members.insert(0, node)
        group.members.sort(key=self.position.__getitem__)
        self.groups.setdefault(node, []).append(group)
        if self.traits[node].kind in (Kind.REDUCTION, Kind.CONTRACTION):
            group.anchor = node

    def _joins(self, node: Node, group: Group) -> bool:
        if node in self.joins or group.join is not None:
            return False
        own, sink = self.traits[node].kind, self.traits[group.sink].kind
        if own is Kind.OPAQUE or sink is Kind.OPAQUE:
            return False
        if own in (Kind.REDUCTION, Kind.CONTRACTION):
            once = group.anchor is None and self._reads_once(node, group)
            return once and self._sound(node, group)
        if group.anchor is None or not self._feeds_anchor(node, group):
            return self._worth_repeating(node, group) and self._sound(node, group)
        if self.traits[group.anchor].kind is Kind.CONTRACTION and own is not Kind.MAP:
            return False
        return self.traits[node].weight <= CHEAP and self._sound(node, group)

    def _feeds_anchor(self, node: Node, group: Group) -> bool:
        """Whether the node's results reach the anchor inside the group."""
        reached = set(node.outputs)
        for member in group.members:
            if reached & {v for v in member.inputs if v is not None}:
                if member is group.anchor:
                    return True
                reached.update(member.outputs)
        return False

    def _reads_once(self, node: Node, group: Group) -> bool:
        sizes = {element_count(v.type.shape) for v in (*node.outputs, *group.sink.outputs)}
        return len(sizes) == 1

    def _worth_repeating(self, node: Node, group: Group) -> bool:
        """Costly work is not repeated for each element of a larger result."""
        if self.traits[node].weight <= CHEAP:
            return True
        own = element_count(node.outputs[0].type.shape)
        return nonnegative(own - element_count(group.sink.outputs[0].type.shape))

    def _sound(self, node: Node, group: Group) -> bool:
        """Whether the joined group has a structure that lowers well."""
        members = sorted([node, *group.members], key=self.position.__getitem__)
        expr, _ = compose(members, group.results(self.graph, self.users))
        found = self.sound.get(expr)
        if found is None:
            found = self.sound[expr] = lowers_well(expr)
        return found


def lowers_well(expr: Expr) -> bool:
    """Whether a kernel of `expr`, with everything row-major, holds nothing but blocks between its
    stages and loads its contractions' operands evenly."""
    operands = [Storage(t.dtype, t.shape, row_major(t.shape)) for t in expr.params if t]
    results = [Storage(t.dtype, t.shape, row_major(t.shape)) for t in expr.types]
    try:
        group = build_group(expr, operands, results, collapsed=False)
    except TccError:
        return False
    if any(b.scope is Scope.LOCAL for b in group.buffers):
        return False
    return all(_regular(group, n) for n in range(len(group.stages)))


def _regular(group: TileGroup, number: int) -> bool:
    """Whether a contraction's loads advance evenly along every loop."""
    stage = group.stages[number]
    if product(stage) is None:
        return True
    loops = (*stage.iters, *stage.reduce)
    return all(
        linear_in(access.offset, var) is not None
        for access in stage.accesses.values()
        for var in loops
    )


def seen_by_others(graph: Graph) -> set[Value]:
    """Values that more than kernels look at: the caller, bodies, calls and states."""
    seen = {*graph.inputs, *graph.outputs}
    seen.update(v for pair in graph.aliases for v in pair)
    for node in graph.nodes:
        if classify(node).kind is Kind.OPAQUE:
            seen.update(v for v in (*node.inputs, *node.outputs, *captures(node)) if v)
    return seen


def classify(node: Node) -> Traits:
    """The traits of a node, from its expression."""
    expr = node_expr(node)
    if expr is None or not node.outputs:
        return Traits(Kind.OPAQUE, 0)
    if any(is_contraction(s) for s in expr.stages):
        return Traits(Kind.CONTRACTION, 0)
    if any(s.monoid is not None for s in expr.stages):
        return Traits(Kind.REDUCTION, 0)
    if all(_is_map(s) for s in expr.stages):
        return Traits(Kind.MAP, 0)
    return Traits(Kind.POINTWISE, expr_weight(expr))


def expr_weight(expr: Expr) -> int:
    """Operations per element of the heaviest stage."""
    return max(weight(s) for s in expr.stages)


def _is_map(stage: Stage) -> bool:
    return all(isinstance(s, Read) and s.fill is None and not s.indirect for s in stage.body)
