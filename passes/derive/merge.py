"""Sums of products that share a factor become one, where prices say so.

    %q = matmul(%x, %a[1024, 1024])              %y = matmul(%x, [%a %b])
    %k = matmul(%x, %b[1024, 256])       ->      %q, %k = split(%y)

Nodes are told by their expressions.  Those that compute the same of the same values, and of
constants along one loop of their results, are parts of one node that has these constants joined:
what prepares the shared factor is then done for one kernel, which reads it once and keeps all cores
busy; but readers find their parts in a larger result.  Each bundle is priced apart, joined, and in
the ways between, with the neighbours that may share kernels with it; images are stored as between
kernels, by stand-ins that count in the price of every way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import as_int, const
from tcc.ir.types import TensorType
from tcc.ops import OPS
from tcc.ops.algebra.movement import SplitAttrs
from tcc.passes.choose.price import priced_kernels, unread
from tcc.passes.derive.affine import Size, loops_of, unit
from tcc.passes.derive.candidate import MARGIN
from tcc.passes.derive.convert import from_expr, to_expr
from tcc.passes.derive.prices import site_graph, stand_ins
from tcc.passes.derive.record import Region, is_leaf, shape_of
from tcc.passes.derive.sites import Scope, scopes
from tcc.passes.fuse.compose import node_expr
from tcc.passes.fuse.partition import NodeKind, classify
from tcc.passes.graph.emit import express
from tcc.passes.tile.plan import KernelPlanner
from tcc.record import record
from tcc.schedule.alternatives import Alternative, preferred

# Parts of a bundle that are looked at together, and neighbours of each.
_PARTS, _AROUND = 4, 12


@record
class Part:
    """A node that computes a part along a loop of the result; `axes` are those of its operands
    along which constants are joined, None for what all parts share."""

    node: Node
    loop: int
    axes: tuple[int | None, ...]


Bundle: TypeAlias = Sequence[Part]
# The value of constants joined along an axis.
_Join: TypeAlias = Callable[[GraphBuilder, Sequence[Value], int], Value]


class MergePrices:
    """Which parts of a bundle become one, by the prices of a planner; bundles of equal nodes among
    equal neighbours are priced once, and one of the same constants is never decided anew."""

    def __init__(self, planner: KernelPlanner) -> None:
        self.planner = planner
        self._known: dict[Any, list[slice]] = {}
        self._decided: dict[Any, list[slice]] = {}

    def groups(self, scope: Scope, bundle: Bundle) -> Iterator[Bundle]:
        """The parts that become one, where there are several."""
        constants = tuple(
            scope.known[v]
            for p in bundle
            for v, axis in zip(p.node.inputs, p.axes, strict=True)
            if v is not None and axis is not None
        )
        if constants not in self._decided:
            self._decided[constants] = self._cheapest(scope, bundle)
        found = (bundle[each] for each in self._decided[constants])
        return (group for group in found if len(group) > 1)

    def _cheapest(self, scope: Scope, bundle: Bundle) -> list[slice]:
        image = bundle[0].node.outputs[0].type.rank > 3  # in the layout that suits those around
        site = scope.site([p.node for p in bundle], _neighbours(scope, bundle), stored=image)
        if site.key not in self._known:
            graph = site_graph(site)
            apart = stand_ins(graph)
            own = (node for node in graph.nodes if node not in apart)
            nodes = dict(zip(site.around, own, strict=True))
            copies = [Part(nodes[p.node], p.loop, p.axes) for p in bundle]
            first, *others = (
                Alternative(bundle, way, self._seconds(graph, [copies[each] for each in way]))
                for way in _ways(len(bundle))
            )
            self._known[site.key] = preferred(first, others, MARGIN).replacement
        return self._known[site.key]

    def _seconds(self, graph: Graph, groups: Sequence[Bundle]) -> float:
        joined = merged(graph, [g for g in groups if len(g) > 1], _unread)
        found = priced_kernels(joined, self.planner, stand_ins(joined))
        return sum(seconds for _, seconds in found)


def merge_contractions(graph: Graph, prices: MergePrices) -> Graph:
    """`graph` with sums of products merged that share a factor; itself where none are."""
    parts = list(scopes(graph))
    found = [g for part in parts for each in bundles(part) for g in prices.groups(part, each)]
    known = parts[0].known  # which is that of all bodies

    def join(b: GraphBuilder, values: Sequence[Value], axis: int) -> Value:
        whole = np.concatenate([b.store.get(known[v]) for v in values], axis)
        sources = [s for v in values for s in b.store.sources(known[v])]
        return b.constant(whole, values[0].name, values[0].type.dtype, sources)

    return merged(graph, found, join)


def merged(graph: Graph, groups: Sequence[Bundle], join: _Join) -> Graph:
    """`graph` with the parts of each group computed by one node; itself for no groups."""
    group_of = {part.node: group for group in groups for part in group}
    made: dict[Node, Value] = {}

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        if node not in group_of:
            return None
        if node not in made:
            group = group_of[node]
            made.update(zip((p.node for p in group), _one(b, group, inputs, join), strict=True))
        return [made[node]]

    return rewritten(graph, visit) if groups else graph


def _one(b: GraphBuilder, group: Bundle, inputs: Inputs, join: _Join) -> Sequence[Value]:
    """Adds the node that computes all parts; the values of these."""
    node, loop, axes = group[0].node, group[0].loop, group[0].axes
    operands = list(inputs)
    for n, axis in enumerate(axes):
        if axis is not None:
            parts = (part.node.inputs[n] for part in group)
            operands[n] = join(b, [v for v in parts if v is not None], axis)
    sizes = tuple(part.node.outputs[0].type.shape[loop] for part in group)
    types = tuple(None if v is None else v.type for v in operands)
    region = _region(node)
    assert region is not None
    whole = _resized(region, loop, sum(as_int(size) or 0 for size in sizes))
    assert node.op.expr is not None
    if from_expr(node.op.expr(types, node.attrs))[1:] == whole[1:]:
        (y,) = b.add(node.op, operands, node.attrs)
    else:
        (y,) = express(b, to_expr(whole._replace(params=types)), *operands)
    return b.add(OPS["split"], [y], SplitAttrs(loop, sizes))


def _unread(b: GraphBuilder, values: Sequence[Value], axis: int) -> Value:
    shape = list(values[0].type.shape)
    shape[axis] = const(sum(as_int(v.type.shape[axis]) or 0 for v in values))
    return unread(b, TensorType(values[0].type.dtype, tuple(shape)), "joined")


def _ways(count: int) -> Iterator[list[slice]]:
    """The ways to part so many in runs, all apart first."""
    for cut in product((True, False), repeat=count - 1):
        ends = [0, *(n for n, cuts in enumerate(cut, 1) if cuts), count]
        yield [slice(*each) for each in pairwise(ends)]


# ---- bundles ------------------------------------------------------------------------------------


def bundles(scope: Scope) -> Iterator[Bundle]:
    """Parts of the same sums of products, at most as many as are looked at together."""
    found: dict[Any, list[Part]] = {}
    for node in scope.graph.nodes:
        region = _region(node)
        if region is None:
            continue
        for loop in range(len(region.stages[0].iters)):
            axes = _axes(region, loop)
            if axes is not None and _is_own(scope, node, axes):
                pairs = zip(node.inputs, axes, strict=True)
                shared = tuple(v if axis is None else _rest(v, axis) for v, axis in pairs)
                key = loop, axes, shared, _resized(region, loop, 0)[1:]
                found.setdefault(key, []).append(Part(node, loop, axes))
    taken: set[Node] = set()
    for parts in found.values():
        left = [p for p in parts if p.node not in taken]
        for first in range(0, len(left) - 1, _PARTS):
            bundle = left[first : first + _PARTS]
            if len(bundle) > 1:
                taken.update(p.node for p in bundle)
                yield bundle


def _region(node: Node) -> Region | None:
    """What a sum of products computes; None for another node."""
    if classify(node).kind is not NodeKind.CONTRACTION or len(node.outputs) != 1:
        return None
    found = node_expr(node)
    return None if found is None else from_expr(found)


@lru_cache(maxsize=4096)
def _axes(region: Region, loop: int) -> tuple[int | None, ...] | None:
    """The axis of each parameter, if any, that a loop of the result alone runs along; None where it
    is in another index, or in none."""
    found: dict[int, set[int | None]] = {}
    for stage in region.stages:
        own = unit(loop, len(stage.loops))
        if is_leaf(stage) or stage.iters != region.stages[0].iters:
            return None
        for factor in stage.factors:
            at = [n for n, form in enumerate(factor.forms) if loop in loops_of(form)]
            if factor.source is None:
                whole = not at
            elif factor.source < 0:
                whole = at == [loop] and factor.forms[loop] == own
            else:
                found.setdefault(factor.source, set()).update(at or [None])
                size = shape_of(region, factor.source)[at[0]] if at else None
                whole = not at or (factor.forms[at[0]], size) == (own, stage.iters[loop])
            if not whole:
                return None
    axes = [found.get(n, {None}) for n in range(len(region.params))]
    if any(len(each) > 1 for each in axes) or all(None in each for each in axes):
        return None
    return tuple(each for (each,) in axes)


def _resized(region: Region, loop: int, size: Size) -> Region:
    """The region of so many results along a loop that runs along whole axes."""
    stages = (
        s._replace(iters=(*s.iters[:loop], size, *s.iters[loop + 1 :])) for s in region.stages
    )
    return region._replace(stages=tuple(stages))


def _rest(value: Value | None, axis: int) -> Any:
    return value and (value.type.dtype, value.type.shape[:axis], value.type.shape[axis + 1 :])


def _is_own(scope: Scope, node: Node, axes: Sequence[int | None]) -> bool:
    """Whether what a node does not share are constants that nothing else reads, and what it shares
    is not all constant."""
    pairs = [(v, axis) for v, axis in zip(node.inputs, axes, strict=True) if v is not None]
    own = [v for v, axis in pairs if axis is not None]
    alone = all(
        v in scope.graph.constants and v not in scope.kept and len(scope.users[v]) == 1 for v in own
    )
    return alone and any(axis is None and v not in scope.known for v, axis in pairs)


def _neighbours(scope: Scope, bundle: Bundle) -> list[Node]:
    """What may share kernels with parts: what is behind them up to the next sums of products with
    constants, and what is before them and read by nothing else."""
    nodes = [part.node for part in bundle]
    behind = list(nodes)
    for node in behind:
        readers = dict.fromkeys(u for v in node.outputs for u in scope.users.get(v, ()))
        new = [u for u in readers if u not in behind and _may_share(scope, u)]
        behind += new[: max(0, _AROUND * len(nodes) - len(behind))]
    found = list(behind)
    for node in found:
        makers = dict.fromkeys(n for v in node.inputs if v and (n := scope.producers.get(v)))
        found += [n for n in makers if n not in found and _is_read_by(scope, n, found)]
    return found


def _is_read_by(scope: Scope, node: Node, readers: Sequence[Node]) -> bool:
    """Whether a node may share kernels with those that alone read it."""
    users = (u for v in node.outputs for u in scope.users.get(v, ()))
    kept = not scope.kept.isdisjoint(node.outputs)
    return not kept and all(u in readers for u in users) and _may_share(scope, node)


def _may_share(scope: Scope, node: Node) -> bool:
    kind = classify(node).kind
    known = kind is NodeKind.CONTRACTION and any(v in scope.known for v in node.inputs if v)
    return kind is not NodeKind.OPAQUE and not known
