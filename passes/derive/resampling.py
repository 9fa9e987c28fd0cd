"""Moves repetitions and interpolations behind sums over other axes, where prices favour it.

    %u = resize(%x) {sizes=(1, 64, 56, 56)}         %s = conv(%x, %w)       28 x 28 outputs
    %y = conv(%u, %w)        56 x 56 outputs   ->   %y = resize(%s) {sizes=(1, 32, 56, 56)}

A resampling reads elements at other positions along some axes, and keeps the positions along all
other axes.  A repetition copies these elements: an expand, a Resize to the nearest ones; transposes
and reshapes may follow it.  An interpolation adds a few, with weights whose sum is 1.
Both change places with a node that computes each position of the resampled axes independently.
Behind an interpolation, the node must also be a sum of products that reads each element once, as a
factor.  Expressions show all this, so no node is named except for Resize.

An infinity or a NaN makes the same results infinite or NaN as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import chain
from math import prod
from operator import attrgetter
from typing import TypeAlias

from tcc.ir.expr import Expr, source_shape, with_reads
from tcc.ir.expr.scalar import Read, read_at
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.index import Index, Indices, const
from tcc.ir.index.prove import at_most
from tcc.ir.types import I64, TensorType, element_count
from tcc.passes.derive.emitted import Way, with_cheapest
from tcc.passes.derive.sites import DerivationSite, SiteScope, scopes
from tcc.passes.fuse.compose import compose, node_expr
from tcc.passes.fuse.node_kinds import NodeKind, classify
from tcc.passes.graph.axis_parts import AxisPart, Parts, restricted
from tcc.passes.graph.emit import emit
from tcc.passes.graph.legalize_calls.scatter import Cheapest
from tcc.passes.graph.shrink import op_of
from tcc.passes.graph.smaller_nodes import without_unit_loops
from tcc.zipped import zip_equal

# A node, the value of the graph that it reads in the place of the previous step's result, and the
# expression that it computes.
_Step: TypeAlias = tuple[Node, Value | None, Expr]


def move_resamplings(graph: Graph, cheapest: Cheapest) -> Graph:
    """Returns `graph` with resamplings behind nodes that read them, where that costs less.

    `cheapest` returns the index of the cheapest of several graphs.  Returns `graph` itself if
    nothing changes.  Bodies stay as they are.
    """
    return with_cheapest(graph, _moves(next(scopes(graph))), cheapest)


def _moves(scope: SiteScope) -> Iterator[tuple[DerivationSite, list[Way]]]:
    """Yields each resampling with the nodes that it may pass, and the way to compute them so.

    At least one of these nodes has a reduction.
    """
    for first in scope.graph.nodes:
        is_resize = first.op.name == "resize" and not first.attrs.crops
        copies = classify(first) is NodeKind.MAP or (is_resize and first.attrs.mode == "nearest")
        if not (copies or is_resize):
            continue
        nodes = [first]
        while (reader := scope.reader(nodes[-1].result)) and classify(reader) is NodeKind.MAP:
            nodes.append(reader)
        value = nodes[-1].result
        size, operands = element_count(value.shape), compose(nodes, [value])[1]
        if len(operands) > 1 or all(at_most(size, element_count(x.shape)) for x in operands):
            continue
        order, expr = _aligned(nodes)
        shape = source_shape(expr, 0)
        steps: list[_Step] = []
        while reader:
            number, factors = reader.inputs.index(value), scope.linear(reader)
            may_pass = copies or (factors is not None and factors[number])
            forms = _exchanged(expr, reader, number) if may_pass else None
            if forms is None:
                break
            steps.append((reader, value, forms[0]))
            value, expr, reader = reader.result, forms[1], scope.reader(reader.result)
        if any(stage.reduce for *_, local in steps for stage in local.stages):
            site = scope.site((*nodes, *(node for node, *_ in steps)), ())
            steps.append((nodes[-1], nodes[-1].inputs[0], expr))
            yield site, [partial(_behind, site=site, order=order, shape=shape, steps=steps)]


def _behind(
    b: GraphBuilder,
    operands: Sequence[Value],
    site: DerivationSite,
    order: Sequence[int],
    shape: Indices,
    steps: Sequence[_Step],
) -> Value:
    """Adds nodes that compute `steps` one after the other, and returns the last result.

    The first reads the resampling's operand, in `shape` with its axes in `order` if that is not
    empty.
    """
    new: dict[Value | None, Value] = dict(zip_equal(site.operands, operands))
    y = new[site.nodes[0].inputs[0]]
    if order:
        y = emit(b, "transpose", y, perm=tuple(order))
        y = emit(b, "reshape", y, shape=shape)
    for node, value, expr in steps:
        new[value] = y
        op, attrs, inputs = op_of(node, expr, [new.get(v) for v in node.inputs])
        (y,) = b.add(op, inputs, attrs)
    return y


# ---- expressions --------------------------------------------------------------------------------


def _listed(shape: Indices, lists: Mapping[int, Value]) -> Parts:
    """Returns all elements of a tensor, with lists of positions along some axes."""
    return tuple(AxisPart(const(0), size, lists.get(n)) for n, size in enumerate(shape))


def _resized(expr: Expr, number: int, sizes: Mapping[int, Index]) -> Expr | None:
    """Returns `expr` with other sizes of some axes of its result and of operand `number`.

    Returns None if it reads other positions of the operand along these axes, or other operands by
    them.
    """
    lists = {n: Value("rows", TensorType(I64, (size,))) for n, size in sizes.items()}
    restriction = restricted(expr, 0, _listed(expr.types[0].shape, lists))
    is_same = restriction is not None and all(
        parts in (None, _listed(source_shape(expr, n), lists if n == number else {}))
        for n, parts in enumerate(restriction[1])
    )
    return restriction[0] if restriction and is_same else None


def _exchanged(expr: Expr, node: Node, number: int) -> tuple[Expr, Expr] | None:
    """Returns the expression of `node` in front of a resampling, and of the resampling behind it.

    `node` reads the resampling `expr`, which `_aligned` returns, as operand `number`.  Returns None
    where the two do not change places.
    """
    expr_of_node, old, new = node_expr(node), expr.types[0].shape, node.outputs[0].shape
    if expr_of_node is None or [v.rank for v in node.outputs] != [len(old)]:
        return None
    kept_sizes = {n: new[n] for n, size in enumerate(old) if _resized(expr, 0, {n: size})}
    moved_sizes = {n: size for n, size in enumerate(source_shape(expr, 0)) if n not in kept_sizes}
    local = _resized(without_unit_loops(expr_of_node, attrgetter("reduce")), number, moved_sizes)
    behind = _resized(expr, 0, kept_sizes)
    return (local, behind) if local and behind else None


def _aligned(nodes: Sequence[Node]) -> tuple[list[int], Expr]:
    """Returns the resampling that `nodes` compute, with the axes that it keeps at equal places.

    The first result is the order of its operand's axes in which they are; it is empty if they are
    as they lie.  Else the operand has a single axis in place of those that are not kept.
    """
    expr, (x,) = compose(nodes, [nodes[-1].result])
    shape = expr.types[0].shape
    groups = []
    for n in range(len(shape)):
        restriction = restricted(
            expr, 0, _listed(shape, {n: Value("rows", TensorType(I64, (const(1),)))})
        )
        parts = restriction[1][0] if restriction else None
        groups.append([axis for axis, part in enumerate(parts or ()) if part.rows])
    is_aligned = x.rank == len(shape) and all(g in ([], [n]) for n, g in enumerate(groups))
    if is_aligned or [] not in groups:
        return [], expr
    groups[groups.index([])] = [axis for axis in range(x.rank) if [axis] not in groups]
    sizes = tuple(prod((x.shape[axis] for axis in group), start=const(1)) for group in groups)

    def placed(node: Read) -> Read:
        """Returns a read of the operand whose axes are the groups."""
        places = (
            reduce(lambda place, axis: place * x.shape[axis] + node.indices[axis], group, const(0))
            for group in groups
        )
        return read_at(node, tuple(places), node.indirect) if node.source == 0 else node

    stages = tuple(with_reads(stage, placed) for stage in expr.stages)
    return [*chain(*groups)], Expr((TensorType(x.dtype, sizes),), stages, expr.outputs)
