"""Lays out the scratch memory of a tile.

It holds values that stages of different nests exchange, sums between K-blocks, and packed operands
of contractions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, prod

from tcc.errors import InternalError
from tcc.frozen import entity
from tcc.ir.expr import extent, known_extent
from tcc.ir.expr.scalar import Scalar, StageRef, reads_of_stages
from tcc.ir.index import Index, Var, as_int, const, substitute
from tcc.ir.tile import MemorySpace, TileBuffer
from tcc.ir.tile.group import GroupStage, Rescale, Strip, TileGroup
from tcc.passes.tile.cpu.ranges import BlockRange, Regions, positions, shape_of
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.nest import in_scratch, is_open, reads_here, word_loop


@entity
class Resident:
    """The memory of one component of a stage, for the region of a tile.

    `steps`: the distance in elements between neighbours along each common loop.
    `inner`: the distance in elements between neighbours along the stage's other iterators, which
    count as one merged iterator.
    `strip`: if a tile computes only some rows of the stage, these rows; else None.
    `start`: the offset of the first element, if another value is stored before it in the buffer.
    `base`: the offset in a result of the kernel where the value begins; None: it is in scratch.
    `is_result`: the value is a result of the kernel and is stored as one, so it needs no other
    store.
    `word`: the number of neighbours along the loop `paired` that are adjacent, as in `Packed`.  If
    `paired` is not a common loop, it is the innermost of the other iterators.
    """

    buffer: TileBuffer
    steps: tuple[tuple[Var, int], ...]
    inner: int
    strip: Strip | None = None
    start: int = 0
    base: Index | None = None
    is_result: bool = False
    word: int = 1
    paired: Var | None = None

    def offset(self, mapping: Mapping[Var, Index], within: Index, regions: Regions) -> Index:
        """Returns the offset of an element in `buffer`.

        `mapping` has the values of the common loops. `within` is the element's offset along all
        other iterators. `regions` has the tile's part of each loop.
        """
        if self.base is not None:
            return substitute(self.base, mapping) + within
        first = const(0)
        if self.strip is not None:
            first = regions[self.strip.rows].base * self.strip.width
        at, place = within - first, const(self.start)
        if self.paired not in dict(self.steps):
            at, place = at // self.word, place + at % self.word
        place = place + at * self.inner
        for var, step in self.steps:
            at = mapping[var] - regions[var].base
            if var is self.paired:
                at, place = at // self.word, place + at % self.word
            place = place + at * step
        return place


@entity
class Packed:
    """The scratch of a contraction's `factor`, for one register block of results and one K-block.

    `steps` has a pair (loop, distance in elements between neighbours) for each loop along which the
    scratch has an axis.  Along the loop `inner`, `word` neighbours are adjacent, and the distance
    is that between words.
    """

    factor: Scalar
    buffer: TileBuffer
    steps: tuple[tuple[Var, int], ...]
    inner: Var
    word: int

    def offset(self, mapping: Mapping[Var, Index], starts: Mapping[Var, Index]) -> Index:
        """Returns the offset of an element in the scratch.

        `mapping` has the values of the loops at the element, and `starts` their values where the
        current block and K-block begin.
        """
        place = const(0)
        for var, step in self.steps:
            at = mapping[var] - starts.get(var, const(0))
            if var is self.inner:
                place, at = place + at % self.word, at // self.word
            place = place + at * step
        return place


def resident_values(group: TileGroup, schedule: Schedule) -> dict[StageRef, Resident]:
    """Returns the memory of each component that needs memory.

    A component needs memory if another nest reads it, or if it has accumulators that wait between
    K-blocks or between blocks of the streaming loop.
    """
    values: dict[StageRef, Resident] = {}
    for number, stage in enumerate(group.stages):
        nest = schedule.nest(number)
        read_elsewhere = _read_elsewhere(group, schedule, number)
        if (
            nest.k_blocks
            or waits(group, number)
            or (read_elsewhere and not in_registers(group, schedule, number))
        ):
            buffers: dict[int, Resident] = {}
            for component in range(len(stage.body)):
                local = _local(group, stage, component)
                key = component if local is None else local
                if local is not None and group.buffers[local].place is not None:
                    buffers[key] = _in_result(f"s{len(values)}", group, stage, component, local)
                elif key not in buffers:
                    buffers[key] = _resident(f"s{len(values)}", group, schedule, number, component)
                values[StageRef(number, component)] = buffers[key]
    return values


def waits(group: TileGroup, number: int) -> bool:
    """Returns True if a stage's sums wait in scratch between blocks of the streaming loop."""
    stream = group.stream
    return stream is not None and stream.loop in group.stages[number].reduce


def factors_of(group: TileGroup, resident: Mapping[StageRef, Resident]) -> dict[Rescale, Resident]:
    """Returns scratch for the factors that rescale sums after each block of the streaming loop.

    Equal factors share their scratch.
    """
    factors: dict[Rescale, Resident] = {}
    by_factor: dict[tuple[StageRef, Scalar], Resident] = {}
    for rescale in () if group.stream is None else group.stream.rescales:
        state, key = resident[rescale.total], (rescale.total, rescale.factor)
        if key not in by_factor:
            buffer = replace(state.buffer, name=f"r{len(by_factor)}")
            by_factor[key] = Resident(buffer, state.steps, state.inner)
        factors[rescale] = by_factor[key]
    return factors


