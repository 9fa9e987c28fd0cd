"""Builds a tile group from an expression and the layouts of its operands and results.

    y[i, j] = max(x[j, i], 0)   with x row-major [8, 4]
      ->  y@(8*i + j) = max(x@(4*j + i), 0)

Requires stages that read each other only at plain iterators, as `compose` establishes.  Establishes
that corresponding loops of stages have the same iterator, that each access has a single offset into
its buffer, and that each index that may be outside of its axis has a guard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.expr import Expr, extent, reads, with_sources
from tcc.ir.expr.scalar import Read, Source, StageRef, index_values
from tcc.ir.index import (
    Indices,
    Var,
    Vars,
    as_int,
    const,
    free_vars,
    linear_in,
    substitute,
    within,
)
from tcc.ir.index.prove import inside
from tcc.ir.layout import Layout, flat, place, row_major
from tcc.ir.tile import Guard, MemorySpace
from tcc.ir.tile.group import Access, GroupBuffer, GroupStage, Strip, TileGroup
from tcc.ir.types import DType, element_count
from tcc.passes.fuse.collapse import coefficient_size, collapse, order_loops, widest_access
from tcc.passes.fuse.compose import drop_unused, inline_pointwise, side_by_side
from tcc.passes.fuse.recompute import streaming_loops
from tcc.passes.fuse.result_places import is_open, result_places
from tcc.passes.fuse.sliding_window import Loops, shared_loops
from tcc.passes.fuse.streaming import streamed
from tcc.passes.fuse.unify_iterators import (
    Shaped,
    axes_at,
    linked_stages,
    needs_memory,
    radix_size,
)
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits
from tcc.zipped import zip_equal


@frozen
class Storage:
    """The storage of an operand or result: its type, its logical shape, and its layout (the order
    in which memory holds the elements)."""

    dtype: DType
    shape: Indices
    layout: Layout
    constant: bool = False


def build_group(
    expr: Expr,
    operands: Sequence[Storage],
    results: Sequence[Storage],
    *,
    collapsed: bool = True,
    limits: FusionLimits = TYPICAL_LIMITS,
) -> TileGroup:
    """Returns the tile group of `expr`.

    Its buffers are the operands in order, then the results, then local buffers.  If `collapsed`,
    nested loops whose points are equally far apart in storage are merged into one loop.
    """
    return _finished(_uncollapsed(expr, tuple(operands), tuple(results), limits), collapsed)


@lru_cache(1024)
def _finished(group: TileGroup, collapsed: bool) -> TileGroup:
    return _with_sizes(collapse(group) if collapsed else group)


@lru_cache(1024)  # cached, because different forms and knobs often give equal groups
def _uncollapsed(
    expr: Expr, operands: tuple[Storage, ...], results: tuple[Storage, ...], limits: FusionLimits
) -> TileGroup:
    """Returns the group with all its loops, before loops are merged, and without its size
    symbols."""
    expr = side_by_side(expr) if limits.merges_reductions else expr
    online = streamed(expr, limits)
    stream = None if online is None else online.stream
    expr, places = _placed(expr, results, limits) if online is None else (online.expr, {})
    linked = linked_stages(expr)
    if stream is None:
        loops = shared_loops(expr, limits)
        common = tile_loops = loops.common
    else:
        common = streaming_loops(linked, {out.stage for out in expr.outputs})
        loops = Loops(common, (None,) * len(linked))
        tile_loops = (*common, stream.loop)
    buffers = [
        GroupBuffer(s.dtype, element_count(s.layout.sizes), scope, s.constant)
        for storages, scope in ((operands, MemorySpace.INPUT), (results, MemorySpace.OUTPUT))
        for s in storages
    ]
    resident: dict[int, InScratch | InResult] = {}
    stages = []
    for number, shaped in enumerate(linked):
        stage = shaped.stage
        accesses = {r: _read_access(r, operands, linked, resident) for r in reads(stage)}
        placed = {r: a for r, a in accesses.items() if a is not None}
        strip = loops.strips[number]
        if number in places:
            result = places[number]
            resident[number] = InResult(len(buffers), shaped, results[result].layout)
            result_buffer = buffers[len(operands) + result]
            local = replace(result_buffer, scope=MemorySpace.LOCAL, place=len(operands) + result)
            buffers.append(local)
        elif strip is not None or needs_memory(linked, number, common):
            widest = widest_access(placed.values(), buffers, stage.loops)
            resident[number] = _in_scratch(buffers, shaped, tile_loops, strip, widest)
        home = resident.get(number)
        stores: list[tuple[Access, ...]] = []
        for component in range(len(stage.body)):
            targets = [
                _store(len(operands) + n, shaped, component, results[n])
                for n, out in enumerate(expr.outputs)
                if out == StageRef(number, 0 if shaped.places else component)
            ]
            if home is not None:
                unrolled = shaped.unrolled_iters
                at = axes_at(shaped, shaped.places[component]) if unrolled else stage.at
                targets.append(home.access(component, at))
            stores.append(tuple(targets))
        grouped = GroupStage(
            stage.iters,
            stage.reduce,
            stage.monoid,
            stage.body,
            placed,
            tuple(stores),
            None if home is None else home.strip,
        )
        stages.append(grouped)
    return order_loops(TileGroup(tuple(buffers), tuple(stages), common, (), stream))


# ---- values that a tile holds in its scratch -----------------------------------------------------


@frozen
class InResult:
    """A stage that is stored in the memory of a result.

    `buffer` is the number of the result's buffer in the group, and `layout` the result's layout.
    """

    buffer: int
    shaped: Shaped
    layout: Layout

    strip: None = None

    def access(self, component: int, at: Indices) -> Access:
        """Returns the access to the stage's element at the iterator values `at`."""
        values = dict(zip_equal(self.shaped.axes, at))
        logical = tuple(substitute(index, values) for index in self.shaped.logical)
        return Access(self.buffer, flat(place(self.layout, logical), self.layout.sizes))


