"""Lists the kernels of a model and the schedules that each of them can have.

a matmul of 384 rows    panels x K-blocks x tiles of rows x order of tiles x prefetch
                        1,440 schedules; a seeded sample of 32, and the chosen one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import ceil, prod
from pathlib import Path
from random import Random

from tcc.backends.cpu.backend import CpuBackend
from tcc.debug import Trace
from tcc.driver import resolve_targets
from tcc.errors import TccError, UserError
from tcc.frontends import load_model
from tcc.ir.expr import extent
from tcc.ir.graph import Handle, Value, constant_bytes
from tcc.ir.index import as_int
from tcc.ir.layout import Layout
from tcc.ir.program import Instr, Launch, Loop, constant_registers
from tcc.ir.program.operands import bodies_of
from tcc.ir.tile import MemorySpace, TileKernel
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.text import kernel_text
from tcc.options import Options
from tcc.passes.layout.assign import Kernel
from tcc.passes.program.lowered import Lowered
from tcc.passes.tile.cpu.lower import lower
from tcc.passes.tile.cpu.plan import Structure
from tcc.passes.tile.plan import Bound, KernelKey, PlannedKernel, kernel_key
from tcc.schedule.cpu.candidates import knobs_of
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.nest import trips
from tcc.variants import optimise, variant_backends

# Variants of a schedule multiply its tile sizes by a factor of UNITS, the block of its streaming
# loop by a factor of STREAM, and the rows of its register blocks by a factor of ROWS. ROWS has no
# factor above 1, because there are few registers.
UNITS, STREAM, ROWS = (1, 4, 2, 0.5, 0.25), (1, 2, 0.5), (1, 0.5)


@dataclass(frozen=True, slots=True)
class KernelBuffer:
    bytes: int
    constant: bool
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleCandidate:
    """A schedule of a kernel, with the group of nests that it schedules, and its tile program."""

    group: TileGroup
    schedule: Schedule
    kernel: TileKernel

    @property
    def units(self) -> int:
        return prod(as_int(extent(axis)) or 0 for axis in self.kernel.axes)

    def buffers(self) -> list[KernelBuffer]:
        """Returns the operands and results of a launch."""
        return [
            KernelBuffer((as_int(b.size) or 0) * b.dtype.bytes, b.constant, b.dtype.name)
            for b in self.group.buffers
            if b.scope is not MemorySpace.LOCAL
        ]


@dataclass(frozen=True, slots=True, eq=False)
class ModelKernel:
    """A kernel of a model, with the number of its launches in a run.

    A loop counts with its number of iterations, or once if that number depends on data.
    """

    name: str
    launches: int
    key: KernelKey
    bound: Bound


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A model after all steps of a compile but the last, which generates code."""

    backend: CpuBackend
    lowered: Lowered
    kernels: tuple[ModelKernel, ...]

    @property
    def weights(self) -> int:
        """Returns the bytes of the model's constants."""
        return self.lowered.weights.size


def planned(model: Path, options: Options) -> Planned:
    """Returns the kernels of the model at `model`, with the schedules that a compile would choose.

    Raises UserError as a compile does, and if the target is no CPU.
    """
    trace = Trace()
    graph = load_model(model, dict(options.inputs))
    backends = variant_backends(resolve_targets(options), options, constant_bytes(graph))
    (backend,) = backends if len(backends) == 1 else (None,)
    if not isinstance(backend, CpuBackend):
        raise UserError("only kernels of one CPU are timed here", where="--target")
    keys = _recorded_keys(backend)
    ((graph, *_),) = optimise(graph, backends, options, trace)
    backend.check(graph)
    lowered = backend.lower(graph, trace)
    counts = launches(lowered)
    kernels = tuple(
        ModelKernel(f"{number}: {source}", counts[number], keys[bound], bound)
        for number, (source, bound) in enumerate(
            zip(lowered.table.locs, lowered.table.bounds, strict=True)
        )
    )
    return Planned(backend, lowered, kernels)


def _recorded_keys(backend: CpuBackend) -> Mapping[Bound, KernelKey]:
    """Returns a map from `Bound` to `KernelKey`; it gets an entry for each kernel that `backend`
    plans from now on."""
    keys: dict[Bound, KernelKey] = {}
    planner, plan = backend.planner, backend.planner.plan

    def remember(
        kernel: Kernel, layouts: Mapping[Value, Layout], constants: Mapping[Value, Handle]
    ) -> PlannedKernel:
        planned_kernel = plan(kernel, layouts, constants)
        keys[planned_kernel.bound] = kernel_key(kernel, layouts, constants)
        return planned_kernel

    planner.plan = remember
    return keys


def launches(lowered: Lowered) -> Counter[int]:
    """Maps the index of a kernel to the number of its launches in a run."""
    registers, counts = constant_registers(lowered.program), Counter[int]()

    def count(body: Sequence[Instr], times: int) -> None:
        for instr in body:
            if isinstance(instr, Launch):
                counts[instr.kernel] += times
            trip_count = registers.get(instr.trips, 1) if isinstance(instr, Loop) else 1
            for inner in bodies_of(instr):
                count(inner, times * trip_count)

    count(lowered.program.body, 1)
    return counts


