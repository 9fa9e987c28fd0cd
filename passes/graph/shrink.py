"""Computes only the elements of values that the nodes behind them read.

    %y = relu(%x) ; %z = slice(%y)        %s = slice(%x) ; %z = relu(%s)
    %y = matmul(%x, %w)                   %s = gather(%x, %rows)
    %z = gather(%y, %rows)                %z = matmul(%s, %w)

A pass from the outputs to the inputs joins, for each value, the parts that its readers read: the
hull of ranges, or the positions of a gather if nothing else reads the value.  A node whose
positions along the restricted axes are independent then computes this part only, from parts of its
operands; its expression shows which axes are.  Values that bodies, outputs or aliases read stay
whole.  Copies become `identity` nodes.  The result is taken if its changed kernels are cheaper than
before, slices included.  Requires nothing.
"""

from dataclasses import replace
from functools import partial, reduce
from typing import Any

import networkx as nx
from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, uses, walk_values
from tcc.ir.index import const, free_vars, maximum
from tcc.ir.index.prove import at_most
from tcc.ir.op import NoAttrs, Trait
from tcc.ir.types import TensorType, element_count
from tcc.ops import OPS
from tcc.ops.shapes import replaced
from tcc.passes.fuse.compose import drop_unused, node_expr
from tcc.passes.graph.axis_parts import (
    AxisPart,
    Parts,
    Restriction,
    joined,
    part_type,
    restricted,
    whole,
)
from tcc.passes.graph.fold_constants import fold_constants
from tcc.passes.graph.legalize_calls.scatter import Cheapest
from tcc.passes.graph.smaller_nodes import local_op


def shrink(graph: Graph, parts: Cheapest | None = None) -> Graph:
    """Returns `graph` with values that have no elements that nothing reads.

    `parts` returns the index of the cheapest of several graphs; None shrinks without prices.
    Returns `graph` itself if nothing changes.  Bodies stay as they are.
    """
    sweep = _Sweep(graph)
    if not sweep.is_smaller:
        return graph
    smaller = sweep.result()
    forms = [_difference(graph, smaller), fold_constants(_difference(smaller, graph))]
    return smaller if parts is None or parts(forms) else graph


def _difference(graph: Graph, other: Graph) -> Graph:
    """Returns the nodes of `graph` that `other` does not have, as a graph."""
    common = set(other.nodes)
    nodes = [node for node in graph.nodes if node not in common]
    computed = {v: None for node in nodes for v in node.outputs}
    outside = {*graph.outputs, *(v for n in graph.nodes if n in common for v in uses(n))}
    sources = dict.fromkeys(v for node in nodes for v in uses(node) if v not in computed)
    return replace(
        graph,
        inputs=tuple(v for v in sources if v not in graph.constants),
        outputs=tuple(v for v in computed if v in outside),
        nodes=tuple(nodes),
        aliases=(),
    )