def _placed(
    expr: Expr, results: Sequence[Storage], limits: FusionLimits
) -> tuple[Expr, Mapping[int, int]]:
    """Returns (expr, places): `places` maps a stage of symbolic size to the index of the result in
    whose memory it is stored.

    If a pointwise stage of symbolic size fits no result, it is inlined: its readers compute it.
    """
    if not limits.reuses_results:
        return expr, {}
    linked, loops = linked_stages(expr), shared_loops(expr, limits)
    placed = result_places(linked, loops, expr.outputs, [s.dtype for s in results])
    stored_stages = frozenset(
        n for n in range(len(linked)) if n in placed or not is_open(linked, n, loops.common)
    )
    inlined = inline_pointwise(expr, stored_stages)
    if len(stored_stages) == len(linked) or inlined == expr:
        return expr, placed
    small, operand_numbers = drop_unused(inlined)

    def numbered(source: Source) -> Source:
        return source if isinstance(source, StageRef) else operand_numbers[source]

    again = tuple(with_sources(stage, numbered) for stage in small.stages)
    return _placed(replace(small, params=expr.params, stages=again), results, limits)


@frozen
class InScratch:
    """A stage in a tile's scratch.

    `buffers`: the number of each component's buffer.
    The scratch has an axis for each iterator of the stage that is no common loop.
    `order`: the positions of these iterators among all iterators, in order of storage.
    `sizes`: the sizes of the axes, with padding.
    `before`: the number of padding elements before the first element along each axis.
    """

    buffers: tuple[int, ...]
    order: tuple[int, ...]
    sizes: Indices
    before: tuple[int, ...]
    strip: Strip | None

    def access(self, component: int, at: Indices) -> Access:
        """Returns the access to the stage's element at the iterator values `at`."""
        indices = [at[n] + first for n, first in zip_equal(self.order, self.before)]
        offset = flat(tuple(indices), self.sizes)
        if self.strip is None:
            return Access(self.buffers[component], offset)
        fixed_indices = (i for n, i in enumerate(at) if n not in self.order)
        return Access(self.buffers[component], offset, along=free_vars(*fixed_indices))


def _in_scratch(
    buffers: list[GroupBuffer],
    shaped: Shaped,
    tile_loops: Vars,
    strip: Strip | None,
    widest: Access | None,
) -> InScratch:
    """Adds the scratch buffers of a stage to `buffers`, and returns where its elements are stored.

    A stage is stored in the order of its iterators, `tile_loops` excluded.  A stage with a strip is
    stored row by row; the axes of a row have the order of their strides in the access `widest`.
    """
    iters = shaped.axes
    order = [n for n, v in enumerate(iters) if v not in tile_loops]
    sizes = {n: extent(iters[n]) for n in order}
    before = dict.fromkeys(order, 0)
    if strip is not None:
        inner = [n for n in order if iters[n] is not strip.rows]
        axes = dict(zip_equal(inner, strip.row))
        inner.sort(key=lambda n: -coefficient_size(widest, iters[n]))
        strip = replace(strip, row=tuple(axes[n] for n in inner))
        order = [iters.index(strip.rows), *inner]
        sizes = {order[0]: extent(strip.rows), **{n: const(sum(axes[n])) for n in inner}}
        before = {order[0]: 0, **{n: axes[n][0] for n in inner}}
    size = element_count(tuple(sizes[n] for n in order))
    if as_int(size) is None:
        raise InternalError("a value held in a tile's scratch must have a static size")
    numbers: list[int] = []
    for scalar in shaped.stage.body:
        if not numbers or not shaped.unrolled_iters:
            buffers.append(GroupBuffer(scalar.dtype, size, MemorySpace.LOCAL))
        numbers.append(len(buffers) - 1)
    places = tuple(sizes[n] for n in order), tuple(before[n] for n in order)
    return InScratch(tuple(numbers), tuple(order), *places, strip)


