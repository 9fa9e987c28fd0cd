"""The operations, loads and stores of a tile group's stages, counted once a group."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from math import inf, prod
from typing import Any, TypeAlias

from tcc.frozen import entity
from tcc.ir.expr import MONOIDS, extent
from tcc.ir.expr.scalar import Apply, Read, Scalar, StageRef, children, walk
from tcc.ir.index import (
    Index,
    Var,
    as_index,
    as_int,
    const,
    free_vars,
    maximum,
    minimum,
)
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.schedule.cpu.machine import Machine
from tcc.schedule.footprint import Stride, Touch, place_of, touch
from tcc.schedule.nest import (
    EXPENSIVE,
    contraction_factors,
    contracts,
    depends,
    is_open,
    points,
    row_loop,
    stride,
    trips,
    typical,
)

# If at least this many neighbouring points share a data-dependent index, it is computed once for
# all of them.
_MANY = 16


@entity
class StageWork:
    """The work of one stage.

    `lanes`: elements of a vector. For each vector of results and each step of the reduction, `ops`
    is the number of simple vector instructions, and `heavy` the cycles of functions such as exp,
    both of scalars that vary with all loops. `parts` has (loops, ops, heavy) of scalars that vary
    with some loops only: a schedule decides how often they are computed.
    `flops`: floating-point operations for each element of the result and each step.
    """

    stage: GroupStage
    lanes: int
    ops: float
    heavy: float
    parts: tuple[tuple[frozenset[Var], float, float], ...]
    flops: int
    touches: tuple[Touch, ...]


def group_work(group: TileGroup, machine: Machine) -> tuple[StageWork, ...]:
    """Returns the work of each stage, in order."""
    return tuple(_stage_work(group, n, stage, machine) for n, stage in enumerate(group.stages))


def work_facts(group: TileGroup, sizes: Sequence[Var]) -> dict[str, Any]:
    """Returns the entries of a manifest for the work of one launch, at typical sizes.

    If sizes are symbolic, there are also three formulas of the kernel's `sizes`: for all
    operations, for those of contractions, and for bytes.
    """
    facts = {
        "flops": group_flops(group),
        "contraction_flops": contraction_flops(group),
        "bytes": group_bytes(group),
    }
    loops = (v for stage in group.stages for v in stage.loops)
    if all(not is_open(v) for v in loops):
        return facts
    flops = (as_index(count(group, extent)) for count in (group_flops, contraction_flops))
    formulas = [formula.key for formula in (*flops, _bytes_formula(group))]
    return {**facts, "sizes": [v.name for v in sizes], "formulas": formulas}


def group_flops(group: TileGroup, count: Callable[[Var], Any] = trips) -> Any:
    """Returns the floating-point operations of a launch; a multiply-add is two, any function one.

    `count` returns the trips of a loop. The default counts symbolic sizes as typical; with `extent`
    the result is an `Index`, a formula of the sizes.
    """
    return sum(_flops(stage) * prod(count(v) for v in stage.loops) for stage in group.stages)


def contraction_flops(group: TileGroup, count: Callable[[Var], Any] = trips) -> Any:
    """Returns the operations of contractions alone; a multiply-add is two (see `group_flops`)."""
    return sum(
        2 * prod(count(v) for v in stage.loops)
        for stage in group.stages
        if contraction_factors(stage)
    )


def group_bytes(group: TileGroup, *, constants: bool = True) -> int:
    """Returns the distinct bytes of operands and results; every schedule moves at least these.

    If `constants` is False, operands that are constants do not count.
    """
    by_buffer: dict[int, float] = {}
    for number, stage in enumerate(group.stages):
        extents = {v: trips(v) for v in stage.loops}
        for source, item in global_touches(group, number, stage):
            if constants or not item.constant:
                by_buffer[source] = max(by_buffer.get(source, 0), item.bytes_in(extents, 1))
    return round(sum(by_buffer.values()))


def _bytes_formula(group: TileGroup) -> Index:
    """Returns `group_bytes` as a formula of the sizes.

    The formula is an upper bound. An element that is accessed at several iterations counts several
    times; the sum is limited to the size of the whole buffer.
    """
    by_buffer: dict[int, Index] = {}
    for number, stage in enumerate(group.stages):
        for source, item in global_touches(group, number, stage):
            bytes_ = prod((extent(v) for v in item.loops), start=const(item.times))
            bytes_ = minimum(bytes_, group.buffers[source].size) * item.size
            by_buffer[source] = maximum(by_buffer.get(source, bytes_), bytes_)
    return sum(by_buffer.values(), start=const(0))


def global_touches(group: TileGroup, number: int, stage: GroupStage) -> Iterator[tuple[int, Touch]]:
    """Yields (buffer, touch) for each operand and result that stage `number` accesses."""
    for item in stage_touches(group, number, stage):
        if isinstance(item.source, int) and is_global(group, item.source):
            yield item.source, item


# ---- touches ------------------------------------------------------------------------------------


def is_global(group: TileGroup, buffer: int) -> bool:
    """Returns True for an operand or result, False for a buffer in a tile's scratch."""
    return not group.buffers[buffer].is_local


