"""Lets a product's results lie where its operand lay: both then share one part of a unit's scratch.

    for p: m[p] = v[p] * w[p]          v at 1 + p, m at p: the product of p goes where that of p - 1
                                       was read from

Requires the scratch of `scratch.py`.  Establishes that of the two, nothing is overwritten before it
was read: the loop goes first in its nest, one step at a time, and all that is done at a step reads
and stores the step's own part.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from tcc.ir.expr.scalar import Source, StageRef
from tcc.ir.index import Index, Var, as_int, bounds, const, step_in
from tcc.ir.tile.group import TileGroup
from tcc.passes.tile.cpu.scratch import Resident
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.footprint import LINE
from tcc.schedule.nest import in_scratch


def overlaid(
    group: TileGroup,
    schedule: Schedule,
    resident: Mapping[StageRef, Resident],
    shared: Collection[int],
) -> dict[StageRef, Resident]:
    """`resident` with products over their operands where that is proved.  Stages of `shared` are
    made once for several units, so they stay."""
    found = dict(resident)
    for number in range(len(group.stages)):
        source = _operand(group, schedule, number)
        if source is None or source in shared or number in shared:
            continue
        made = {ref: h for ref, h in found.items() if ref.stage == source}
        old, new = found.get(StageRef(source, 0)), found.get(StageRef(number, 0))
        if old is None or new is None or len({id(h) for h in made.values()}) != 1:
            continue
        if old.base is not None or new.base is not None:
            continue
        width = _step(group, schedule, source, number)
        pair = None if width is None else _overlaid_pair(group, source, old, new, width)
        if pair is not None:
            found.update(dict.fromkeys(made, pair[0]))
            found[StageRef(number, 0)] = pair[1]
    return found


def _operand(group: TileGroup, schedule: Schedule, number: int) -> int | None:
    """The stage in scratch that a stage alone in its nest reads, and no other does."""
    stage, nest = group.stages[number], schedule.nest(number)
    if (
        len(stage.body) != 1
        or nest.stages != (number,)
        or nest.along
        or nest.k_blocks
        or group.stream is not None
    ):
        return None
    sources = {s for s in _sources(group, number) if group.stages[s].strip is None}
    alone = [
        s for s in sources if all(n == number or s not in _sources(group, n) for n in _all(group))
    ]
    return alone[0] if len(alone) == 1 and stage.strip is None else None


def _all(group: TileGroup) -> range:
    return range(len(group.stages))


def _sources(group: TileGroup, number: int) -> set[int]:
    sources: list[Source] = [node.source for node in group.stages[number].accesses]
    return {s.stage for s in sources if isinstance(s, StageRef)}


def _step(group: TileGroup, schedule: Schedule, source: int, number: int) -> int | None:
    """The elements that one step of the product's first loop reads and stores, the same of both;
    None where steps are no such parts."""
    stage, nest = group.stages[number], schedule.nest(number)
    first = [v for v in stage.iters if nest.order and v.name == nest.order[0]]
    if not first or first[0] in group.common or nest.block(first[0].name) != 1:
        return None
    reads = [
        access
        for node, access in stage.accesses.items()
        if isinstance(node.source, StageRef) and node.source.stage == source
    ]
    stores = in_scratch(group, stage.stores[0])
    if any(a.guards for a in (*reads, *stores)):
        return None
    widths = {_width(a.offset, first[0]) for a in (*reads, *stores)}
    return widths.pop() if len(widths) == 1 and stores else None


def _width(offset: Index, var: Var) -> int | None:
    """How far apart the steps of a loop lie, where none reaches into the next."""
    linear = step_in(offset, var)
    if linear is None:
        return None
    width, rest = linear
    low, high = bounds(rest)
    inside = low is not None and high is not None and low >= 0 and high < width
    return width if inside else None


def _overlaid_pair(
    group: TileGroup, source: int, old: Resident, new: Resident, width: int
) -> tuple[Resident, Resident] | None:
    """Both in one buffer with room for one step more, the operand a step behind the product."""
    dtype, shift = old.buffer.dtype, width * old.inner
    size, count = as_int(old.buffer.sizes[0]), _count(group, source)
    if (
        size is None
        or count is None
        or shift * dtype.bytes % LINE
        or (old.steps, old.inner, old.buffer.sizes, dtype)
        != (new.steps, new.inner, new.buffer.sizes, new.buffer.dtype)
    ):
        return None
    part = count * old.inner
    steps = tuple((v, s if s < part else s // part * (part + shift)) for v, s in old.steps)
    buffer = replace(old.buffer, sizes=(const(size // part * (part + shift)),))
    return (
        replace(old, buffer=buffer, steps=steps, start=shift),
        replace(new, buffer=buffer, steps=steps),
    )


def _count(group: TileGroup, source: int) -> int | None:
    """Elements of a stage at one point of the common loops."""
    held = in_scratch(group, group.stages[source].stores[0])
    return as_int(group.buffers[held[0].buffer].size) if held else None
