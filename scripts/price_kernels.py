"""Lists the kernels of a model, and draws samples of the schedules that each can have.

a matmul of 384 rows    panels x K-blocks x tiles of rows x order of tiles x prefetch
                        1,440 schedules; a seeded sample of 32, and the chosen one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random

from price_space import space
from tcc.backends.cpu.backend import CpuBackend
from tcc.debug import Trace
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
from tcc.schedule.cpu.schedule import Schedule
from tcc.variants import optimise, resolve_targets, variant_backends


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
        kernel: Kernel,
        layouts: Mapping[Value, Layout],
        constants: Mapping[Value, Handle],
        periods: dict[Value, float | None] | None = None,
    ) -> PlannedKernel:
        planned_kernel = plan(kernel, layouts, constants, periods)
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


# ---- the sample ---------------------------------------------------------------------------------


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
    schedules = space(Structure(kernel.key, model.backend.planner.core).with_knobs)
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
