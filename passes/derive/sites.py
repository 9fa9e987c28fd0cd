"""Finds sites: groups of nodes whose result is a sum of products of the group's operands.

    %s = matmul(%q, %kt) ; %y = matmul(%s, %v)       one site: its result is a sum over two loops

A site ends at its last node, the sink.  It grows from the sink towards the inputs: a producer joins
if its value has a single reader, which reads the value once, as a factor of a product.  Nodes are
recognised by their expressions, so that ops and expression nodes are treated equally.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache, partial
from typing import Any

from tcc.frozen import entity
from tcc.ir.expr import Expr
from tcc.ir.expr.scalar import IndexValue, Scalar, literal, transform_all
from tcc.ir.graph import Graph, Handle, Node, Value, walk_graphs
from tcc.ir.index import as_int
from tcc.ir.region import Region, RegionStage, reads_inside
from tcc.ir.region.convert import from_expr
from tcc.ir.region.edit import with_sources
from tcc.passes.derive.algebra.terms import WIDE, Flattened, is_near_one
from tcc.passes.fuse.compose import node_expr, source_of
from tcc.passes.fuse.node_kinds import NodeKind, classify
from tcc.zipped import zip_equal

# A site has at most _MOST nodes. At most _AFTER nodes after it and _BEFORE nodes before it are
# priced with it.
_MOST, _AFTER, _BEFORE = 24, 6, 4


class Role(Enum):
    """The origin of a value that the nodes of a site read and do not compute."""

    CONSTANT = "constant"
    GIVEN = "given"  # an input or result in the caller's layout
    STORED = "stored"  # another kernel's result, in a layout chosen for both


@entity
class DerivationSite:
    """A group of nodes whose result is a sum of products.

    `nodes`: the nodes in order; the last is the sink.
    `operands`: the values that the nodes read, in order of first use.
    `constants`: for each operand, True if it is a constant.
    `freed`: for each operand, True if it is a constant that nothing else reads.
    `neighbourhood`: the nodes, and nodes that may share kernels with them, in order.
    `inputs`: the values that the neighbourhood reads and does not compute, with their roles.
    `results`: the values of the neighbourhood that other nodes read, with their roles: GIVEN for
    the caller's layout, else STORED.
    """

    nodes: tuple[Node, ...]
    operands: tuple[Value, ...]
    constants: tuple[bool, ...]
    freed: tuple[bool, ...]
    neighbourhood: tuple[Node, ...]
    inputs: Mapping[Value, Role]
    results: Mapping[Value, Role]

    @property
    def sink(self) -> Node:
        return self.nodes[-1]

    @property
    def name(self) -> str:
        """The location of the sink, or the name of its result."""
        return self.sink.loc or self.sink.result.name

    def places_of(self, nodes: Sequence[Node]) -> tuple[int, ...]:
        """Returns the positions of nodes in the neighbourhood."""
        return tuple(map(self.neighbourhood.index, nodes))

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for sites with equal neighbourhoods, apart from names of values."""
        numbers: dict[Value, int] = {}
        parts: list[Any] = []
        for node in self.neighbourhood:
            operands = tuple(
                v and (numbers.setdefault(v, len(numbers)), v.type, self.inputs.get(v))
                for v in node.inputs
            )
            results = tuple((numbers.setdefault(v, len(numbers)), v.type) for v in node.outputs)
            parts.append((node.op.name, node.attrs, operands, results))
        result_roles = tuple((numbers[v], role) for v, role in self.results.items())
        return tuple(parts), result_roles, self.places_of(self.nodes)


def scopes(graph: Graph) -> Iterator[SiteScope]:
    """Yields a scope for a graph and for each of its bodies."""
    constants: dict[Value, Handle] = {}
    for part in walk_graphs(graph):
        constants.update(part.constants)
        yield SiteScope(part, constants)


