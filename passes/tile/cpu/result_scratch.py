"""Stores values for later nests in the memory of a result of the kernel, in place of scratch.

    for j: e[j] = exp(x[j]) ; s += e[j]          e in the places of y: it needs no scratch, and the
    for j: y[j] = e[j] / s                       cache has the lines of y when y is written

There are two cases.  The value's own stage may store it as a result anyway.  Or the value lies in
the result of the last stage that reads it, if that stage overwrites each element only after it has
read that element.
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
    """Returns `resident` with values placed in results, where this is proved to be correct.

    The stages `shared` are computed once for several tiles, so their values stay in scratch.
    Raises InternalError for a value of symbolic size that cannot lie in a result.
    """
    placed = {ref: place for ref in resident if (place := _place(group, ref)) is not None}
    if not lie_in_results(group, schedule, placed, shared):
        raise InternalError("a value in a tile's scratch must have a static size")
    placed_values = {
        ref: replace(value, buffer=buffers[placed[ref]]) if ref in placed else value
        for ref, value in resident.items()
    }
    # The results whose memory already holds another value until they are computed.
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
    """Returns True if the values of symbolic size among `refs` can lie in the results that the
    group chose for them."""
    return all(
        ref.stage not in shared
        and _is_plain(group, schedule, ref.stage)
        and any(_lies_in(group, ref, place, *at) for at in _places(group, schedule, ref))
        for ref in refs
        for place in [_place(group, ref)]
        if place is not None
    )


def _place(group: TileGroup, ref: StageRef) -> int | None:
    """Returns the result in which the group places a value of symbolic size; None for other
    values."""
    local = _local(group, ref)
    return group.buffers[local[0].buffer].place if local else None


def _lies_in(group: TileGroup, ref: StageRef, place: int, target: Access, is_own: bool) -> bool:
    """Returns True if the store `target` writes the elements of a value that lies in `place`.

    With `is_own`, the store is that of the value's own stage, otherwise that of its last reader.
    """
    same_buffer = target.buffer == place or (
        not is_own and group.buffers[target.buffer].place == place
    )
    return same_buffer and target.offset is _local(group, ref)[0].offset


def _places(group: TileGroup, schedule: Schedule, ref: StageRef) -> Iterator[tuple[Access, bool]]:
    """Yields the stores in whose place a value may lie, and for each a bool.

    The bool is true for a store of the value's own stage, and false for one of its last reader.
    """
    yield from _own_stores(group, ref)
    yield from _reader_stores(group, schedule, ref)


def _is_plain(group: TileGroup, schedule: Schedule, number: int) -> bool:
    """Returns True if each element of a stage is computed once and in one piece.

    It is then computed by the tile that reads it, and has no partial sums.
    """
    stage, nest = group.stages[number], schedule.nest(number)
    return (
        group.stream is None
        and stage.strip is None
        and len(stage.body) == 1
        and not (nest.k_blocks and number in nest.stages)
        and {*group.common} <= {*stage.iters}
    )


def _own_stores(group: TileGroup, ref: StageRef) -> Iterator[tuple[Access, bool]]:
    """Yields the stores of the value's own stage, each with True."""
    for target in group.stages[ref.stage].stores[ref.component]:
        yield target, True


def _reader_stores(
    group: TileGroup, schedule: Schedule, ref: StageRef
) -> Iterator[tuple[Access, bool]]:
    """Yields the stores of the last stage that reads the value, each with False.

    Their offsets use the loops of the value's stage.
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
    for target in (a for targets in reader.stores for a in targets):
        if not target.guards:
            yield Access(target.buffer, substitute(target.offset, loops)), False


def _local(group: TileGroup, ref: StageRef) -> list[Access]:
    return in_scratch(group, group.stages[ref.stage].stores[ref.component])


def _base(group: TileGroup, ref: StageRef, target: Access) -> Index | None:
    """Returns the place in the result `target` where a tile's part of a value begins.

    None if the elements of the result are not in the order of the scratch.
    """
    buffer, local = group.buffers[target.buffer], _local(group, ref)
    dtype = group.stages[ref.stage].body[ref.component].dtype
    if not local or buffer.scope is MemorySpace.LOCAL or buffer.dtype is not dtype or target.guards:
        return None
    base = target.offset - local[0].offset
    return base if {*free_vars(base)} <= {*group.common} else None
