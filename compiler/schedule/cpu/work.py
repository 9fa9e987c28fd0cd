"""What a tile group's stages do, counted once a group: operations, loads and stores."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from math import inf, prod
from typing import Any, TypeAlias

from tcc.ir.expr import MONOIDS, extent, known_extent
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
from tcc.ir.tile import MemorySpace
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.record import entity
from tcc.schedule.cpu.machine import Machine
from tcc.schedule.footprint import Stride, Touch, place_of, touch
from tcc.schedule.nest import (
    EXPENSIVE,
    contraction_factors,
    depends,
    points,
    row_loop,
    stride,
    trips,
    typical,
)

# For so many points in a row an index is made once beside them.
_MANY = 16


@entity
class StageWork:
    """One stage.  For each vector of results and step of the reduction: `ops` simple vector
    instructions and `heavy` cycles of functions; `flops` are per element and step."""

    stage: GroupStage
    lanes: int
    ops: float
    heavy: float
    flops: int
    touches: tuple[Touch, ...]


def group_work(group: TileGroup, machine: Machine) -> tuple[StageWork, ...]:
    """The work of each stage, in order."""
    return tuple(_stage_work(group, n, stage, machine) for n, stage in enumerate(group.stages))


def work_facts(group: TileGroup, sizes: Sequence[Var]) -> dict[str, Any]:
    """What one launch does, as manifests have it: with symbolic sizes that of typical ones, and the
    three formulas of the kernel's `sizes`."""
    found = {
        "flops": group_flops(group),
        "contraction_flops": contraction_flops(group),
        "bytes": group_bytes(group),
    }
    loops = (v for stage in group.stages for v in stage.loops)
    if all(known_extent(v) is not None for v in loops):
        return found
    flops = (as_index(count(group, extent)) for count in (group_flops, contraction_flops))
    formulas = [formula.key for formula in (*flops, _bytes_formula(group))]
    return {**found, "sizes": [v.name for v in sizes], "formulas": formulas}


def group_flops(group: TileGroup, count: Callable[[Var], Any] = trips) -> Any:
    """Floating-point operations; a multiply-add is two, any function one.  Symbolic sizes count as
    typical ones; as themselves, in an `Index`, where `count` is `extent`."""
    return sum(_flops(stage) * prod(count(v) for v in stage.loops) for stage in group.stages)


def contraction_flops(group: TileGroup, count: Callable[[Var], Any] = trips) -> Any:
    """The multiply-adds among them, two each, of the stages that are sums of products."""
    return sum(
        2 * prod(count(v) for v in stage.loops)
        for stage in group.stages
        if contraction_factors(stage)
    )


def group_bytes(group: TileGroup, *, constants: bool = True) -> int:
    """Distinct bytes of operands and results: what must move however good the schedule."""
    found: dict[int, float] = {}
    for number, stage in enumerate(group.stages):
        whole = {v: trips(v) for v in stage.loops}
        for source, item in global_touches(group, number, stage):
            if constants or not item.constant:
                found[source] = max(found.get(source, 0), item.bytes_in(whole, 1))
    return round(sum(found.values()))


def _bytes_formula(group: TileGroup) -> Index:
    """`group_bytes` for all sizes; loops that step over one another's elements count as apart, up
    to all that there are."""
    found: dict[int, Index] = {}
    for number, stage in enumerate(group.stages):
        for source, item in global_touches(group, number, stage):
            own = prod((extent(v) for v in item.loops), start=const(item.times))
            own = minimum(own, group.buffers[source].size) * item.size
            found[source] = maximum(found.get(source, own), own)
    return sum(found.values(), start=const(0))


def global_touches(group: TileGroup, number: int, stage: GroupStage) -> Iterator[tuple[int, Touch]]:
    """What stage `number` touches of operands and results, each with its buffer."""
    for item in stage_touches(group, number, stage):
        if isinstance(item.source, int) and is_global(group, item.source):
            yield item.source, item


# ---- touches ------------------------------------------------------------------------------------


