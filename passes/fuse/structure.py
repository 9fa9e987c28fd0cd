"""Gives an expression storage: expression and layouts in, tile group out.

    y[i, j] = max(x[j, i], 0)   with x row-major [8, 4]
      ->  y@(8*i + j) = max(x@(4*j + i), 0)

Requires stages that read each other only at plain iterators (`compose` establishes it).
Establishes unified iterators, flat offsets, guards wherever an index is not proved inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tcc.errors import InternalError
from tcc.ir.expr import Expr, Stage, extent, reads
from tcc.ir.group import Access, GroupBuffer, GroupStage, TileGroup
from tcc.ir.index import Index, Var, as_int, const, free_vars, iterator, within
from tcc.ir.layout import Layout, place, strides
from tcc.ir.scalar import IndexValue, Read, StageRef, walk
from tcc.ir.tile import Guard, Scope
from tcc.ir.types import DType, element_count
from tcc.passes.fuse.collapse import collapse, order_loops
from tcc.passes.fuse.link import (
    Shaped,
    link_stages,
    loop_index,
    loops_at,
    radix_size,
    shaped_stage,
    stage_reads,
)
from tcc.passes.fuse.repeated import launch_loops


@dataclass(frozen=True, slots=True)
class Storage:
    """Where an operand or result lies: its layout over its logical shape."""

    dtype: DType
    shape: tuple[Index, ...]
    layout: Layout
    constant: bool = False


def build_group(
    expr: Expr, operands: Sequence[Storage], results: Sequence[Storage], *, collapsed: bool = True
) -> TileGroup:
    """The tile group of `expr`; buffers are the operands in order, the results, then locals."""
    linked = link_stages(_shaped(expr))
    common = launch_loops(linked, {out.stage for out in expr.outputs})
    buffers = [
        GroupBuffer(s.dtype, element_count(s.layout.sizes), scope, s.constant)
        for storages, scope in ((operands, Scope.INPUT), (results, Scope.OUTPUT))
        for s in storages
    ]
    held = {
        number: _local(buffers, shaped.stage, common)
        for number, shaped in enumerate(linked)
        if needs_memory(linked, number, common)
    }
    stages = []
    for number, shaped in enumerate(linked):
        stage = shaped.stage
        accesses = {r: _read_access(r, operands, linked, held, common) for r in reads(stage)}
        stores: list[tuple[Access, ...]] = []
        for component in range(len(stage.body)):
            targets = [
                _store(len(operands) + n, shaped, component, results[n])
                for n, out in enumerate(expr.outputs)
                if out == StageRef(number, 0 if shaped.places else component)
            ]
            if number in held:
                at = tuple(iterator(v.name, extent(v)) for v in stage.iters)
                targets.append(_local_access(held[number][component], stage, at, common))
            stores.append(tuple(targets))
        placed = {r: a for r, a in accesses.items() if a is not None}
        grouped = GroupStage(
            stage.iters, stage.reduce, stage.monoid, stage.body, placed, tuple(stores)
        )
        stages.append(grouped)
    group = order_loops(TileGroup(tuple(buffers), tuple(stages), common, ()))
    return _with_sizes(collapse(group) if collapsed else group)


def _shaped(expr: Expr) -> tuple[Shaped, ...]:
    """The stages; those that no other reads are unrolled where they can be."""
    sources = [node.source for stage in expr.stages for node in reads(stage)]
    inner = {s.stage for s in sources if isinstance(s, StageRef)}
    return tuple(
        shaped_stage(stage, unrolled=number not in inner)
        for number, stage in enumerate(expr.stages)
    )


# ---- values that a unit holds in its scratch memory ----------------------------------------------


def needs_memory(stages: Sequence[Shaped], number: int, common: tuple[Var, ...]) -> bool:
    """Whether a later stage reads this one anywhere but at the point it was just computed."""
    own = stages[number]
    plain = tuple(map(loop_index, own.stage.iters))
    read_at = [at for shaped, at in stage_reads(stages) if shaped is own]
    if not read_at:
        return False
    return set(own.stage.iters) != set(common) or any(loops_at(own, at) != plain for at in read_at)


def _local(buffers: list[GroupBuffer], stage: Stage, common: tuple[Var, ...]) -> tuple[int, ...]:
    size = element_count(tuple(extent(v) for v in stage.iters if v not in common))
    if as_int(size) is None:
        raise InternalError("a value held in a unit's scratch must have a static size")
    numbers = []
    for scalar in stage.body:
        buffers.append(GroupBuffer(scalar.dtype, size, Scope.LOCAL))
        numbers.append(len(buffers) - 1)
    return tuple(numbers)


def _local_access(
    buffer: int, stage: Stage, at: tuple[Index, ...], common: tuple[Var, ...]
) -> Access:
    pairs = [(v, i) for v, i in zip(stage.iters, at, strict=True) if v not in common]
    return Access(buffer, _flatten(tuple(i for _, i in pairs), tuple(extent(v) for v, _ in pairs)))


# ---- accesses ---------------------------------------------------------------------------------


def _read_access(
    node: Read,
    operands: Sequence[Storage],
    stages: Sequence[Shaped],
    held: Mapping[int, tuple[int, ...]],
    common: tuple[Var, ...],
) -> Access | None:
    """Where a read finds its element; None if it is the block just computed."""
    source = node.source
    if isinstance(source, int):
        return _access(source, node, operands[source])
    if source.stage not in held:
        return None
    shaped = stages[source.stage]
    at = loops_at(shaped, node.indices)
    place = _local_access(held[source.stage][source.component], shaped.stage, at, common)
    shape = tuple(map(radix_size, shaped.logical))
    return replace(place, guards=tuple(_logical_guards(node, shape)))


def _access(source: int, node: Read, storage: Storage) -> Access:
    guards = _logical_guards(node, storage.shape)
    own = all(within(node.indices[a], storage.shape[a]) for a in storage.layout.shared)
    stored = place(storage.layout, node.indices)
    if guards and own and _fills_agree(node, storage):
        in_storage = [
            Guard(i, n)
            for i, n in zip(stored, storage.layout.sizes, strict=True)
            if not within(i, n)
        ]
        guards = [] if not in_storage else guards
    return Access(source, _flatten(stored, storage.layout.sizes), tuple(guards))


def _logical_guards(node: Read, shape: tuple[Index, ...]) -> list[Guard]:
    """The bounds that are not proved.  Data-dependent indices are never taken on trust."""
    loose = {v for v, _ in node.indirect}
    return [
        Guard(i, n)
        for i, n in zip(node.indices, shape, strict=True)
        if loose & set(free_vars(i)) or not within(i, n)
    ]


def _fills_agree(node: Read, storage: Storage) -> bool:
    """Whether storage outside the elements holds what the read wants to see there."""
    return (
        node.fill is not None
        and storage.layout.fill is not None
        and (float(node.fill) == storage.layout.fill)
    )


def _store(buffer: int, shaped: Shaped, component: int, storage: Storage) -> Access:
    """Where a component goes; an unrolled stage may compute elements beyond the end."""
    at = shaped.places[component] if shaped.places else shaped.logical
    beyond = zip(at, storage.shape, strict=True) if shaped.places else ()
    guards = tuple(Guard(i, n) for i, n in beyond if not within(i, n))
    return Access(buffer, _flatten(place(storage.layout, at), storage.layout.sizes), guards)


def _flatten(indices: tuple[Index, ...], sizes: tuple[Index, ...]) -> Index:
    total = const(0)
    for index, step in zip(indices, strides(sizes), strict=True):
        total = total + index * step
    return total


def _with_sizes(group: TileGroup) -> TileGroup:
    found: dict[Var, None] = {}
    for stage in group.stages:
        indices = [extent(v) for v in (*stage.iters, *stage.reduce)]
        for access in stage.accesses.values():
            indices += [access.offset, *(g.index for g in access.guards)]
            indices += [g.extent for g in access.guards]
        stores = [a for c in stage.stores for a in c]
        indices += [a.offset for a in stores]
        indices += [i for a in stores for g in a.guards for i in (g.index, g.extent)]
        indices += [s.index for s in walk(*stage.body) if isinstance(s, IndexValue)]
        for index in indices:
            found.update({v: None for v in free_vars(index) if v.extent is None})
    return replace(group, sizes=tuple(found))
