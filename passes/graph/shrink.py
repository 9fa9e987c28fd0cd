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

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias, TypeVar

from tcc.ir.expr import Expr
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, symbols_in, uses, walk_values
from tcc.ir.index import const, free_vars, maximum
from tcc.ir.index.prove import at_most
from tcc.ir.op import NoAttrs, OpSpec, Trait
from tcc.ir.types import element_count
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
from tcc.passes.graph.emit import emit
from tcc.passes.graph.fold_constants import fold_constants
from tcc.passes.graph.legalize_calls.scatter import Cheapest
from tcc.passes.graph.smaller_nodes import local_op
from tcc.zipped import zip_equal


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


_Item = TypeVar("_Item")
# A value, a part of it, the op and the attributes of the node that computes this part, and the
# node's inputs: each is a part of a value, and None stands for all its elements.
_Operand: TypeAlias = tuple[Value | None, Parts | None]
_Result: TypeAlias = tuple[Value, Parts, OpSpec, Any, tuple[_Operand, ...]]


class _Sweep:
    """Finds the part of each value that its readers read, from the last node to the first.

    `is_smaller` becomes True if a node with a reduction computes a part of its result only.
    """

    def __init__(self, graph: Graph) -> None:
        self.is_smaller = False
        self._graph, self._sources = graph, {*graph.inputs, *graph.constants}
        # The sizes that are known before a run; a run computes the others.
        self._sizes = symbols_in(graph.inputs)
        self._read = {v: whole(v.shape) for v in graph.values_read_outside()}
        # The smaller results that nodes compute; an empty list for a node that stays as it is.
        self._results: dict[Node, list[_Result]] = {}
        for node in reversed(graph.nodes):
            is_kept = not node.outputs or Trait.OPAQUE in node.op.traits
            if is_kept or not self._read.keys().isdisjoint(node.outputs):
                self._results[node] = results = self._rows(node) or self._restrictions(node)
                operands = [pair for *_, pairs in results for pair in pairs]
                for value, parts in operands if results else [(v, None) for v in uses(node)]:
                    if value:
                        shape = value.shape
                        hull = joined(self._read.get(value), parts or whole(shape), shape)
                        self._read[value] = hull

    def result(self) -> Graph:
        """Returns the graph of the smaller nodes, with slices and gathers where readers differ."""
        b = GraphBuilder(self._graph.name)
        for value in walk_values(self._graph):
            b.fresh(value.name)
        computed: dict[Value, tuple[Parts, Value]] = {}

        @cache
        def part(value: Value, parts: Parts) -> Value:
            available, source = computed.get(value) or (whole(value.shape), value)
            pairs = list(zip_equal(parts, available))
            axis = next((n for n, (p, a) in enumerate(pairs) if p.rows is not a.rows), None)
            if axis is not None:
                table = part(value, replaced(parts, axis, available[axis]))
                rows = emit(b, "reshape", parts[axis].rows, shape=(parts[axis].count,))
                return emit(b, "gather", table, rows, axis=axis)
            if parts == available:
                return source
            starts, steps = tuple(p.start - a.start for p, a in pairs), (1,) * len(pairs)
            sizes = tuple(p.count for p in parts)
            return emit(b, "slice", source, starts=starts, steps=steps, sizes=sizes)

        for node, results in reversed(self._results.items()):
            b.loc = node.loc
            for value, parts, op, attrs, operands in results:
                inputs = tuple(v and part(v, p or whole(v.shape)) for v, p in operands)
                output = value
                if parts != whole(value.shape):
                    output = Value(b.fresh(value.name), part_type(value.type, parts))
                computed[value] = parts, output
                b.append(Node(op, attrs, inputs, (output,), node.loc))
            if not results:
                b.append(node)
        return replace(self._graph, nodes=_sorted(b.finish(()).nodes))

    def _rows(self, node: Node) -> list[_Result]:
        """Returns a reshape of the rows that a gather reads, if these are fewer than there are."""
        if node.op.name != "gather":
            return []
        (x, places), axis = present(node.inputs), node.attrs.axis
        size, count = x.shape[axis], element_count(places.shape)
        if x in self._sources or count is size or not at_most(count, maximum(size, 1)):
            return []
        self._read[places] = whole(places.shape)
        value, op = node.result, OPS["reshape"]
        every, attrs = whole(value.shape), op.attrs(value.shape)
        parts = replaced(whole(x.shape), axis, AxisPart(const(0), size, places))
        return [(value, every, op, attrs, ((x, parts),))]

    def _restrictions(self, node: Node) -> list[_Result]:
        """Returns what computes the parts of the node's results that are read.

        Returns an empty list if the node computes its results whole, as it is.
        """
        has_handles = any(v.dtype.is_handle for v in (*node.outputs, *uses(node)))
        expr = None if has_handles else node_expr(node)
        reduces = expr is not None and any(stage.reduce for stage in expr.stages)
        if expr is None or (reduces and len(node.outputs) > 1):
            return []
        restrictions, smaller = [], list[tuple[Value, Parts]]()
        for number, value in enumerate(node.outputs):
            if value in self._read:
                parts, (local, operands) = _independent(expr, number, self._read[value])
                pairs = tuple(zip_equal(node.inputs, operands))
                restrictions.append((value, parts, local, pairs))
                both = (value, parts), *pairs
                smaller += ((v, p) for v, p in both if v and p and p != whole(v.shape))
        is_smaller = any(value in node.outputs for value, _ in smaller)
        is_whole = not is_smaller and (reduces or len(restrictions) == len(node.outputs) > 1)
        sizes = (i for _, parts in smaller for p in parts for i in (p.start, p.size))
        if not smaller or is_whole or not self._sizes.issuperset(free_vars(*sizes)):
            return []
        self.is_smaller |= reduces
        return [(v, parts, *op_of(node, local, pairs)) for v, parts, local, pairs in restrictions]


def op_of(
    node: Node, expr: Expr, operands: Sequence[_Item]
) -> tuple[OpSpec, Any, tuple[_Item, ...]]:
    """Returns the op and the attributes of a node that computes `expr` in place of `node`, and
    those of `operands` that it reads."""
    op, attrs = local_op(node, expr)
    if op is not OPS["expression"]:
        return op, attrs, tuple(operands)
    expr, numbers = drop_unused(expr)
    op, attrs = local_op(replace(node, op=OPS["identity"], attrs=NoAttrs()), expr)
    return op, attrs, tuple(operands[n] for n in numbers)


def _sorted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Returns nodes in an order in which values are computed before they are read.

    A gather's positions may be computed after the values that it shrinks.
    """
    producers = {v: node for node in nodes for v in node.outputs}
    ordered: dict[Node, None] = {}
    stack = [*reversed(nodes)]
    while stack:
        makers = (producers.get(v) for v in uses(stack[-1]))
        missing = [maker for maker in makers if maker and maker not in ordered]
        stack += missing
        if not missing:
            ordered[stack.pop()] = None
    return tuple(ordered)


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