# ---- accesses ---------------------------------------------------------------------------------


def _read_access(
    node: Read,
    operands: Sequence[Storage],
    stages: Sequence[Shaped],
    resident: Mapping[int, InScratch | InResult],
) -> Access | None:
    """Returns the access of a read; None if it reads the element that was just computed, which is
    in registers."""
    source = node.source
    if isinstance(source, int):
        return _access(source, node, operands[source])
    if source.stage not in resident:
        return None
    shaped = stages[source.stage]
    at = axes_at(shaped, node.indices)
    place = resident[source.stage].access(source.component, at)
    if resident[source.stage].strip is not None:
        return place  # A strip stores its padding, so no guards are needed.
    return replace(place, guards=_logical_guards(node, tuple(map(radix_size, shaped.logical))))


@lru_cache(1 << 14)  # cached, because the forms and sizes of a kernel share most reads
def _access(source: int, node: Read, storage: Storage) -> Access:
    guards = _logical_guards(node, storage.shape)
    is_private = all(within(node.indices[a], storage.shape[a]) for a in storage.layout.shared)
    position = place(storage.layout, node.indices)
    beyond: tuple[Guard, ...] = ()
    if (
        is_private
        and node.fill is not None
        and float(node.fill) == storage.layout.fill  # which lies outside of the value's elements
        and all(map(within, position, storage.layout.sizes))
    ):
        beyond = () if node.fill else tuple(g for g in guards if as_int(g.extent) is None)
        guards = ()
    return Access(source, flat(position, storage.layout.sizes), guards, beyond=beyond)


def _logical_guards(node: Read, shape: Indices) -> tuple[Guard, ...]:
    """Returns guards for the indices that depend on data or are not proved to be inside `shape`."""
    loose = {v for v, _ in node.indirect}
    return tuple(
        Guard(i, n)
        for i, n in zip_equal(node.indices, shape)
        if loose & set(free_vars(i)) or not inside(i, n)
    )


def _store(buffer: int, shaped: Shaped, component: int, storage: Storage) -> Access:
    """Returns the access that stores a component in the buffer `buffer`.

    An unrolled stage may compute elements beyond the end; a guard drops them.
    """
    at = shaped.places[component] if shaped.places else shaped.logical
    beyond = zip_equal(at, storage.shape) if shaped.places else ()
    guards = tuple(Guard(i, n) for i, n in beyond if not within(i, n))
    return Access(buffer, flat(place(storage.layout, at), storage.layout.sizes), guards)


def _with_sizes(group: TileGroup) -> TileGroup:
    symbols: dict[Var, None] = {}
    for stage in group.stages:
        indices = [extent(v) for v in stage.loops]
        for access in stage.accesses.values():
            indices.append(access.offset)
            indices += [i for g in (*access.guards, *access.beyond) for i in (g.index, g.extent)]
        indices += [a.offset for a in stage.written]
        indices += [i for a in stage.written for g in a.guards for i in (g.index, g.extent)]
        indices += index_values(*stage.body)
        symbols.update(dict.fromkeys(v for v in free_vars(*indices) if v.extent is None))
    return replace(group, sizes=tuple(symbols))


def row_major_storage(expr: Expr, constants: Sequence[bool]) -> tuple[list[Storage], list[Storage]]:
    """Returns row-major storage for the operands and for the results of an expression."""
    operands = [
        Storage(t.dtype, t.shape, row_major(t.shape), constant)
        for t, constant in zip_equal(expr.params, constants)
        if t
    ]
    return operands, [Storage(t.dtype, t.shape, row_major(t.shape)) for t in expr.types]


def steps_evenly(stage: GroupStage) -> bool:
    """Returns True if the offsets of all accesses of a stage are linear in each loop."""
    accesses = stage.accesses.values()
    return all(linear_in(a.offset, var) is not None for a in accesses for var in stage.loops)
