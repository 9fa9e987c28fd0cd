"""Stores a contraction's results over its operand, to save scratch.

    for p: m[p] = v[p] * w[p]          v[p] is stored at 1 + p, and m[p] at p: so m[p] overwrites
                                       v[p - 1], which was read in the previous step

Requires the scratch of `scratch.py`.  Establishes that no element is overwritten before it was
read.  To prove that, the loop along which operand and result are stored (p above) must be the
outermost loop of its nest, with blocks of one element.  Step p must read only v[p] and store only
m[p].
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
    """Returns `resident` with contractions stored over their operands, where that is proved.

    The stages `shared` are computed once for several tiles, so their storage is unchanged.
    """
    overlaid_values = dict(resident)
    for number in range(len(group.stages)):
        source = _operand(group, schedule, number)
        if source is None or source in shared or number in shared:
            continue
        operand_values = {ref: h for ref, h in overlaid_values.items() if ref.stage == source}
        operand, result = (
            overlaid_values.get(StageRef(source, 0)),
            overlaid_values.get(StageRef(number, 0)),
        )
        if operand is None or result is None or len({id(h) for h in operand_values.values()}) != 1:
            continue
        if operand.base is not None or result.base is not None:
            continue
        width = _step(group, schedule, source, number)
        pair = None if width is None else _overlaid_pair(group, source, operand, result, width)
        if pair is not None:
            overlaid_values.update(dict.fromkeys(operand_values, pair[0]))
            overlaid_values[StageRef(number, 0)] = pair[1]
    return overlaid_values


def _operand(group: TileGroup, schedule: Schedule, number: int) -> int | None:
    """Returns the stage, by number, whose storage the results of stage `number` may overwrite.

    No stage but `number` may read the returned stage.  Returns None unless there is exactly one
    stage of this kind, and stage `number` is alone in its nest.
    """
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
    unshared = [
        s
        for s in sources
        if all(n == number or s not in _sources(group, n) for n in range(len(group.stages)))
    ]
    return unshared[0] if len(unshared) == 1 and stage.strip is None else None


def _sources(group: TileGroup, number: int) -> set[int]:
    sources: list[Source] = [node.source for node in group.stages[number].accesses]
    return {s.stage for s in sources if isinstance(s, StageRef)}


def _step(group: TileGroup, schedule: Schedule, source: int, number: int) -> int | None:
    """Returns the number of operand elements, equal to the number of result elements, that one step
    of the contraction's first loop accesses.

    Returns None if the numbers differ, or if two steps access the same element.
    """
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
    """Returns the distance in a buffer between the parts that neighbouring steps of a loop access;
    None if the parts overlap."""
    linear = step_in(offset, var)
    if linear is None:
        return None
    width, remainder = linear
    low, high = bounds(remainder)
    inside = low is not None and high is not None and low >= 0 and high < width
    return width if inside else None


def _overlaid_pair(
    group: TileGroup, source: int, operand: Resident, result: Resident, width: int
) -> tuple[Resident, Resident] | None:
    """Returns the memory of the operand and of the result, both in one buffer.

    In the buffer, the operand begins one step of the loop after the result; `width` is the number
    of elements of a step.  Returns None if operand and result have different types, sizes or
    strides.
    """
    dtype, shift = operand.buffer.dtype, width * operand.inner
    size, count = as_int(operand.buffer.sizes[0]), _count(group, source)
    if (
        size is None
        or count is None
        or shift * dtype.bytes % LINE
        or (operand.steps, operand.inner, operand.buffer.sizes, dtype)
        != (result.steps, result.inner, result.buffer.sizes, result.buffer.dtype)
    ):
        return None
    part = count * operand.inner
    steps = tuple((v, s if s < part else s // part * (part + shift)) for v, s in operand.steps)
    buffer = replace(operand.buffer, sizes=(const(size // part * (part + shift)),))
    return (
        replace(operand, buffer=buffer, steps=steps, start=shift),
        replace(result, buffer=buffer, steps=steps),
    )


def _count(group: TileGroup, source: int) -> int | None:
    """Returns the number of elements of a stage at one point of the common loops."""
    stores = in_scratch(group, group.stages[source].stores[0])
    return as_int(group.buffers[stores[0].buffer].size) if stores else None
