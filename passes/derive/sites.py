"""Sites: nodes of a graph whose results are sums of products of what they read together.

    %s = matmul(%q, %kt) ; %y = matmul(%s, %v)       one site: its result is a sum over two loops

A site ends at a sink and goes up along values that one node reads, once and as a factor.  Nodes are
taken by what their expressions compute, so that ops and other expressions count alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, Handle, Node, Value, walk_graphs
from tcc.ir.index import as_int
from tcc.ir.types import element_count
from tcc.passes.derive.algebra.terms import WIDE, Flattened, is_near_one
from tcc.passes.derive.convert import from_expr
from tcc.passes.derive.edit import with_sources
from tcc.passes.derive.record import Region, Stage, reads_inside
from tcc.passes.fuse.compose import node_expr
from tcc.passes.fuse.partition import NodeKind, classify
from tcc.record import entity

# Nodes of a site, and those behind and before it that are priced with it.
_MOST, _AFTER, _BEFORE = 24, 6, 4


class Role(Enum):
    """What a value is to nodes that read it and do not make it."""

    CONSTANT = "constant"
    GIVEN = "given"  # an input of the graph, in the caller's layout
    STORED = "stored"  # another kernel's, in the layout that suits both


@entity
class Site:
    """`nodes` in order, the last of which is the sink, which compute its result from `operands`,
    in order of first use; of these `constants` tells whether they are known ahead of the run, and
    `freed` whether they are constants that nothing else reads.

    `around` are these and the nodes that may share kernels with them, in order, `read` what they
    read that others make, and `shown` what others read of theirs: in the caller's layout where it
    is given, else stored.
    """

    nodes: tuple[Node, ...]
    operands: tuple[Value, ...]
    constants: tuple[bool, ...]
    freed: tuple[bool, ...]
    around: tuple[Node, ...]
    read: Mapping[Value, Role]
    shown: Mapping[Value, Role]

    @property
    def sink(self) -> Node:
        return self.nodes[-1]

    @property
    def name(self) -> str:
        """Where the sink comes from, or what its result is called."""
        return self.sink.loc or self.sink.outputs[0].name

    def places_of(self, nodes: Sequence[Node]) -> tuple[int, ...]:
        """Where nodes stand among those around."""
        return tuple(map(self.around.index, nodes))

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for sites that compute the same among neighbours that compute the same, whatever
        their values are called."""
        numbers: dict[Value, int] = {}
        parts: list[Any] = []
        for node in self.around:
            operands = tuple(
                v and (numbers.setdefault(v, len(numbers)), v.type, self.read.get(v))
                for v in node.inputs
            )
            results = tuple((numbers.setdefault(v, len(numbers)), v.type) for v in node.outputs)
            parts.append((node.op.name, node.attrs, operands, results))
        shown = tuple((numbers[v], role) for v, role in self.shown.items())
        return tuple(parts), shown, self.places_of(self.nodes)


def sites(graph: Graph) -> Iterator[Site]:
    """The sums of products of a graph and its bodies, every node in at most one."""
    for scope in scopes(graph):
        yield from scope.sums()


def scopes(graph: Graph) -> Iterator[Scope]:
    """A graph and its bodies."""
    known: dict[Value, Handle] = {}
    for part in walk_graphs(graph):
        known.update(part.constants)
        yield Scope(part, known)