def is_global(group: TileGroup, buffer: int) -> bool:
    """Whether a buffer is an operand or a result, and not in a unit's scratch."""
    return group.buffers[buffer].scope is not MemorySpace.LOCAL


def stage_touches(group: TileGroup, number: int, stage: GroupStage) -> tuple[Touch, ...]:
    """What stage `number` reads and stores, of buffers and of other stages."""
    found: list[Touch] = []
    loads: dict[_Place, list[int]] = {}
    for node in walk(*stage.body):
        if not isinstance(node, Read):
            continue
        access = stage.accesses.get(node)
        if access is not None:
            place, base = _place(group, stage, access, node)
            bases = loads.setdefault(place, [])
            # What data choose are so many places.
            bases.append(base + len(bases) * bool(node.indirect))
        elif isinstance(node.source, StageRef):
            found.append(_of_block(stage, node, node.source))
    stores: dict[_Place, list[int]] = {}
    for component, targets in enumerate(stage.stores):
        for access in targets:
            if stage.strip is None or is_global(group, access.buffer):
                place, base = _place(group, stage, access)
                stores.setdefault(place, []).append(base)
        found.append(_of_result(stage, StageRef(number, component)))
    found += (_of_place(group, place, bases, store=False) for place, bases in loads.items())
    found += (_of_place(group, place, bases, store=True) for place, bases in stores.items())
    return tuple(found)


# What is touched, of how many bytes an element, and in which steps.
_Place: TypeAlias = tuple[int | StageRef, int, tuple[Stride, ...]]


def _place(
    group: TileGroup, stage: GroupStage, access: Access, node: Read | None = None
) -> tuple[_Place, int]:
    """Where an access starts, and the steps that it takes from there."""
    loops = stage.loops
    steps, base = place_of(access.offset, loops)
    if node is not None and isinstance(node.source, StageRef) and row_loop(group) is not None:
        return (node.source, node.dtype.bytes, steps), base  # of the strip that waits in scratch
    steps += tuple(_chosen(access, node, stage)) if node is not None else ()
    if not is_global(group, access.buffer):
        steps += tuple(_along_units(group, stage, access.buffer))
    return (access.buffer, group.buffers[access.buffer].dtype.bytes, steps), base


def _chosen(access: Access, node: Read, stage: GroupStage) -> Iterator[Stride]:
    """The steps along loops with which data choose places, and the elements these lie within."""
    for loop in stage.loops:
        chosen = [var for var, scalar in node.indirect if loop in depends(stage, scalar)]
        if chosen:
            spans = (trips(v) * abs(stride(access, v) or 1 << 62) for v in chosen)
            yield Stride(loop, None, within=sum(spans))


def _along_units(group: TileGroup, stage: GroupStage, buffer: int) -> Iterator[Stride]:
    """The steps of a buffer in scratch along the loops that units cut: it holds its elements for
    each of their points, as far as the stage that stores it varies with them."""
    if group.buffers[buffer].place is not None:
        return  # its offsets are those of a result
    writer = _writer(group, buffer)
    apart = as_int(group.buffers[buffer].size) or 1
    rows = None if writer.strip is None else writer.strip.rows
    for var in reversed(group.cut):
        if var in writer.iters and var is not rows:
            if var in stage.loops:
                yield Stride(var, apart)
            apart *= trips(var)


@lru_cache(maxsize=256)
def _writer(group: TileGroup, buffer: int) -> GroupStage:
    """The first stage that stores to a buffer."""
    return next(s for s in group.stages if any(a.buffer == buffer for a in s.written))


def _of_place(group: TileGroup, place: _Place, bases: list[int], *, store: bool) -> Touch:
    source, size, steps = place
    if isinstance(source, StageRef):
        return touch(source, steps, store=store, size=size, most=inf, bases=bases)
    buffer = group.buffers[source]
    return touch(
        source,
        steps,
        store=store,
        size=size,
        most=typical(buffer.size) * size,
        constant=buffer.constant,
        bases=bases,
    )


