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

from collections.abc import Iterable
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, uses, walk_values
from tcc.ir.graph.rewrite import Inputs
from tcc.ir.index import const, free_vars, maximum
from tcc.ir.index.prove import at_most
from tcc.ir.op import NoAttrs, Trait
from tcc.ir.types import TensorType, element_count
from tcc.ops import OPS
from tcc.ops.shapes import present, replaced
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
        self._graph, self._sources = graph, (*graph.inputs, *graph.constants)
        self._nodes: list[Node] = []
        self._builder = GraphBuilder(graph.name)
        for value in walk_values(graph):
            self._builder.fresh(value.name)
        # The parts of each value that nodes read, and the values that have these parts.
        self._parts: dict[Value, dict[Parts, Value]] = {}
        # The sizes that are known before a run; a run computes the others.
        self._sizes = {*free_vars(*(d for v in graph.inputs for d in v.type.shape))}
        for value in graph.values_read_outside():
            self._part(value)
        for node in reversed(graph.nodes):
            is_kept = not node.outputs or Trait.OPAQUE in node.op.traits
            if is_kept or not self._parts.keys().isdisjoint(node.outputs):
                self._builder.loc = node.loc
                self._add(node)
        for value in self._sources:
            self._provide(value)

    def result(self) -> Graph:
        """Returns the graph of the new nodes."""
        producers = {v: node for node in self._nodes for v in node.outputs}
        ordered: dict[Node, None] = {}
        while self._nodes:
            # A gather's positions are computed before the values that it shrinks.
            makers = (producers.get(v) for v in uses(self._nodes[-1]))
            missing = [maker for maker in makers if maker and maker not in ordered]
            self._nodes += missing
            if not missing:
                ordered[self._nodes.pop()] = None
        return replace(self._graph, nodes=tuple(ordered))

    def _part(self, value: Value, parts: Parts | None = None) -> Value:
        """Returns the value that has a part of `value`; `value` itself for all elements."""
        values, every = self._parts.setdefault(value, {}), whole(value.type.shape)
        parts = parts or every
        if parts not in values:
            values[parts] = (
                value if parts == every else self._new(value, part_type(value.type, parts))
            )
        return values[parts]

    def _new(self, value: Value, type: TensorType) -> Value:
        """Returns a value for elements of `value`."""
        return Value(self._builder.fresh(value.name), type)

    def _provide(self, value: Value, parts: Parts | None = None) -> Value:
        """Adds slices and gathers for all parts of `value` that are read.

        Returns the value from which they read; it has the part `parts`.
        """
        source, parts = self._part(value, parts), parts or whole(value.type.shape)
        queue = list(self._parts[value])
        for wanted in queue:
            result, pairs = self._part(value, wanted), list(zip(wanted, parts, strict=True))
            axis = next((n for n, (w, p) in enumerate(pairs) if w.rows is not p.rows), None)
            if axis is not None:
                table = replaced(wanted, axis, parts[axis])
                queue += [table] if table not in queue else []
                inputs = self._part(value, table), wanted[axis].rows
                self._append("gather", inputs, result, axis=axis)
            elif wanted != parts:
                starts, steps = tuple(w.start - p.start for w, p in pairs), (1,) * len(pairs)
                sizes = result.type.shape
                self._append("slice", (source,), result, starts=starts, steps=steps, sizes=sizes)
        return source

    def _append(self, op: str, inputs: Inputs, result: Value, **attrs: Any) -> None:
        row = OPS[op]
        self._nodes.append(Node(row, row.attrs(**attrs), inputs, (result,), self._builder.loc))

    def _add(self, node: Node) -> None:
        """Adds a node, or nodes that compute the parts of its results that are read."""
        if rows := self._rows(node):
            result = self._provide(node.outputs[0])
            self._append("reshape", (rows,), result, shape=result.type.shape)
            return
        results = self._restrictions(node)
        if not results:
            for value in node.outputs:
                self._provide(value)
            for value in uses(node):
                self._part(value)
            self._nodes.append(node)
        for value, parts, (expr, operands) in results:
            numbers: Iterable[int] = range(len(operands))
            op, attrs = local_op(node, expr)
            if op is OPS["expression"]:
                expr, numbers = drop_unused(expr)
                op, attrs = local_op(replace(node, op=OPS["identity"], attrs=NoAttrs()), expr)
            pairs = ((node.inputs[n], operands[n]) for n in numbers)
            inputs = tuple(v and self._part(v, part) for v, part in pairs)
            output = self._provide(value, parts)
            self._nodes.append(Node(op, attrs, inputs, (output,), node.loc))

    def _rows(self, node: Node) -> Value | None:
        """Returns the elements that a gather reads, if it reads fewer rows than there are."""
        if node.op.name != "gather":
            return None
        (x, places), axis = present(node.inputs), node.attrs.axis
        size, count = x.type.shape[axis], element_count(places.type.shape)
        if x in self._sources or count is size or not at_most(count, maximum(size, 1)):
            return None
        rows = self._part(places)
        if places.type.rank != 1:
            rows = self._new(places, TensorType(places.type.dtype, (count,)))
            self._append("reshape", (places,), rows, shape=(count,))
        part = AxisPart(const(0), size, rows)
        return self._part(x, replaced(whole(x.type.shape), axis, part))

    def _restrictions(self, node: Node) -> list[tuple[Value, Parts, Restriction]]:
        """Returns each result that is read, the part of it to compute, and its restriction.

        Returns an empty list if the node computes its results whole, as it is.
        """
        has_handles = any(v.type.dtype.is_handle for v in (*node.outputs, *uses(node)))
        expr = None if has_handles else node_expr(node)
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
        sizes = (i for _, parts in smaller for p in parts for i in (p.start, p.size))
        is_whole = not is_smaller and (reduces or len(results) == len(node.outputs) > 1)
        if not smaller or is_whole or not self._sizes.issuperset(free_vars(*sizes)):
            return []
        self.is_smaller |= reduces
        return results


def _independent(expr: Expr, number: int, parts: Parts) -> tuple[Parts, Restriction]:
    """Returns the smallest part that contains `parts` and whose axes `expr` computes independently,
    with the restriction to it."""
    smaller = whole(expr.types[number].shape)
    for axis, part in enumerate(parts):
        option = replaced(smaller, axis, part)
        smaller = option if restricted(expr, number, option) else smaller
    restriction = restricted(expr, number, smaller)
    assert restriction, "each expression can be restricted to all of its elements"
    return smaller, restriction
