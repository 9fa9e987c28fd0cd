"""A graph as code for GPUs: one program, and its kernels for each architecture of the target."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

from tcc.backends.artifact.planner import arena_planner
from tcc.backends.base import Backend
from tcc.backends.generated import Generated
from tcc.backends.gpu.code import GpuCode, Job, begin_blocks, compile_blocks
from tcc.backends.gpu.compile import Compilers, check_triton
from tcc.backends.gpu.source import HOPPER, CompiledKernel
from tcc.backends.gpu.tuning import better_schedules
from tcc.debug import Trace
from tcc.ir.graph import Graph
from tcc.ir.types import DTYPES, F32, DType
from tcc.options import Options
from tcc.passes.choose.price import cheapest
from tcc.passes.derive.derive import Derivations
from tcc.passes.derive.merge import MergePrices
from tcc.passes.derive.prices import Prices
from tcc.passes.manager import Pass
from tcc.passes.moe.price import GroupedGemmPrices
from tcc.passes.pipeline import (
    GPU,
    GPU_PROGRAM,
    INT8_MATMULS,
    SMALL_TOP_K,
    grouped_gemms,
    legalizing,
    lower,
    merging,
)
from tcc.passes.program.handles import check_without_handles
from tcc.passes.program.lower_node import check_without_calls
from tcc.passes.program.lowered import Lowered, Plan
from tcc.passes.quantize.precision import Precision
from tcc.passes.tile.gpu.plan import BlockPlanner, block_schedule
from tcc.passes.tile.plan import Bound
from tcc.schedule.cpu.work import work_facts
from tcc.schedule.gpu.cost import BlockPricer, Usage
from tcc.schedule.gpu.schedule import FLOAT8_NAME, BlockProfile, BlockSchedule
from tcc.target import GpuProfile, Target

# Rows of a tile that products with matrices that data choose are tried with.
_TILES = (16, 32, 64, 128)


class GpuBackend(Backend):
    """Code for the GPUs of `target`."""

    kinds = ("cuda", "rocm")
    planner: BlockPlanner

    def __init__(
        self,
        target: Target,
        options: Options,
        asked: Sequence[Pass] | None = None,
        compilers: Compilers | None = None,
        derivations: Derivations | None = None,
    ) -> None:
        """`asked` and `derivations`: what all parts of a target ask for; None: this is all of it.
        `compilers` are what all code of an artifact is compiled by; None: processes of its own,
        for a moment each."""
        self.target, self.options, self.compilers = target, options, compilers
        self.asked = gpu_passes(target.gpus, options) if asked is None else tuple(asked)
        self.derivations = derivations or gpu_derivations(target.gpus, options)
        strict = options.numerics == "strict"
        floats = stored_floats(options)
        profile = block_profile(target.gpus, options.precision)
        roles = options.gpu_kernels == "auto" and options.precision in ("bf16", "f16")
        if roles and all(gpu.arch == HOPPER for gpu in target.gpus):
            profile = replace(profile, warpgroups=True)
        self.planner = BlockPlanner(profile, floats, skips=not strict)
        self.precision = Precision(
            floats, options.weight_bits, pairs=True, everywhere=floats is not F32
        )

    @classmethod
    def refused(cls, options: Options) -> Mapping[str, str]:
        why = "machine files describe processors, not GPUs"
        return {} if options.machine is None else {"--machine": why}

    @classmethod
    def check_tools(cls, triple: str) -> None:
        check_triton()
        super().check_tools(triple)

    @classmethod
    def tools(cls, options: Options) -> AbstractContextManager[Any]:
        return Compilers(options.jobs, options.budgets)

    @classmethod
    def variants(
        cls, target: Target, options: Options, constants: int, tools: Any
    ) -> tuple[Self, ...]:
        """GPUs that are much alike share one, others have their own."""
        asked = gpu_passes(target.gpus, options)
        derived = gpu_derivations(target.gpus, options)
        return tuple(cls(part, options, asked, tools, derived) for part in alike(target))

    def joined(self, other: Backend) -> Self | None:
        """For GPUs of one vendor which all or none have matrix units for the precision."""
        gpus = self.target.gpus + other.target.gpus
        if self.target.kind != other.target.kind:
            return None
        if len({gpu.peak(self.options.precision) is None for gpu in gpus}) > 1:
            return None
        made = copy(self)
        made.target = _part(self.target, gpus)
        return made

    def check(self, graph: Graph) -> None:
        """Raises UserError with every node that only a function of the host computes, unless these
        are allowed; and with strings and lists, which devices do not have."""
        check_without_handles(graph, self.target.kind)
        if not self.options.allow_host:
            check_without_calls(graph, self.target.kind)

    def lower(self, graph: Graph, trace: Trace) -> Lowered:
        if self.compilers is not None:
            self.compilers.start()  # which takes them about as long as this
        return lower(graph, GPU, Plan(self.planner, arena_planner(), self.precision), trace)

    def begin(self, lowered: Lowered, names: Sequence[str]) -> None:
        if self.compilers is not None:
            job = self._job(lowered.table.bounds, names, lowered.alignments)
            begin_blocks(job, self.compilers)

    def fitted(self, lowered: Lowered, names: Sequence[str], trace: Trace) -> Lowered:
        """Kernels may turn out to need more registers or shared memory than was thought."""

        def compiled(bounds: Mapping[int, Bound]) -> dict[int, list[CompiledKernel]]:
            numbers = tuple(bounds)
            code = self._compiled(
                tuple(bounds.values()),
                [names[n] for n in numbers],
                [lowered.alignments[n] for n in numbers],
            )
            return {n: [made[at] for made in code.kernels] for at, n in enumerate(numbers)}

        changes = better_schedules(lowered.table.bounds, self.planner, compiled)
        if not changes:
            return lowered
        self.planner.exchange(changes)
        plan = Plan(self.planner, arena_planner(), self.precision, packed=lowered.placed.surface)
        return lower(lowered.placed, GPU_PROGRAM, plan, trace)

    def generate(self, lowered: Lowered, names: Sequence[str]) -> Generated:
        code = self._compiled(lowered.table.bounds, names, lowered.alignments, portable=True)
        facts = self._facts(lowered, names, code.kernels)
        return Generated((), 0, code.listings, facts, code.images)

    def _compiled(
        self,
        bounds: Sequence[Bound],
        names: Sequence[str],
        alignments: Sequence[Sequence[int]],
        portable: bool = False,
    ) -> GpuCode:
        job, host = self._job(bounds, names, alignments), self.options.allow_host
        with ExitStack() as opened:
            compilers = self.compilers or opened.enter_context(self.tools(self.options))
            return compile_blocks(job, compilers, allow_host=host, portable=portable)

    def _job(
        self, bounds: Sequence[Bound], names: Sequence[str], alignments: Sequence[Sequence[int]]
    ) -> Job:
        return Job(
            [bound.kernel for bound in bounds],
            names,
            [block_schedule(bound) for bound in bounds],
            alignments,
            self.target,
            self.options.precision,
            self.options.gpu_kernels == "auto",
        )

    def _facts(
        self, lowered: Lowered, names: Sequence[str], made: Sequence[Sequence[CompiledKernel]]
    ) -> dict[str, Any]:
        first, precision = self.target.gpus[0], self.options.precision
        rows = list(zip(names, lowered.table.locs, lowered.table.bounds, strict=True))
        return {
            "machine": {
                "name": first.part,
                "flops_per_second": _peak(first, precision),
                "bytes_per_second": first.bandwidth,
            },
            "kernels": [
                {
                    "symbol": name,
                    "source": loc,
                    **work_facts(bound.group, bound.kernel.sizes),
                    **_price(first, bound, kernel, precision),
                    **_blocks(block_schedule(bound)),
                }
                for (name, loc, bound), kernel in zip(rows, made[0], strict=True)
            ],
            "builds": [
                {
                    "arch": gpu.arch,
                    "kernels": [
                        {
                            "symbol": name,
                            **_build(kernel),
                            **_price(gpu, bound, kernel, precision),
                        }
                        for (name, _, bound), kernel in zip(rows, kernels, strict=True)
                    ],
                }
                for gpu, kernels in zip(self.target.gpus, made, strict=True)
            ],
        }


def stored_floats(options: Options) -> DType:
    """What operands of f32 are stored as; tf32 is stored as f32."""
    return DTYPES.get(options.precision, F32)


def gpu_passes(gpus: Sequence[GpuProfile], options: Options) -> tuple[Pass, ...]:
    """The passes that all `gpus` ask for.

    Sums of products of bytes are rounded once, those of dequantised ones at every step.
    """
    planner = _planner(gpus, options)
    grouped = grouped_gemms(GroupedGemmPrices(planner, _TILES).tile_of)
    loose = () if options.numerics == "strict" else (INT8_MATMULS,)
    merges = (merging(MergePrices(planner)),) if options.derive else ()
    calls = legalizing(partial(cheapest, planner=planner))
    return SMALL_TOP_K, calls, *loose, grouped, *merges


def gpu_derivations(gpus: Sequence[GpuProfile], options: Options) -> Derivations | None:
    """What sums of products are priced by for all `gpus`; no forms of convolutions, which
    have been measured on cores alone."""
    if options.level < 2 or options.numerics == "strict" or not options.derive:
        return None
    prices = Prices(_planner(gpus, options))
    return Derivations(prices, options.weight_growth, bilinear=False)


def _planner(gpus: Sequence[GpuProfile], options: Options) -> BlockPlanner:
    return BlockPlanner(block_profile(gpus, options.precision), stored_floats(options))


# GPUs share their schedules where the most of them has less than so many times the least.
_ALIKE_UNITS, _ALIKE_SHARED = 2.2, 1.5


def alike(target: Target) -> tuple[Target, ...]:
    """`target` in parts whose GPUs have multiprocessors of one kind, about as many of them, and
    about as much shared memory.

    One schedule has to fit the smallest and to fill the largest.  Each part costs a lowering, which
    takes a tenth of the time that its kernels do.
    """
    parts: list[list[GpuProfile]] = []
    for gpu in target.gpus:
        for part in parts:
            if _are_alike([*part, gpu]):
                part.append(gpu)
                break
        else:
            parts.append([gpu])
    return tuple(_part(target, gpus) for gpus in parts)


def _part(target: Target, gpus: Sequence[GpuProfile]) -> Target:
    return replace(target, archs=tuple(gpu.arch for gpu in gpus), gpus=tuple(gpus))


def _are_alike(gpus: Sequence[GpuProfile]) -> bool:
    units = [gpu.multiprocessors for gpu in gpus]
    shared = [gpu.shared for gpu in gpus]
    return (
        len({(gpu.registers, gpu.warp) for gpu in gpus}) == 1
        and max(units) < min(units) * _ALIKE_UNITS
        and max(shared) < min(shared) * _ALIKE_SHARED
    )


def block_profile(gpus: Sequence[GpuProfile], precision: str) -> BlockProfile:
    """What one schedule for all of `gpus` may count on: the rates of the fastest, units for the
    largest, registers and shared memory of the smallest.

    Products of f32 are those of matrix units where `precision` allows it.
    """
    fastest = max(gpus, key=lambda g: g.bandwidth)
    rounded = {"f32": fastest.peak("tf32")} if precision == "tf32" else {}
    units = rounded | {name: fastest.peak(name) for name in ("bf16", "f16", "i8")}
    # Where there are no units for floats of a byte, these are multiplied as f16.
    units[FLOAT8_NAME] = fastest.peak(FLOAT8_NAME) or fastest.peak("f16")
    return BlockProfile(
        max(g.multiprocessors for g in gpus),
        min(g.registers for g in gpus),
        min(g.warp for g in gpus),
        min(g.lane_registers for g in gpus),
        min(g.threads for g in gpus),
        min(g.shared for g in gpus),
        min(g.shared_all for g in gpus),
        fastest.cache,
        fastest.clock,
        fastest.bandwidth,
        _peak(fastest, "f32"),
        tuple((name, peak) for name, peak in units.items() if peak is not None),
        fastest.matrix_warps,
    )


def _peak(gpu: GpuProfile, precision: str) -> float:
    """Operations per second in `precision`, in f32 where it has no units of that type."""
    peak = gpu.peak(precision) or gpu.peak("f32")
    assert peak is not None
    return peak


def _price(gpu: GpuProfile, bound: Bound, made: CompiledKernel, precision: str) -> dict[str, Any]:
    """What one launch is predicted to take with the registers and shared memory that it needs, and
    what limits it."""
    schedule = replace(block_schedule(bound), stages=made.stages)
    usage = Usage(made.registers, made.private, made.shared)
    price = BlockPricer(bound.group, block_profile((gpu,), precision)).price(schedule, usage)
    return {"seconds": float(f"{price.seconds:.4g}"), "limit": price.limit}


def _blocks(schedule: BlockSchedule) -> dict[str, Any]:
    """How a kernel's loops are cut."""
    return {
        "blocks": " ".join(f"{name} {size}" for name, size in schedule.blocks),
        "parallel": " ".join(schedule.parallel),
    }


def _build(kernel: CompiledKernel) -> dict[str, Any]:
    """How a kernel was compiled, and what it takes of a multiprocessor."""
    return {
        "warps": kernel.warps,
        "stages": kernel.stages,
        "language": "gluon" if kernel.stays else "triton",
        "registers": kernel.registers,
        "private": kernel.private,
        "shared": kernel.shared,
    }
