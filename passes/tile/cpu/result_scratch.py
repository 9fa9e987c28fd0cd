"""Lets what waits for later nests lie where a result of the kernel goes.

    for j: e[j] = exp(x[j]) ; s += e[j]          e in the places of y: nothing lies in scratch, and
    for j: y[j] = e[j] / s                       the lines of y are near once y is written

A value lies in a result that the stage stores anyway, or in that of the last stage which reads it,
if that one replaces each element where alone it was read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tcc.errors import InternalError
from tcc.ir.expr.scalar import StageRef, reads_of_stages
from tcc.ir.index import Index, Var, free_vars, of_atom, substitute
from tcc.ir.tile import MemorySpace, TileBuffer
from tcc.ir.tile.group import Access, TileGroup
from tcc.passes.tile.cpu.scratch import Resident
from tcc.schedule.cpu.along import paired_loops
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.nest import in_scratch


def in_results(
    group: TileGroup,
    schedule: Schedule,
    resident: Mapping[StageRef, Resident],
    buffers: Sequence[TileBuffer],
    shared: Collection[int],
) -> dict[StageRef, Resident]:
    """`resident` with values in results where that is proved.  Stages of `shared` are made once for
    several units, so they stay.

    Raises InternalError for a value of open size where it is not proved.
    """
    placed = {ref: place for ref in resident if (place := _place(group, ref)) is not None}
    if not lie_in_results(group, schedule, placed, shared):
        raise InternalError("a value held in a unit's scratch must have a static size")
    found = {
        ref: replace(held, buffer=buffers[placed[ref]]) if ref in placed else held
        for ref, held in resident.items()
    }
    taken = {*placed.values()}  # results in which another value lies before they are made
    for ref in resident:
        if ref in placed or ref.stage in shared or not _is_plain(group, schedule, ref.stage):
            continue
        for target, own in _places(group, schedule, ref):
            base = _base(group, ref, target)
            if base is not None and (own or target.buffer not in taken):
                taken.update(() if own else (target.buffer,))
                found[ref] = Resident(buffers[target.buffer], (), 1, base=base, stored=own)
                break
    return found


def lie_in_results(
    group: TileGroup,
    schedule: Schedule,
    refs: Iterable[StageRef],
    shared: Collection[int] = (),
) -> bool:
    """Whether the values of open size among `refs` can lie where the group has them."""
    return all(
        ref.stage not in shared
        and _is_plain(group, schedule, ref.stage)
        and any(_lies_in(group, ref, place, *at) for at in _places(group, schedule, ref))
        for ref in refs
        for place in [_place(group, ref)]
        if place is not None
    )


def _place(group: TileGroup, ref: StageRef) -> int | None:
    """The result in which the group has a value of open size."""
    local = _local(group, ref)
    return group.buffers[local[0].buffer].place if local else None


def _lies_in(group: TileGroup, ref: StageRef, place: int, target: Access, own: bool) -> bool:
    """Whether a store, the value's `own` or that of its last reader, is to the elements of a value
    that lies in `place`."""
    same = target.buffer == place or (not own and group.buffers[target.buffer].place == place)
    return same and target.offset is _local(group, ref)[0].offset


def _places(group: TileGroup, schedule: Schedule, ref: StageRef) -> Iterator[tuple[Access, bool]]:
    """Where a value may lie, and whether it is stored there anyway."""
    yield from _stored(group, ref)
    yield from _replaced(group, schedule, ref)


def _is_plain(group: TileGroup, schedule: Schedule, number: int) -> bool:
    """Whether each element of a stage is made once, by the unit that reads it, and stored whole."""
    stage, nest = group.stages[number], schedule.nest(number)
    return (
        group.stream is None
        and stage.strip is None
        and len(stage.body) == 1
        and not (nest.k_blocks and number in nest.stages)
        and {*group.common} <= {*stage.iters}
    )


def _stored(group: TileGroup, ref: StageRef) -> Iterator[tuple[Access, bool]]:
    """Where the value is a result itself."""
    for target in group.stages[ref.stage].stores[ref.component]:
        yield target, True


def _replaced(group: TileGroup, schedule: Schedule, ref: StageRef) -> Iterator[tuple[Access, bool]]:
    """Where the last stage that reads the value stores, with the loops of the value."""
    stage, local = group.stages[ref.stage], _local(group, ref)
    readers = [
        (number, node)
        for number, later in enumerate(group.stages)
        for node, source in reads_of_stages(*later.body)
        if source == ref
    ]
    last = max(number for number, _ in readers)
    reader, nest = group.stages[last], schedule.nest(last)
    if reader.monoid is not None or reader.strip is not None or ref.stage in nest.all_stages:
        return
    own = [v for v in stage.iters if v not in reader.iters]
    left = [v for v in reader.iters if v not in stage.iters]
    found: list[Mapping[Var, Var] | None] = []
    for number, node in readers:
        if number in nest.all_stages:
            access = group.stages[number].accesses.get(node)
            plain = local and access is not None and not node.indirect
            found.append(paired_loops(own, left, local[0], access) if plain and access else None)
    if len(own) != len(left) or None in found or any(f != found[0] for f in found):
        return
    loops = {new: of_atom(old) for old, new in (found[0] or {}).items()}
    for target in (a for targets in reader.stores for a in targets):
        if not target.guards:
            yield Access(target.buffer, substitute(target.offset, loops)), False


def _local(group: TileGroup, ref: StageRef) -> list[Access]:
    return in_scratch(group, group.stages[ref.stage].stores[ref.component])


def _base(group: TileGroup, ref: StageRef, target: Access) -> Index | None:
    """Where a unit's part of a value begins in the result `target`, which has its elements in the
    order of the scratch; None where it has not."""
    buffer, local = group.buffers[target.buffer], _local(group, ref)
    dtype = group.stages[ref.stage].body[ref.component].dtype
    if not local or buffer.scope is MemorySpace.LOCAL or buffer.dtype is not dtype or target.guards:
        return None
    base = target.offset - local[0].offset
    return base if {*free_vars(base)} <= {*group.common} else None