class _Sweep:
    """Adds smaller nodes from the last to the first; a node is added after all its readers.

    `is_smaller` becomes True if a node with a reduction computes a part of its result only.
    """

    def __init__(self, graph: Graph) -> None:
        self.is_smaller = False
        self._graph, self._computed = graph, graph.producers()
        self._nodes: list[Node] = []
        self._names = GraphBuilder(graph.name)
        for value in walk_values(graph):
            self._names.fresh(value.name)
        # The parts of each value that nodes read, and the values that have these parts.
        self._parts: dict[Value, dict[Parts, Value]] = {}
        # The sizes that are known before a run; a run computes the others.
        self._sizes = {*free_vars(*(d for v in graph.inputs for d in v.type.shape))}
        for value in graph.values_read_outside():
            self._part(value)
        for node in reversed(graph.nodes):
            is_kept = not node.outputs or Trait.OPAQUE in node.op.traits
            if is_kept or not self._parts.keys().isdisjoint(node.outputs):
                self._add(node)
        sources = self._parts.keys() - self._computed.keys()
        for value in sorted(sources, key=lambda value: value.name):
            self._provide(value)

    def result(self) -> Graph:
        """Returns the graph of the new nodes."""
        # A gather's positions are computed before the values that it shrinks.
        places = {node: n for n, node in enumerate(reversed(self._nodes))}
        makers = {v: node for node in places for v in node.outputs}
        order: nx.DiGraph = nx.DiGraph()
        order.add_nodes_from(places)
        order.add_edges_from((makers[v], n) for n in places for v in uses(n) if v in makers)
        nodes = nx.lexicographical_topological_sort(order, places.__getitem__)
        return replace(self._graph, nodes=tuple(nodes))

    def _part(self, value: Value, parts: Parts | None = None) -> Value:
        """Returns the value that has a part of `value`; `value` itself for all elements."""
        values, every = self._parts.setdefault(value, {}), whole(value.type.shape)
        if parts in (None, every):
            return values.setdefault(every, value)
        if parts not in values:
            values[parts] = Value(self._names.fresh(value.name), part_type(value.type, parts))
        return values[parts]

    def _provide(self, value: Value, parts: Parts | None = None, loc: str = "") -> Value:
        """Adds slices and gathers for all parts of `value` that are read.

        Returns the value from which they read; it has the part `parts`.
        """
        source, parts = self._part(value, parts), parts or whole(value.type.shape)
        queue = list(self._parts[value])
        for wanted in queue:
            result = self._part(value, wanted)
            pairs = list(zip(wanted, parts, strict=True))
            axis = next((n for n, (w, p) in enumerate(pairs) if w.rows is not p.rows), None)
            if axis is not None:
                table = replaced(wanted, axis, parts[axis])
                queue += [table] if table not in queue else []
                inputs = self._part(value, table), wanted[axis].rows
                self._append("gather", inputs, result, loc, axis=axis)
            elif wanted != parts:
                fields = {
                    "starts": tuple(w.start - p.start for w, p in pairs),
                    "steps": (1,) * len(pairs),
                }
                self._append("slice", (source,), result, loc, **fields, sizes=result.type.shape)
        return source

    def _append(
        self, op: str, inputs: tuple[Value | None, ...], result: Value, loc: str, **attrs: Any
    ) -> None:
        self._nodes.append(Node(OPS[op], OPS[op].attrs(**attrs), inputs, (result,), loc))

    def _add(self, node: Node) -> None:
        """Adds a node, or nodes that compute the parts of its results that are read."""
        if rows := self._rows(node):
            result = self._provide(node.outputs[0], loc=node.loc)
            self._append("reshape", (rows,), result, node.loc, shape=result.type.shape)
            return
        results = self._restrictions(node)
        if not results:
            for value in node.outputs:
                self._provide(value, loc=node.loc)
            for value in filter(None, node.inputs):
                self._part(value)
            self._nodes.append(node)
        for value, parts, (expr, operands) in results:
            op, attrs = local_op(node, expr)
            inputs = zip(node.inputs, operands, strict=True)
            if op is OPS["expression"]:
                expr, numbers = drop_unused(expr)
                op, attrs = local_op(replace(node, op=OPS["identity"], attrs=NoAttrs()), expr)
                inputs = ((node.inputs[n], operands[n]) for n in numbers)
            new_inputs = tuple(v and self._part(v, part) for v, part in inputs)
            output = self._provide(value, parts, node.loc)
            self._nodes.append(Node(op, attrs, new_inputs, (output,), node.loc))

    def _rows(self, node: Node) -> Value | None:
        """Returns the elements that a gather reads, if it reads fewer rows than there are."""
        if node.op.name != "gather":
            return None
        (x, places), axis = node.inputs, node.attrs.axis
        assert x is not None
        assert places is not None
        size, count = x.type.shape[axis], element_count(places.type.shape)
        if x not in self._computed or count is size or not at_most(count, maximum(size, 1)):
            return None
        rows = self._part(places)
        if places.type.rank != 1:
            rows = Value(self._names.fresh(places.name), TensorType(places.type.dtype, (count,)))
            self._append("reshape", (places,), rows, node.loc, shape=(count,))
        part = AxisPart(const(0), size, rows)
        return self._part(x, replaced(whole(x.type.shape), axis, part))

    def _restrictions(self, node: Node) -> list[tuple[Value, Parts, Restriction]]:
        """Returns each result that is read, the part of it to compute, and its restriction.

        Returns an empty list if the node computes its results whole, as it is.
        """
        values = (*node.outputs, *filter(None, node.inputs))
        expr = None if any(v.type.dtype.is_handle for v in values) else node_expr(node)
        reduces = expr is not None and any(stage.reduce for stage in expr.stages)
        if expr is None or (reduces and len(node.outputs) > 1):
            return []
        results, smaller = [], list[tuple[Value, Parts]]()
        for number, value in enumerate(node.outputs):
            if value in self._parts:
                hull = reduce(partial(joined, shape=value.type.shape), self._parts[value])
                parts, restriction = _independent(expr, number, hull)
                results.append((value, parts, restriction))
                pairs = (value, parts), *zip(node.inputs, restriction[1], strict=True)
                smaller += ((v, p) for v, p in pairs if v and p and p != whole(v.type.shape))
        is_smaller = any(value in node.outputs for value, _ in smaller)
        is_known = all(
            self._sizes.union(free_vars(*v.type.shape)).issuperset(free_vars(p.start, p.size))
            for v, parts in smaller
            for p in parts
        )
        is_whole = not is_smaller and (reduces or len(results) == len(node.outputs) > 1)
        if not smaller or not is_known or is_whole:
            return []
        self.is_smaller |= reduces
        return results


def _independent(expr: Expr, number: int, parts: Parts) -> tuple[Parts, Restriction]:
    """Returns the smallest part that contains `parts` and whose axes `expr` computes independently,
    with the restriction to it."""
    smaller = whole(expr.types[number].shape)
    result = restricted(expr, number, smaller)
    assert result is not None, "each expression can be restricted to all of its elements"
    for axis, part in enumerate(parts):
        option = replaced(smaller, axis, part)
        if (restriction := restricted(expr, number, option)) is not None:
            smaller, result = option, restriction
    return smaller, result
