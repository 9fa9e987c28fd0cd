"""Merges sums of products that share a factor, where the price is then lower.

    %q = matmul(%x, %a[1024, 1024])              %y = matmul(%x, [%a %b])
    %k = matmul(%x, %b[1024, 256])       ->      %q, %k = split(%y)

Nodes are recognised by their expressions.  A bundle is a set of nodes that compute the same
function of the same values and of different constants, where one loop of the results runs along
the constants.  The nodes are the bundle's parts.  A merged node reads the concatenated constants.
Its kernel prepares and reads the shared factor once, and keeps all cores busy.  In exchange,
readers find their parts in a larger result.

All groupings of a bundle's parts are priced, together with the neighbours that may share kernels
with the parts.  Placeholders stand for the kernels outside of the priced graph, so that images have
the layouts that they have between kernels.  They cost the same in every grouping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np
from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, types_of
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int, const
from tcc.ir.region import Region, is_leaf, shape_of
from tcc.ir.region.affine import Size, loops_of, unit
from tcc.ir.region.convert import from_expr, to_expr
from tcc.ir.types import TensorType
from tcc.ops import OPS
from tcc.ops.algebra.movement import SplitAttrs
from tcc.ops.shapes import replaced
from tcc.passes.choose.content import site as choice_site
from tcc.passes.derive.prices import site_graph, stand_ins
from tcc.passes.derive.sites import SiteScope, scopes
from tcc.passes.fuse.compose import node_expr
from tcc.passes.fuse.node_kinds import NodeKind, classify
from tcc.passes.graph.emit import express
from tcc.passes.program.price import priced_kernels, unread
from tcc.passes.tile.plan import KernelChooser
from tcc.schedule.alternatives import NO_TIME, Alternative, Seconds
from tcc.schedule.choice_text import text_of
from tcc.schedule.margins import MARGINS
from tcc.zipped import zip_equal

# A bundle has at most _PARTS parts. At most _AROUND neighbours of a bundle are priced with it.
_PARTS, _AROUND = 4, 12


@frozen
class Part:
    """A node that computes a part of a merged result.

    `loop` is the result loop along which parts are concatenated.  `axes` has for each operand the
    axis along which the parts' constants are concatenated; None for an operand that all parts
    share.
    """

    node: Node
    loop: int
    axes: tuple[int | None, ...]


Bundle: TypeAlias = Sequence[Part]
# A function (builder, constants, axis) that returns the value of the concatenated constants.
_Join: TypeAlias = Callable[[GraphBuilder, Sequence[Value], int], Value]


class MergePrices:
    """Decides by a planner's prices which parts of a bundle are merged.

    Bundles of equal nodes with equal neighbours are priced once.  Bundles of the same constants get
    the same decision.
    """

    def __init__(self, planner: KernelChooser) -> None:
        self.planner = planner
        self._cheapest_of: dict[Any, list[slice]] = {}
        self._decided: dict[Any, list[slice]] = {}

    def groups(self, scope: SiteScope, bundle: Bundle) -> Iterator[Bundle]:
        """Yields the groups of at least two parts that shall be merged."""
        constants = tuple(
            scope.known[v]
            for p in bundle
            for v, axis in zip_equal(p.node.inputs, p.axes)
            if v is not None and axis is not None
        )
        if constants not in self._decided:
            self._decided[constants] = self._cheapest(scope, bundle)
        slices = (bundle[part] for part in self._decided[constants])
        return (group for group in slices if len(group) > 1)

    def _cheapest(self, scope: SiteScope, bundle: Bundle) -> list[slice]:
        # An image [n, channel, height, ...] is stored in the layout that its neighbours need.
        image = bundle[0].node.result.rank > 3
        site = scope.site([p.node for p in bundle], _neighbours(scope, bundle), stored=image)
        if site.key not in self._cheapest_of:
            graph = site_graph(site)
            pools = stand_ins(graph)
            computed = (node for node in graph.nodes if node not in pools)
            nodes = dict(zip_equal(site.neighbourhood, computed))
            copies = [Part(nodes[p.node], p.loop, p.axes) for p in bundle]
            rule, *alternatives = (
                Alternative(
                    way,
                    self._seconds(graph, [copies[group] for group in way]),
                    name=text_of(tuple(group.stop - group.start for group in way)),
                )
                for way in _ways(len(bundle))
            )
            self._cheapest_of[site.key] = self.planner.ledger.decide(
                lambda: choice_site("merge", site.key),
                rule,
                alternatives,
                MARGINS["merge"],
                bundle[0].node.loc,
            ).replacement
        return self._cheapest_of[site.key]

    def _seconds(self, graph: Graph, groups: Sequence[Bundle]) -> Seconds:
        candidate = merged(
            graph,
            [g for g in groups if len(g) > 1],
            lambda b, values, axis: unread(b, _joined_type(values, axis), "joined"),
        )
        kernels = priced_kernels(candidate, self.planner, stand_ins(candidate))
        return sum((seconds for _, seconds in kernels), NO_TIME)


def merge_contractions(graph: Graph, prices: MergePrices) -> Graph:
    """Returns `graph` with sums of products merged; `graph` itself if none are merged."""
    parts = list(scopes(graph))
    groups = [g for part in parts for bundle in bundles(part) for g in prices.groups(part, bundle)]
    # All scopes share a mapping of constants.
    constants = parts[0].known

    def join(b: GraphBuilder, values: Sequence[Value], axis: int) -> Value:
        handle = b.store.derive(
            lambda *arrays: np.concatenate(arrays, axis),
            f"concat along {axis}",
            [constants[v] for v in values],
        )
        return b.constant_handle(handle, _joined_type(values, axis), values[0].name)

    return merged(graph, groups, join)


def merged(graph: Graph, groups: Sequence[Bundle], join: _Join) -> Graph:
    """Returns `graph` with a single node for the parts of each group; `graph` itself without
    groups.

    `join` returns the value of the constants that it concatenates along an axis.
    """
    group_of = {part.node: group for group in groups for part in group}
    results: dict[Node, Value] = {}

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        if node not in group_of:
            return None
        if node not in results:
            group = group_of[node]
            results.update(zip_equal((p.node for p in group), _one(b, group, inputs, join)))
        return [results[node]]

    return rewritten(graph, visit) if groups else graph


def _one(b: GraphBuilder, group: Bundle, inputs: Inputs, join: _Join) -> Sequence[Value]:
    """Adds the node that computes all parts, and returns the value of each part."""
    node, loop, axes = group[0].node, group[0].loop, group[0].axes
    operands = list(inputs)
    for n, axis in enumerate(axes):
        if axis is not None:
            parts = (part.node.inputs[n] for part in group)
            operands[n] = join(b, [v for v in parts if v is not None], axis)
    sizes = tuple(part.node.result.shape[loop] for part in group)
    types = types_of(operands)
    region = _region(node)
    assert region is not None
    combined = _resized(region, loop, sum(as_int(size) or 0 for size in sizes))
    assert node.op.expr is not None
    if from_expr(node.op.expr(types, node.attrs))[1:] == combined[1:]:
        (y,) = b.add(node.op, operands, node.attrs)
    else:
        (y,) = express(b, to_expr(combined._replace(params=types)), *operands)
    return b.add(OPS["split"], [y], SplitAttrs(loop, sizes))


def _joined_type(values: Sequence[Value], axis: int) -> TensorType:
    """Returns the type of values that are concatenated along an axis."""
    size = const(sum(as_int(v.shape[axis]) or 0 for v in values))
    dtype, shape = values[0].dtype, values[0].shape
    return TensorType(dtype, replaced(shape, axis, size))


def _ways(count: int) -> Iterator[list[slice]]:
    """Yields the groupings of `count` parts into consecutive slices.

    The grouping with a slice for each part comes first.
    """
    for cuts in product((True, False), repeat=count - 1):
        ends = [0, *(n for n, is_cut in enumerate(cuts, 1) if is_cut), count]
        yield [slice(*bounds) for bounds in pairwise(ends)]


# ---- bundles ------------------------------------------------------------------------------------


def bundles(scope: SiteScope) -> Iterator[Bundle]:
    """Yields bundles of at most `_PARTS` nodes.

    The nodes of a bundle compute the same sum of products of the same values, with different
    constants.
    """
    parts_of: dict[Any, list[Part]] = {}
    for node in scope.graph.nodes:
        region = _region(node)
        if region is None:
            continue
        for loop in range(len(region.stages[0].iters)):
            axes = _axes(region, loop)
            if axes is not None and _is_own(scope, node, axes):
                pairs = zip_equal(node.inputs, axes)
                shared = tuple(
                    v if axis is None else v and (v.dtype, replaced(v.shape, axis))
                    for v, axis in pairs
                )
                key = loop, axes, shared, _resized(region, loop, 0)[1:]
                parts_of.setdefault(key, []).append(Part(node, loop, axes))
    bundled: set[Node] = set()
    for parts in parts_of.values():
        remaining = [p for p in parts if p.node not in bundled]
        for first in range(0, len(remaining) - 1, _PARTS):
            bundle = remaining[first : first + _PARTS]
            if len(bundle) > 1:
                bundled.update(p.node for p in bundle)
                yield bundle


def _region(node: Node) -> Region | None:
    """Returns the region of a sum of products; None for another node."""
    if classify(node) is not NodeKind.CONTRACTION or len(node.outputs) != 1:
        return None
    expr = node_expr(node)
    return None if expr is None else from_expr(expr)


@lru_cache(4096)
def _axes(region: Region, loop: int) -> tuple[int | None, ...] | None:
    """Returns for each parameter the axis whose index is `loop`, or None if no axis depends on it.

    Returns None in place of the tuple if some index depends on `loop` and on more than it, as in
    `loop + 1`, or if no index depends on it.
    """
    axes_of: dict[int, set[int | None]] = {}
    for stage in region.stages:
        loop_form = unit(loop, len(stage.loops))
        if is_leaf(stage) or stage.iters != region.stages[0].iters:
            return None
        for factor in stage.factors:
            at = [n for n, form in enumerate(factor.forms) if loop in loops_of(form)]
            if factor.source is None:
                is_axis = not at
            elif factor.source < 0:
                is_axis = at == [loop] and factor.forms[loop] == loop_form
            else:
                axes_of.setdefault(factor.source, set()).update(at or [None])
                size = shape_of(region, factor.source)[at[0]] if at else None
                is_axis = not at or (factor.forms[at[0]], size) == (loop_form, stage.iters[loop])
            if not is_axis:
                return None
    axes = [axes_of.get(n, {None}) for n in range(len(region.params))]
    if any(len(options) > 1 for options in axes) or all(None in options for options in axes):
        return None
    return tuple(options for (options,) in axes)


def _resized(region: Region, loop: int, size: Size) -> Region:
    """Returns the region with extent `size` for a result loop that covers whole axes."""
    stages = (s._replace(iters=replaced(s.iters, loop, size)) for s in region.stages)
    return region._replace(stages=tuple(stages))


def _is_own(scope: SiteScope, node: Node, axes: Sequence[int | None]) -> bool:
    """Returns True if all operands with an axis in `axes` are constants that nothing else reads.

    At least one operand without an axis must not be constant.
    """
    pairs = [(v, axis) for v, axis in zip_equal(node.inputs, axes) if v is not None]
    constants = [v for v, axis in pairs if axis is not None]
    are_private = all(
        v in scope.graph.constants and v not in scope.kept_values and len(scope.users[v]) == 1
        for v in constants
    )
    return are_private and any(axis is None and v not in scope.known for v, axis in pairs)


def _neighbours(scope: SiteScope, bundle: Bundle) -> list[Node]:
    """Returns the parts of a bundle, and the nodes that may share kernels with the parts.

    The latter are the nodes after the parts, up to the next contractions with constants, and the
    nodes before the parts whose results nothing else reads.
    """
    nodes = [part.node for part in bundle]
    behind = list(nodes)
    for node in behind:
        readers = dict.fromkeys(u for v in node.outputs for u in scope.users.get(v, ()))
        new = [u for u in readers if u not in behind and _may_share(scope, u)]
        behind += new[: max(0, _AROUND * len(nodes) - len(behind))]
    nodes_around = list(behind)
    for node in nodes_around:
        makers = dict.fromkeys(n for v in node.inputs if (n := scope.producers.get(v)))
        nodes_around += [
            n for n in makers if n not in nodes_around and _is_read_by(scope, n, nodes_around)
        ]
    return nodes_around


def _is_read_by(scope: SiteScope, node: Node, readers: Sequence[Node]) -> bool:
    """Returns True if a node may share kernels with `readers`, and nothing else reads it."""
    users = (u for v in node.outputs for u in scope.users.get(v, ()))
    is_output = not scope.kept_values.isdisjoint(node.outputs)
    return not is_output and all(u in readers for u in users) and _may_share(scope, node)


def _may_share(scope: SiteScope, node: Node) -> bool:
    kind = classify(node)
    has_constant = kind is NodeKind.CONTRACTION and any(v in scope.known for v in node.inputs if v)
    return kind is not NodeKind.OPAQUE and not has_constant