def _of_block(stage: GroupStage, node: Read, source: StageRef) -> Touch:
    """A read of another stage: dense in the loops that it varies with."""
    loops = stage.loops
    used = [v for v in loops if v in free_vars(*node.indices)]
    return _dense(source, False, node.dtype.bytes, used)


def _of_result(stage: GroupStage, source: StageRef) -> Touch:
    return _dense(source, True, stage.body[source.component].dtype.bytes, stage.iters)


def _dense(source: StageRef, store: bool, size: int, loops: Sequence[Var]) -> Touch:
    steps = []
    apart = 1
    for var in reversed(loops):
        steps.append(Stride(var, apart))
        apart *= trips(var)
    return touch(source, steps, store=store, size=size, most=inf)


# ---- operations ---------------------------------------------------------------------------------


def _stage_work(group: TileGroup, number: int, stage: GroupStage, machine: Machine) -> StageWork:
    ops = heavy = 0.0
    applied = [s for s in _repeated(stage) if isinstance(s, Apply)]
    lanes = machine.width(max(4, *(s.dtype.bytes for s in (*applied, *stage.body))))
    known: dict[Scalar, frozenset[Var]] = {}
    parts: dict[frozenset[Var], float] = {}
    for scalar in applied:
        varies = _varies(stage, scalar, known)
        if varies not in parts:
            parts[varies] = _part(stage, varies, lanes)
        cycles, part = _cycles(scalar, machine), parts[varies]
        heavy, ops = (heavy + cycles * part, ops) if cycles else (heavy, ops + part)
    if stage.monoid is not None:
        # A sum of products is one instruction; an extremum of floats asks for NaN besides.
        extrema = (part in ("max", "min") for part in MONOIDS[stage.monoid].parts)
        tests = stage.body[0].dtype.is_float and sum(extrema)
        ops += 0 if contraction_factors(stage) is not None else tests + len(stage.body)
    touches = stage_touches(group, number, stage)
    return StageWork(stage, lanes, ops, heavy, _flops(stage), touches)


def _part(stage: GroupStage, varies: frozenset[Var], lanes: int) -> float:
    """How often a scalar that `varies` so is computed for each vector of a stage: what does not
    vary along some of its loops leaves these."""
    if len(varies) == len(stage.loops):
        return 1.0
    return min(1.0, lanes / max(1, points(v for v in stage.loops if v not in varies)))


def _varies(
    stage: GroupStage, scalar: Scalar, known: dict[Scalar, frozenset[Var]]
) -> frozenset[Var]:
    """The loops that a scalar varies with; `known` are those of others."""
    found = known.get(scalar)
    if found is None:
        inner = () if isinstance(scalar, Read) else children(scalar)
        parts = [_varies(stage, child, known) for child in inner]
        found = known[scalar] = frozenset().union(*parts) if parts else depends(stage, scalar)
    return found


def _repeated(stage: GroupStage) -> list[Scalar]:
    """The scalars of a stage but those of indices that data choose once for many points."""
    found = dict.fromkeys(stage.body)
    for scalar in list(found):
        _collect(scalar, stage, found)
    return list(found)


def _collect(scalar: Scalar, stage: GroupStage, found: dict[Scalar, None]) -> None:
    for child in children(scalar):
        if isinstance(scalar, Read):
            others = {*stage.loops} - depends(stage, child)
            if points(takewhile(others.__contains__, reversed(stage.loops))) >= _MANY:
                continue
        if child not in found:
            found[child] = None
            _collect(child, stage, found)


def _cycles(scalar: Apply, machine: Machine) -> float:
    """Cycles of a function that is no single fast instruction, else 0."""
    if not scalar.dtype.is_float:
        return 0.0
    listed = machine.functions.get(scalar.function)
    if listed is not None:
        return listed
    return machine.call if scalar.function in EXPENSIVE else 0.0


def _flops(stage: GroupStage) -> int:
    found = sum(isinstance(s, Apply) and s.dtype.is_float for s in walk(*stage.body))
    if stage.monoid is not None:
        found += sum(s.dtype.is_float for s in stage.body)
    return found