class Scope:
    """A graph or a body in which sites are found; `known` are the constants that it may read."""

    def __init__(self, graph: Graph, known: Mapping[Value, Handle]) -> None:
        self.graph, self.known = graph, known
        self.users, self.producers, self.kept = graph.users(), graph.producers(), graph.kept()
        self.order = {node: n for n, node in enumerate(graph.nodes)}

    def sums(self) -> Iterator[Site]:
        """The sums of products, every node in at most one."""
        taken: set[Node] = set()
        for node in reversed(self.graph.nodes):
            if node in taken or self._linear(node) is None:
                continue
            nodes = self._grown(node, taken)
            taken.update(nodes)
            if any(classify(n).kind not in (NodeKind.MAP, NodeKind.POINTWISE) for n in nodes):
                yield self.site(nodes, self._neighbours(nodes))

    def _linear(self, node: Node) -> tuple[bool, ...] | None:
        """Of each operand whether the node's result is a sum of products in which it is a factor
        once; None for a node whose result is none."""
        if len(node.outputs) != 1 or node.outputs[0].type.dtype not in WIDE:
            return None
        expr = node_expr(node)
        found = None if expr is None else _linear_params(expr)
        return None if found is None or self._has_far_number(node) else found

    def _has_far_number(self, node: Node) -> bool:
        """Whether a node reads a single number that is not to be moved."""
        for value in node.inputs:
            handle = None if value is None else self.known.get(value)
            if value is None or handle is None or as_int(element_count(value.type.shape)) != 1:
                continue
            array = np.asarray(self.graph.store.get(handle)).reshape(-1)
            if value.type.dtype in WIDE and not is_near_one(float(array[0])):
                return True
        return False

    def _grown(self, sink: Node, taken: set[Node]) -> list[Node]:
        found = [sink]
        for node in found:
            linear = self._linear(node) or ()
            for value, factor in zip(node.inputs, linear, strict=True):
                before = None if value is None else self.producers.get(value)
                if value is None or before is None or not factor or before in taken:
                    continue
                alone = len(self.users[value]) == 1 and value not in self.kept
                if alone and len(found) < _MOST and self._linear(before) is not None:
                    found.append(before)
        return sorted(found, key=self.order.__getitem__)

    def site(self, nodes: Sequence[Node], others: Iterable[Node], *, stored: bool = False) -> Site:
        """The site of some nodes among `others`; where values are to be `stored` as between
        kernels, or wherever the kernels alone have them."""
        made = {v for node in nodes for v in node.outputs}
        read = (v for node in nodes for v in node.inputs if v is not None and v not in made)
        operands = tuple(dict.fromkeys(read))
        constants = tuple(v in self.known for v in operands)
        around = sorted(dict.fromkeys((*nodes, *others)), key=self.order.__getitem__)
        results = {v: None for node in around for v in node.outputs}
        inputs, outputs = set(self.graph.inputs), set(self.graph.outputs)
        outer = {
            v: Role.CONSTANT if v in self.known else _role(stored and v not in inputs)
            for node in around
            for v in node.inputs
            if v and v not in results
        }
        shown = {
            v: _role(stored and v not in outputs)
            for v in results
            if v in self.kept or any(u not in around for u in self.users.get(v, (None,)))
        }
        freed = tuple(
            v in self.graph.constants and v not in self.kept and set(self.users[v]) <= {*nodes}
            for v in operands
        )
        return Site(tuple(nodes), operands, constants, freed, tuple(around), outer, shown)

    def _neighbours(self, nodes: Sequence[Node]) -> list[Node]:
        """What may share kernels with nodes: those before them and behind them that sum no
        products, and sums of products that read a reduction among the latter, as of a softmax."""
        after: list[Node] = [nodes[-1]]
        for node in after:
            readers = (u for v in node.outputs for u in self.users.get(v, ()) if u not in after)
            reduces = classify(node).kind is NodeKind.REDUCTION
            barred = () if reduces else (NodeKind.CONTRACTION,)
            found = [u for u in dict.fromkeys(readers) if _may_join(u, *barred)]
            after += found[: _AFTER + 1 - len(after)]
        before: list[Node] = []
        for node in (*nodes, *before):
            made = (self.producers.get(v) for v in node.inputs if v is not None)
            other = (n for n in made if n is not None and n not in (*nodes, *after, *before))
            before += [n for n in dict.fromkeys(other) if _may_join(n, NodeKind.CONTRACTION)]
        return [*after[1:], *before[:_BEFORE]]


def _role(stored: bool) -> Role:
    return Role.STORED if stored else Role.GIVEN


def _may_join(node: Node, *other: NodeKind) -> bool:
    return classify(node).kind not in (NodeKind.OPAQUE, *other)


@lru_cache(maxsize=4096)
def _linear_params(expr: Expr) -> tuple[bool, ...] | None:
    """As of `Scope._linear`, of an expression."""
    region = from_expr(expr)
    flat = Flattened(region, spread=True)
    if len(region.outputs) != 1:
        return None
    number, _ = region.outputs[0]
    terms = flat.terms(number)
    if terms is None:
        return None
    reader = flat.region.stages[number]
    uses = [0] * len(region.params)
    inside = [True] * len(region.params)
    whole: set[int] = set()
    for term in terms:
        for factor in term.factors:
            if factor.source is None:
                continue
            if factor.source < 0:
                whole.add(~factor.source)
                continue
            uses[factor.source] += 1
            at = reader._replace(sums=term.sums)
            inside[factor.source] &= factor.dtype in WIDE and reads_inside(region, at, factor)
    for number in range(len(flat.region.stages) - 1, -1, -1):
        for factor in flat.region.stages[number].factors if number in whole else ():
            if factor.source is not None and factor.source < 0:
                whole.add(~factor.source)
            elif factor.source is not None:
                uses[factor.source] += 2
    return tuple(use == 1 and ok for use, ok in zip(uses, inside, strict=True))


def composed(nodes: Sequence[Node]) -> Region:
    """The region that computes the result of the last of some nodes; its parameters are what they
    read that others make, in order of first use.  The nodes have expressions."""
    operands: dict[Value, int] = {}
    made: dict[Value, int] = {}
    stages: list[Stage] = []
    for node in nodes:
        expr = node_expr(node)
        assert expr is not None
        part = from_expr(expr)
        first = len(stages)
        places = [
            None if v is None else made[v] if v in made else operands.setdefault(v, len(operands))
            for v in node.inputs
        ]

        def source(old: int, first: int = first, places: Sequence[int | None] = places) -> int:
            new = old - first if old < 0 else places[old]
            assert new is not None
            return new

        stages += [with_sources(stage, source) for stage in part.stages]
        for value, (number, _) in zip(node.outputs, part.outputs, strict=True):
            made[value] = ~(first + number)
    last = ~made[nodes[-1].outputs[0]]
    params = tuple(v.type for v in operands)
    return Region(params, tuple(stages), ((last, 0),))