def stage_touches(group: TileGroup, number: int, stage: GroupStage) -> tuple[Touch, ...]:
    """Returns the touches (loads and stores) of stage `number`.

    They are touches of buffers, of the blocks of other stages that it reads, and of its own block.
    """
    touches: list[Touch] = []
    loads: dict[_Place, list[int]] = {}
    for node in walk(*stage.body):
        if not isinstance(node, Read):
            continue
        access = stage.accesses.get(node)
        if access is not None:
            place, base = _place(group, stage, access, node)
            bases = loads.setdefault(place, [])
            # Each read with a data-dependent index may select another element, so each gets an
            # offset of its own.
            bases.append(base + len(bases) * bool(node.indirect))
        elif isinstance(node.source, StageRef):
            # The other stage's block has no gaps along the loops on which the read depends.
            read_loops = [v for v in stage.loops if v in free_vars(*node.indices)]
            touches.append(_dense_touch(node.source, False, node.dtype.bytes, read_loops))
    stores: dict[_Place, list[int]] = {}
    for component, targets in enumerate(stage.stores):
        for access in targets:
            if stage.strip is None or is_global(group, access.buffer):
                place, base = _place(group, stage, access)
                stores.setdefault(place, []).append(base)
        result = StageRef(number, component)
        # In scratch, the loops that tiles cut lie outside of the others (`inside_scratch`).
        loops = sorted(stage.iters, key=lambda v: v not in group.cut)
        touches.append(_dense_touch(result, True, stage.body[component].dtype.bytes, loops))
    touches += (_place_touch(group, place, bases, store=False) for place, bases in loads.items())
    touches += (_place_touch(group, place, bases, store=True) for place, bases in stores.items())
    return tuple(touches)


# Accesses with equal places form one touch. A place is (number of the buffer, or component of a
# stage; bytes of an element; steps along the loops).
_Place: TypeAlias = tuple[int | StageRef, int, tuple[Stride, ...]]


def _place(
    group: TileGroup, stage: GroupStage, access: Access, node: Read | None = None
) -> tuple[_Place, int]:
    """Returns the place of an access, and the offset of the first element that it accesses.

    `node` is the read of the access, or None for a store.
    """
    loops = stage.loops
    steps, base = place_of(access.offset, loops)
    if node is not None and isinstance(node.source, StageRef) and row_loop(group) is not None:
        return (
            node.source,
            node.dtype.bytes,
            steps,
        ), base  # a tile stores rows for later stages in scratch
    steps += tuple(_data_steps(access, node, stage)) if node is not None else ()
    if not is_global(group, access.buffer):
        steps += tuple(_tile_steps(group, stage, access.buffer))
    return (access.buffer, group.buffers[access.buffer].dtype.bytes, steps), base


def _data_steps(access: Access, node: Read, stage: GroupStage) -> Iterator[Stride]:
    """Yields a step of unknown size for each loop with which a data-dependent index varies.

    `within` of a step is the number of elements among which the index selects.
    """
    for loop in stage.loops:
        data_vars = [var for var, scalar in node.indirect if loop in depends(stage, scalar)]
        if data_vars:
            spans = (trips(v) * abs(stride(access, v) or 1 << 62) for v in data_vars)
            yield Stride(loop, None, within=sum(spans))


def _tile_steps(group: TileGroup, stage: GroupStage, buffer: int) -> Iterator[Stride]:
    """Yields the steps of a buffer in scratch along the loops that tiles cut.

    The buffer has separate elements for each point of a tile along the cut loops on which its
    writer depends.
    """
    if group.buffers[buffer].place is not None:
        return  # the buffer lies in a result, and has that result's offsets
    writer = group.stages[writer_of(group, buffer)]
    distance = as_int(group.buffers[buffer].size) or 1
    rows = None if writer.strip is None else writer.strip.rows
    for var in reversed(group.cut):
        if var in writer.iters and var is not rows:
            if var in stage.loops:
                yield Stride(var, distance)
            distance *= trips(var)