def home(
    group: TileGroup,
    resident: Mapping[StageRef, Resident],
    regions: Regions,
    ref: StageRef,
    spans: Sequence[BlockRange],
) -> tuple[TileBuffer, tuple[Index]] | None:
    """Returns (buffer, index) of the place where a block of a component is stored for later nests.

    The block covers `spans`. Returns None if no later nest needs the component, or if the store of
    a result of the kernel puts it there anyway.
    """
    value = resident.get(ref)
    if value is None or value.is_result:
        return None
    mapping = positions(spans, shape_of(spans))
    inner = within(group, group.stages[ref.stage], ref.component, mapping)
    return value.buffer, (value.offset(mapping, inner, regions),)


def in_registers(group: TileGroup, schedule: Schedule, number: int) -> bool:
    """Returns True if one block, in registers, holds a stage's result for the whole tile."""
    stage, nest = group.stages[number], schedule.nest(number)
    if group.stream is not None or nest.k_blocks or not set(stage.iters) <= set(group.common):
        return False
    reads = [
        (n, reads_here(group, later, node))
        for n, later in enumerate(group.stages)
        for node, source in reads_of_stages(*later.body)
        if source.stage == number
    ]
    if not all(here for _, here in reads):
        return False
    nests = [nest, *(schedule.nest(n) for n, _ in reads)]
    common = {v.name for v in group.common}
    if len({n.vector if n.vector in common else None for n in nests}) > 1:
        # The vector loop is the last axis of a block, so the two blocks have their axes in another
        # order.
        return False
    return all(
        not is_open(v)
        and all(unit_size(group, schedule, v) <= n.block(v.name) for n in nests)
        and len({n.block(v.name) > 1 for n in nests}) == 1
        for v in group.common
    )


def _read_elsewhere(group: TileGroup, schedule: Schedule, number: int) -> bool:
    """Returns True if some stage reads the result of stage `number` from scratch.

    This is a stage of another nest, or a stage of the same nest that reads at another point than
    its own.
    """
    nest = schedule.nest(number)
    # The reduction along which stage `number` is computed reads each point as soon as it is
    # computed.
    point_readers = nest.stages[:1] if number in nest.along else ()
    return any(
        source.stage == number
        and later not in point_readers
        and (later not in nest.all_stages or not reads_here(group, stage, node))
        for later, stage in enumerate(group.stages)
        for node, source in reads_of_stages(*stage.body)
    )


def _resident(
    name: str, group: TileGroup, schedule: Schedule, number: int, component: int
) -> Resident:
    """Returns the scratch of one component."""
    stage, nest = group.stages[number], schedule.nest(number)
    strip = stage.strip
    common = [v for v in group.cut if v in stage.iters]
    local = _local(group, stage, component)
    inner = prod(_static(extent(v)) for v in stage.iters if v not in group.cut)
    if local is not None:
        inner = _static(group.buffers[local].size)
    if strip is not None:
        common = [v for v in common if v is not strip.rows]
        inner = strip.width * strip.count(unit_size(group, schedule, strip.loop))
    vector = [v for v in common if v.name == nest.vector]
    paired, word = word_loop(group, StageRef(number, component)), 2
    if paired is None or paired in vector or nest.block(paired.name) % word:
        paired, word = None, 1
    if paired is not None and paired not in common:
        inner = ceil(inner / word)
    step = word * prod(unit_size(group, schedule, v) for v in vector)
    steps = dict.fromkeys(vector, word)
    between = step
    step *= inner
    for var in reversed([v for v in common if v not in vector]):
        steps[var] = step
        step *= ceil(unit_size(group, schedule, var) / (word if var is paired else 1))
    dtype = stage.body[component].dtype
    buffer = TileBuffer(name, dtype, (const(step),), MemorySpace.LOCAL)
    return Resident(buffer, tuple(steps.items()), between, strip, word=word, paired=paired)


def _in_result(
    name: str, group: TileGroup, stage: GroupStage, component: int, local: int
) -> Resident:
    """Returns the memory of a value of symbolic size, in the result that the group has chosen for
    it."""
    buffer_ = group.buffers[local]
    buffer = TileBuffer(name, buffer_.dtype, (buffer_.size,), MemorySpace.LOCAL)
    is_result = any(a.buffer == buffer_.place for a in stage.stores[component])
    return Resident(buffer, (), 1, base=const(0), is_result=is_result)


def unit_size(group: TileGroup, schedule: Schedule, var: Var) -> int:
    """Returns the elements of a tile along a common loop; for the streaming loop, those of a
    block."""
    size = known_extent(var)
    if group.stream is not None and var is group.stream.loop:
        return schedule.stream_block if size is None else min(size, schedule.stream_block)
    if var.name not in schedule.parallel:
        return _static(extent(var))
    tile_size = schedule.tile_size(var.name)
    return tile_size if size is None else min(size, tile_size)


def _local(group: TileGroup, stage: GroupStage, component: int) -> int | None:
    """Returns the number of a component's scratch buffer in the group; None without one.

    Several components of a stage may share a buffer.
    """
    stores = in_scratch(group, stage.stores[component])
    return stores[0].buffer if stores else None


def _static(size: Index) -> int:
    static_size = as_int(size)
    if static_size is None:
        raise InternalError("a value in a tile's scratch must have a static size")
    return static_size


def within(
    group: TileGroup, stage: GroupStage, component: int, mapping: Mapping[Var, Index]
) -> Index:
    """Returns an element's offset among a component's elements at one point of the common loops.

    If the component has a scratch buffer in the group, the group decides the offset.
    """
    for target in in_scratch(group, stage.stores[component]):
        return substitute(target.offset, mapping)
    place = const(0)
    for var in stage.iters:
        if var not in group.cut:
            place = place * extent(var) + mapping[var]
    return place