# ---- the space ----------------------------------------------------------------------------------


def space(structure: Structure) -> list[tuple[TileGroup, Schedule]]:
    """Returns all schedules of a kernel to draw from.

    For each combination of the compiler's knobs, these are the schedule with those knobs and its
    variants (see `around`). Equal kernels have their schedules in the same order.
    """
    plain, _ = structure.with_knobs(Knobs())
    knobs = knobs_of(plain)
    settings = ((getattr(Knobs(), k.name), *k.settings) for k in knobs)
    schedules: dict[tuple[int, Schedule], tuple[TileGroup, Schedule]] = {}
    for values in product(*settings):
        settings_by_name = dict(zip((k.name for k in knobs), values, strict=True))
        group, schedule = structure.with_knobs(replace(Knobs(), **settings_by_name))
        for variant in around(group, schedule):
            schedules.setdefault((id(group), variant), (group, variant))
    return list(schedules.values())


def around(group: TileGroup, schedule: Schedule) -> Iterator[Schedule]:
    """Yields `schedule` itself, then its variants.

    A variant has other sizes of tiles, of the streaming loop's blocks or of rows of register
    blocks, another order of tiles, or no prefetches. All have the same vector loops, because
    constants are packed for these.
    """
    counts = {v.name: trips(v) for v in group.common}
    vectors = {nest.vector for nest in schedule.nests}
    free = [n for n in schedule.parallel if n not in vectors and counts[n] > 1]
    units = (_scaled(schedule.tile_size(n), counts[n], UNITS) for n in free)
    stream = [schedule.stream_block]
    if group.stream is not None and as_int(extent(group.stream.loop)) is not None:
        stream = _scaled(schedule.stream_block, trips(group.stream.loop), STREAM)
    for sizes in product(*units):
        named = {**dict(schedule.tile_sizes), **dict(zip(free, sizes, strict=True))}
        tile_sizes = tuple((n, named[n]) for n in counts if named.get(n, 1) > 1)
        orders = _orders(schedule.parallel, counts, named)
        for order, nests, block in product(orders, _nests(group, schedule), stream):
            yield Schedule(tile_sizes, order, nests, block)


def _nests(group: TileGroup, schedule: Schedule) -> list[tuple[Nest, ...]]:
    """Returns the schedule's nests, then variants of all of them.

    The nests of a variant have fewer rows in their register blocks, no prefetches, or both.
    """
    variants = []
    for scale, prefetch in product(ROWS, (True, False)):
        nests = []
        for nest in schedule.nests:
            rows = {v.name for n in nest.stages for v in group.stages[n].iters} - {nest.vector}
            blocks = (
                (n, max(1, int(size * (scale if n in rows else 1)))) for n, size in nest.blocks
            )
            row_blocks = tuple((n, size) for n, size in blocks if size > 1)
            nests.append(replace(nest, blocks=row_blocks, ahead=nest.ahead if prefetch else 0))
        variants.append(tuple(nests))
    return list(dict.fromkeys(variants))


def _scaled(size: int, limit: int, scales: Sequence[float]) -> list[int]:
    """Returns `size`, then its multiples by `scales`, clamped to [1, limit]."""
    return list(dict.fromkeys(min(max(int(size * scale), 1), limit) for scale in scales))


def _orders(
    parallel: Sequence[str], counts: Mapping[str, int], units: Mapping[str, int]
) -> Iterator[tuple[str, ...]]:
    """Yields orders of the loops `parallel`: those with several tiles are permuted.

    The remaining loops keep their positions. `counts` has the trip counts of loops, and `units` the
    sizes of their tiles.
    """
    several = [n for n in parallel if ceil(counts[n] / units.get(n, 1)) > 1]
    for order in permutations(several):
        remaining = iter(order)
        yield tuple(next(remaining) if n in several else n for n in parallel)


@dataclass(frozen=True, slots=True)
class Sample:
    """Schedules of a kernel: first the one that a compile chooses, then random ones.

    `size` is the number of schedules in the kernel's `space`. `refused` is the number of drawn
    schedules that could not be lowered.
    """

    candidates: tuple[ScheduleCandidate, ...]
    size: int
    refused: int


def sample(model: Planned, kernel: ModelKernel, count: int, seed: int) -> Sample:
    """Returns the chosen schedule of a kernel and up to `count` random ones.

    No two of these schedules have the same tile program.
    """
    schedules = space(Structure(kernel.key, model.backend.planner.core))
    drawn = Random(f"{seed} {kernel.name}").sample(schedules, min(count, len(schedules)))
    compiled_choice = kernel.bound.group, kernel.bound.schedule
    assert isinstance(compiled_choice[1], Schedule)
    candidates: dict[str, ScheduleCandidate] = {}
    refused = 0
    for group, schedule in (compiled_choice, *drawn):
        try:
            tile = lower(group, schedule)
            model.lowered.planner.verify(tile)
        except TccError:
            refused += 1
            continue
        candidates.setdefault(kernel_text(tile), ScheduleCandidate(group, schedule, tile))
    return Sample(tuple(candidates.values()), len(schedules), refused)