class SiteScope:
    """A graph or a body in which sites are searched; `known` are the constants that it may read."""

    def __init__(self, graph: Graph, known: Mapping[Value, Handle]) -> None:
        self.graph, self.known = graph, known
        self.users, self.producers = graph.users(), graph.producers()
        self.kept_values = graph.values_read_outside()
        self.order = {node: n for n, node in enumerate(graph.nodes)}

    def sums(self) -> Iterator[DerivationSite]:
        """Yields the sums of products; every node is in at most one site."""
        used_nodes: set[Node] = set()
        for node in reversed(self.graph.nodes):
            if node in used_nodes or self.linear(node) is None:
                continue
            nodes = self._grown(node, used_nodes)
            used_nodes.update(nodes)
            if any(classify(n) not in (NodeKind.MAP, NodeKind.POINTWISE) for n in nodes):
                yield self.site(nodes, self._neighbours(nodes))

    def reader(self, value: Value) -> Node | None:
        """Returns the only reader of a value; None if it has others, or bodies or results read
        it."""
        nodes = self.users.get(value, ())
        return nodes[0] if len(nodes) == 1 and value not in self.kept_values else None

    def linear(self, node: Node) -> tuple[bool, ...] | None:
        """Returns for each operand True if it is read once, directly as a factor of a product.

        Returns None for a node whose result is no sum of products.
        """
        if len(node.outputs) != 1 or node.result.dtype not in WIDE:
            return None
        expr = node_expr(node)
        flags = None if expr is None else _linear_params(expr)
        return None if flags is None or self._has_far_number(node) else flags

    def _has_far_number(self, node: Node) -> bool:
        """Returns True if a node reads a scalar constant that is not near 1.

        A number may be moved within a product only if it is near 1 (`is_near_one`).
        """
        for value in node.inputs:
            handle = None if value is None else self.known.get(value)
            if value is None or handle is None or value.type.count != 1:
                continue
            arrays = self.graph.store.arrays(handle)
            if value.dtype in WIDE and not all(is_near_one(float(a.item())) for a in arrays):
                return True
        return False

    def _grown(self, sink: Node, used_nodes: set[Node]) -> list[Node]:
        nodes = [sink]
        for node in nodes:
            linear = self.linear(node) or ()
            for value, factor in zip_equal(node.inputs, linear):
                before = self.producers.get(value)
                if value is None or before is None or not factor or before in used_nodes:
                    continue
                is_open = self.reader(value) and len(nodes) < _MOST
                if is_open and self.linear(before) is not None:
                    nodes.append(before)
        return sorted(nodes, key=self.order.__getitem__)

    def site(
        self, nodes: Sequence[Node], neighbours: Iterable[Node], *, stored: bool = False
    ) -> DerivationSite:
        """Returns the site of `nodes` and `neighbours`.

        `stored` decides the role of values that the site shares with other kernels: STORED if true,
        otherwise GIVEN.  Inputs and outputs of the graph are always GIVEN, and constants CONSTANT.
        """
        computed = {v for node in nodes for v in node.outputs}
        sources = (v for node in nodes for v in node.inputs if v is not None and v not in computed)
        operands = tuple(dict.fromkeys(sources))
        constants = tuple(v in self.known for v in operands)
        neighbourhood = sorted(dict.fromkeys((*nodes, *neighbours)), key=self.order.__getitem__)
        computed_nearby = {v: None for node in neighbourhood for v in node.outputs}
        inputs, outputs = set(self.graph.inputs), set(self.graph.outputs)
        outer = {
            v: Role.CONSTANT if v in self.known else _role(stored and v not in inputs)
            for node in neighbourhood
            for v in node.inputs
            if v and v not in computed_nearby
        }
        results = {
            v: _role(stored and v not in outputs)
            for v in computed_nearby
            if v in self.kept_values
            or any(u not in neighbourhood for u in self.users.get(v, (None,)))
        }
        freed = tuple(
            v in self.graph.constants
            and v not in self.kept_values
            and set(self.users[v]) <= {*nodes}
            for v in operands
        )
        return DerivationSite(
            tuple(nodes), operands, constants, freed, tuple(neighbourhood), outer, results
        )

    def _neighbours(self, nodes: Sequence[Node]) -> list[Node]:
        """Returns the nodes before and after `nodes` that may share kernels with them.

        The returned nodes are no contractions, with one exception: a contraction after `nodes` that
        reads a reduction, such as the matmul after a softmax.
        """
        after: list[Node] = [nodes[-1]]
        for node in after:
            readers = (u for v in node.outputs for u in self.users.get(v, ()) if u not in after)
            reduces = classify(node) is NodeKind.REDUCTION
            barred = () if reduces else (NodeKind.CONTRACTION,)
            joinable = [u for u in dict.fromkeys(readers) if _may_join(u, *barred)]
            after += joinable[: _AFTER + 1 - len(after)]
        before: list[Node] = []
        for node in (*nodes, *before):
            makers = map(self.producers.get, node.inputs)
            other = (n for n in makers if n is not None and n not in (*nodes, *after, *before))
            before += [n for n in dict.fromkeys(other) if _may_join(n, NodeKind.CONTRACTION)]
        return [*after[1:], *before[:_BEFORE]]