@lru_cache(maxsize=256)
def writer_of(group: TileGroup, source: int | StageRef) -> int:
    """Returns the number of the stage that writes `source`: a stage's result, or a buffer."""
    if isinstance(source, StageRef):
        return source.stage
    return next(n for n, s in enumerate(group.stages) if any(a.buffer == source for a in s.written))


def _place_touch(group: TileGroup, place: _Place, bases: list[int], *, store: bool) -> Touch:
    """Returns the touch of all accesses at a place; each begins at one of `bases`."""
    source, size, steps = place
    if isinstance(source, StageRef):
        return touch(source, steps, store=store, size=size, buffer_bytes=inf, bases=bases)
    buffer = group.buffers[source]
    return touch(
        source,
        steps,
        store=store,
        size=size,
        buffer_bytes=typical(buffer.size) * size,
        constant=buffer.constant,
        bases=bases,
    )


def _dense_touch(source: StageRef, store: bool, size: int, loops: Sequence[Var]) -> Touch:
    """Returns the touch of a block whose elements along `loops` have no gaps."""
    steps = []
    distance = 1
    for var in reversed(loops):
        steps.append(Stride(var, distance))
        distance *= trips(var)
    return touch(source, steps, store=store, size=size, buffer_bytes=inf)


# ---- operations ---------------------------------------------------------------------------------


def _stage_work(group: TileGroup, number: int, stage: GroupStage, machine: Machine) -> StageWork:
    """Returns the work of stage `number`."""
    applied = [s for s in _repeated(stage) if isinstance(s, Apply)]
    lanes = machine.width(max(4, *(s.dtype.bytes for s in (*applied, *stage.body))))
    loops_of: dict[Scalar, frozenset[Var]] = {}
    parts = {frozenset(stage.loops): (0.0, 0.0)}
    for scalar in applied:
        varies = _varies(stage, scalar, loops_of)
        ops, heavy = parts.get(varies, (0.0, 0.0))
        cycles = _cycles(scalar, machine)
        parts[varies] = (ops + (not cycles), heavy + cycles)
    ops, heavy = parts.pop(frozenset(stage.loops))
    if stage.monoid is not None:
        # The addition of a contraction is part of its multiply-add; an extremum of floats also
        # tests for NaN.
        extrema = (share in ("max", "min") for share in MONOIDS[stage.monoid].parts)
        tests = stage.body[0].dtype.is_float and sum(extrema)
        ops += 0 if contracts(stage) else tests + len(stage.body)
    touches = stage_touches(group, number, stage)
    some_loops = tuple((varies, *cycles) for varies, cycles in parts.items())
    return StageWork(stage, lanes, ops, heavy, some_loops, _flops(stage), touches)


def _varies(
    stage: GroupStage, scalar: Scalar, loops_of: dict[Scalar, frozenset[Var]]
) -> frozenset[Var]:
    """Returns the loops with which a scalar varies; `loops_of` caches them by scalar."""
    loops = loops_of.get(scalar)
    if loops is None:
        inner = () if isinstance(scalar, Read) else children(scalar)
        parts = [_varies(stage, child, loops_of) for child in inner]
        loops = loops_of[scalar] = frozenset().union(*parts) if parts else depends(stage, scalar)
    return loops


def _repeated(stage: GroupStage) -> list[Scalar]:
    """Returns the scalars that a stage computes for each point.

    Parts of a data-dependent index are left out if many neighbouring points share them.
    """
    scalars = dict.fromkeys(stage.body)
    for scalar in list(scalars):
        _collect(scalar, stage, scalars)
    return list(scalars)


def _collect(scalar: Scalar, stage: GroupStage, scalars: dict[Scalar, None]) -> None:
    """Adds the scalars that `scalar` is computed from to `scalars`, as `_repeated` needs them."""
    for child in children(scalar):
        if isinstance(scalar, Read):
            shared_loops = {*stage.loops} - depends(stage, child)
            if points(takewhile(shared_loops.__contains__, reversed(stage.loops))) >= _MANY:
                continue
        if child not in scalars:
            scalars[child] = None
            _collect(child, stage, scalars)


def _cycles(scalar: Apply, machine: Machine) -> float:
    """Returns the cycles of a function for one vector, or 0 for a single fast instruction."""
    if not scalar.dtype.is_float:
        return 0.0
    listed = machine.functions.get(scalar.function)
    if listed is not None:
        return listed
    return machine.call if scalar.function in EXPENSIVE else 0.0


def _flops(stage: GroupStage) -> int:
    """Returns the floating-point operations of one evaluation of a stage."""
    flops = sum(isinstance(s, Apply) and s.dtype.is_float for s in walk(*stage.body))
    if stage.monoid is not None:
        flops += sum(s.dtype.is_float for s in stage.body)
    return flops
