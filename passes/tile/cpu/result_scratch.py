"""Stores values for later nests in the memory of a result of the kernel, in place of scratch.

    for j: e[j] = exp(x[j]) ; s += e[j]          e lies where y will be stored: it needs no scratch,
    for j: y[j] = e[j] / s                       and the cache has the lines of y when y is stored

There are two cases.  The value may itself be a result of the kernel, so that it is stored there
anyway.  Or it is stored in the memory of another result, which the last reader of the value
computes; then the reader must read each element of the value before it overwrites the element.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tcc.errors import InternalError
from tcc.ir.expr.scalar import StageRef, reads_of_stages
from tcc.ir.index import Index, Var, free_vars, of_atom, substitute
from tcc.ir.tile import TileBuffer
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
    """Returns `resident` with values stored in results, where this is proved to be correct.

    The stages `shared` are computed once for several tiles, so their values stay in scratch.
    Raises InternalError for a value of symbolic size that cannot be stored in a result.
    """
    placed = {ref: place for ref in resident if (place := _place(group, ref)) is not None}
    if not lie_in_results(group, schedule, placed, shared):
        raise InternalError("a value in a tile's scratch must have a static size")
    placed_values = {
        ref: replace(value, buffer=buffers[placed[ref]]) if ref in placed else value
        for ref, value in resident.items()
    }
    # The results in whose memory another value lies until they are stored.
    used_results = {*placed.values()}
    for ref in resident:
        if ref in placed or ref.stage in shared or not _is_plain(group, schedule, ref.stage):
            continue
        for target, is_own in _places(group, schedule, ref):
            base = _base(group, ref, target)
            if base is not None and (is_own or target.buffer not in used_results):
                used_results.update(() if is_own else (target.buffer,))
                placed_values[ref] = Resident(
                    buffers[target.buffer], (), 1, base=base, is_result=is_own
                )
                break
    return placed_values


def lie_in_results(
    group: TileGroup,
    schedule: Schedule,
    refs: Iterable[StageRef],
    shared: Collection[int] = (),
) -> bool:
    """Returns True if each value of symbolic size among `refs` can be stored in the result that
    the group has chosen for it."""
    return all(
        ref.stage not in shared
        and _is_plain(group, schedule, ref.stage)
        and any(_lies_in(group, ref, place, *at) for at in _places(group, schedule, ref))
        for ref in refs
        for place in [_place(group, ref)]
        if place is not None
    )


def _place(group: TileGroup, ref: StageRef) -> int | None:
    """Returns the buffer of the result that the group has chosen for a value of symbolic size; None
    for any other value."""
    local = _local(group, ref)
    return group.buffers[local[0].buffer].place if local else None


def _lies_in(group: TileGroup, ref: StageRef, place: int, target: Access, is_own: bool) -> bool:
    """Returns True if a value that is stored in buffer `place` has each element at the address to
    which the store `target` writes its element.

    `is_own`: the store belongs to the value's own stage, not to the value's last reader.
    """
    same_buffer = target.buffer == place or (
        not is_own and group.buffers[target.buffer].place == place
    )
    return same_buffer and target.offset is _local(group, ref)[0].offset


def _places(group: TileGroup, schedule: Schedule, ref: StageRef) -> Iterator[tuple[Access, bool]]:
    """Yields (store, is_own) for each store whose target may hold the value until it is executed.

    `is_own` is True for a store of the value's own stage, and False for a store of the value's last
    reader.
    """
    for target in group.stages[ref.stage].stores[ref.component]:
        yield target, True
    yield from _reader_stores(group, schedule, ref)


def _is_plain(group: TileGroup, schedule: Schedule, number: int) -> bool:
    """Returns True if each element of a stage is computed once, completely, in the tile that reads
    it."""
    stage, nest = group.stages[number], schedule.nest(number)
    return (
        group.stream is None
        and stage.strip is None
        and len(stage.body) == 1
        and not (nest.k_blocks and number in nest.stages)
        and {*group.common} <= {*stage.iters}
    )


def _reader_stores(
    group: TileGroup, schedule: Schedule, ref: StageRef
) -> Iterator[tuple[Access, bool]]:
    """Yields (store, False) for each store of the last stage that reads the value; see `_places`.

    In the offsets of the stores, the reader's loops are replaced by the loops of the value's stage.
    """
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
    value_loops = [v for v in stage.iters if v not in reader.iters]
    reader_loops = [v for v in reader.iters if v not in stage.iters]
    pairings: list[Mapping[Var, Var] | None] = []
    for number, node in readers:
        if number in nest.all_stages:
            access = group.stages[number].accesses.get(node)
            is_plain = local and access is not None and not node.indirect
            pairings.append(
                paired_loops(value_loops, reader_loops, local[0], access)
                if is_plain and access
                else None
            )
    if (
        len(value_loops) != len(reader_loops)
        or None in pairings
        or any(pairing != pairings[0] for pairing in pairings)
    ):
        return
    loops = {new: of_atom(old) for old, new in (pairings[0] or {}).items()}
    for target in reader.written:
        if not target.guards:
            yield Access(target.buffer, substitute(target.offset, loops)), False


def _local(group: TileGroup, ref: StageRef) -> list[Access]:
    return in_scratch(group, group.stages[ref.stage].stores[ref.component])


def _base(group: TileGroup, ref: StageRef, target: Access) -> Index | None:
    """Returns the offset in the buffer of `target` at which a tile's part of a value begins.

    Returns None if the elements of the result are not in the order of the scratch.
    """
    buffer, local = group.buffers[target.buffer], _local(group, ref)
    dtype = group.stages[ref.stage].body[ref.component].dtype
    if not local or buffer.is_local or buffer.dtype is not dtype or target.guards:
        return None
    base = target.offset - local[0].offset
    return base if {*free_vars(base)} <= {*group.common} else None