def _role(stored: bool) -> Role:
    return Role.STORED if stored else Role.GIVEN


def _may_join(node: Node, *other: NodeKind) -> bool:
    return classify(node) not in (NodeKind.OPAQUE, *other)


def _region(expr: Expr) -> Region:
    """Returns the region of an expression, with literals in place of indices that are numbers.

    Then rules see the divisor of a mean.
    """
    bodies = (transform_all(stage.body, _with_number) for stage in expr.stages)
    stages = (replace(s, body=body) for s, body in zip_equal(expr.stages, bodies))
    return from_expr(replace(expr, stages=tuple(stages)))


def _with_number(scalar: Scalar) -> Scalar:
    number = as_int(scalar.index) if isinstance(scalar, IndexValue) else None
    return scalar if number is None else literal(number, scalar.dtype)


@lru_cache(4096)
def _linear_params(expr: Expr) -> tuple[bool, ...] | None:
    """Returns for each parameter True if it is read once, directly as a factor of a product.

    Returns None if the expression is no sum of products.
    """
    region = _region(expr)
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
    opaque: set[int] = set()
    for term in terms:
        for factor in term.factors:
            if factor.source is None:
                continue
            if factor.source < 0:
                opaque.add(~factor.source)
                continue
            uses[factor.source] += 1
            at = reader._replace(sums=term.sums)
            inside[factor.source] &= factor.dtype in WIDE and reads_inside(region, at, factor)
    for number in range(len(flat.region.stages) - 1, -1, -1):
        for factor in flat.region.stages[number].factors if number in opaque else ():
            if factor.source is not None and factor.source < 0:
                opaque.add(~factor.source)
            elif factor.source is not None:
                uses[factor.source] += 2
    return tuple(use == 1 and ok for use, ok in zip_equal(uses, inside))


def composed(nodes: Sequence[Node]) -> Region:
    """Returns the region that computes the result of the last of `nodes`; all nodes have
    expressions.

    Its parameters are the values that the nodes read and do not compute, in order of first use.
    """
    operands: dict[Value, int] = {}
    sources: dict[Value, int] = {}
    stages: list[RegionStage] = []
    for node in nodes:
        expr = node_expr(node)
        assert expr is not None
        part = _region(expr)
        first = len(stages)
        places = [source_of(v, sources, operands) for v in node.inputs]
        source = partial(_composed_source, first, places)
        stages += [with_sources(stage, source) for stage in part.stages]
        for value, (number, _) in zip_equal(node.outputs, part.outputs):
            sources[value] = ~(first + number)
    last = ~sources[nodes[-1].outputs[0]]
    params = tuple(v.type for v in operands)
    return Region(params, tuple(stages), ((last, 0),))


def _composed_source(first: int, places: Sequence[int | None], source: int) -> int:
    """Returns the source in the composed region that corresponds to `source` in a node's region.

    Stage n of the node is stage `first + n` of the composed region.  Parameter n of the node is
    source `places[n]` of the composed region.
    """
    composed_source = source - first if source < 0 else places[source]
    assert composed_source is not None
    return composed_source
