"""Compiles a graph for GPUs: one program, and its kernels for each architecture of the target."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import replace
from functools import partial
from types import MappingProxyType
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
from tcc.passes.derive.derive import Derivations
from tcc.passes.derive.merge import MergePrices
from tcc.passes.derive.prices import Prices
from tcc.passes.moe.price import GroupedGemmPrices
from tcc.passes.pipeline import GraphSettings, lower
from tcc.passes.place import LoweringContext
from tcc.passes.program.handles import check_without_handles
from tcc.passes.program.lower_node import check_without_calls
from tcc.passes.program.lowered import Lowered
from tcc.passes.program.price import cheapest
from tcc.passes.quantize.precision import Precision
from tcc.passes.tile.gpu.plan import BlockChooser, block_schedule
from tcc.passes.tile.plan import Bound
from tcc.schedule.alternatives import SILENT, Ledger
from tcc.schedule.cpu.work import work_facts
from tcc.schedule.gpu.cost import BlockPricer, Usage
from tcc.schedule.gpu.schedule import FLOAT8_NAME, TYPICAL_DEVICE, BlockProfile
from tcc.schedule.margins import MARGINS
from tcc.target import GpuProfile, Target
from tcc.zipped import zip_equal

# Candidate heights, in rows, for the tiles of grouped GEMMs.
_ROW_TILES = (16, 32, 64, 128)


class GpuBackend(Backend):
    """Generates code for the GPUs of `target`."""

    kinds = ("cuda", "rocm")
    refusals = MappingProxyType(
        {
            "activations": "kernels for GPUs multiply levels as floats",
            "machine": "machine files describe processors, not GPUs",
        }
    )
    planner: BlockChooser

    def __init__(
        self,
        target: Target,
        options: Options,
        settings: GraphSettings | None = None,
        compilers: Compilers | None = None,
        ledger: Ledger = SILENT,
    ) -> None:
        """Creates a backend for all GPUs of a compile, or for one group of them.

        `settings` are the graph settings of all GPUs of the compile. None means that `target` has
        all of them, and then the settings are computed. `compilers` compile all code of an
        artifact; with None, each step starts processes of its own.
        """
        self.target, self.options, self.compilers = target, options, compilers
        self.settings = settings or graph_settings(target.gpus, options, ledger)
        strict = options.numerics == "strict"
        floats = stored_floats(options)
        profile = block_profile(target.gpus, options.precision)
        roles = options.gpu_kernels == "auto" and options.precision in ("bf16", "f16")
        if roles and all(gpu.arch == HOPPER for gpu in target.gpus):
            profile = replace(profile, warpgroups=True)
        self.planner = BlockChooser(profile, floats, skips=not strict, ledger=ledger)
        self.precision = Precision(
            floats, options.weight_bits, pairs=True, everywhere=floats is not F32
        )

    @classmethod
    def refused(cls, options: Options) -> Mapping[str, str]:
        why = {"--precision": "int8 is a precision of CPUs"} if options.precision == "int8" else {}
        return {**why, **super().refused(options)}

    @classmethod
    def check_tools(cls, triple: str) -> None:
        check_triton()
        super().check_tools(triple)

    @classmethod
    def tools(cls, options: Options) -> AbstractContextManager[Any]:
        return Compilers(options.jobs, options.budgets)

    @classmethod
    def variants(
        cls,
        target: Target,
        options: Options,
        constants: int,
        tools: Any,
        ledger: Ledger = SILENT,
    ) -> tuple[Self, ...]:
        """Returns a backend for each group of similar GPUs."""
        ledger, parts = ledger.within(*_home(target)), similar_parts(target)
        settings = graph_settings(target.gpus, options, ledger)
        if len(parts) == 1:
            return (cls(parts[0], options, settings, tools, ledger),)
        ledgers = (ledger.on(part.text).within(*_home(part)) for part in parts)
        return tuple(
            cls(part, options, settings, tools, part_ledger)
            for part, part_ledger in zip_equal(parts, ledgers)
        )

    def merged_with(self, other: Backend) -> Self | None:
        """Returns a backend for the GPUs of both, or None if they need separate ones.

        GPUs can share a backend if they are of one vendor, and if all or none of them have matrix
        units for the precision.
        """
        gpus = self.target.gpus + other.target.gpus
        if self.target.kind != other.target.kind:
            return None
        if len({gpu.peak(self.options.precision) is None for gpu in gpus}) > 1:
            return None
        backend = copy(self)
        backend.target = _part(self.target, gpus)
        return backend

    def check(self, graph: Graph) -> None:
        """Raises UserError for strings and lists, which GPUs do not have.

        Raises it also for nodes that only a function of the host computes, unless options allow
        them.
        """
        check_without_handles(graph, self.target.kind)
        if not self.options.allow_host:
            check_without_calls(graph, self.target.kind)

    def lower(self, graph: Graph, trace: Trace) -> Lowered:
        if self.compilers is not None:
            # Starting the processes takes about as long as lowering, so both happen at once.
            self.compilers.start()
        return lower(graph, LoweringContext(self.planner, arena_planner(), self.precision), trace)

    def begin(self, lowered: Lowered, names: Sequence[str]) -> None:
        if self.compilers is not None:
            job = self._job(lowered.table.bounds, names, lowered.alignments)
            begin_blocks(job, self.compilers)

    def fitted(self, lowered: Lowered, names: Sequence[str], trace: Trace) -> Lowered:
        """Returns `lowered`, with other schedules for kernels whose resources were underestimated.

        These kernels need more registers or shared memory than estimated.
        """

        self._report(trace)

        def compiled(bounds: Mapping[int, Bound]) -> dict[int, list[CompiledKernel]]:
            numbers = tuple(bounds)
            code = self._compiled(
                tuple(bounds.values()),
                [names[n] for n in numbers],
                [lowered.alignments[n] for n in numbers],
            )
            return {n: [row[place] for row in code.kernels] for place, n in enumerate(numbers)}

        changes = better_schedules(lowered.table.bounds, self.planner, compiled)
        if changes:
            self.planner.exchange(changes)
            lowered = self.lowered_again(lowered, trace)
        self.planner.pinned.update(lowered.table.bounds)
        return lowered

    def share_code(self, other: Backend | None = None) -> None:
        if isinstance(other, GpuBackend):
            self.compilers = other.compilers

    def lowered_again(self, lowered: Lowered, trace: Trace) -> Lowered:
        plan = LoweringContext(
            self.planner, arena_planner(), self.precision, packed=lowered.placed.surface
        )
        return lower(lowered.placed, plan, trace)

    def generate(
        self, lowered: Lowered, names: Sequence[str], trace: Trace | None = None
    ) -> Generated:
        self._report(trace)
        code = self._compiled(lowered.table.bounds, names, lowered.alignments, portable=True)
        facts = self._facts(lowered, names, code.kernels)
        return Generated((), 0, code.listings, facts, code.images)

    def _report(self, trace: Trace | None) -> None:
        """Gives `trace` the number of kernels that are compiled."""
        if trace is not None and self.compilers is not None:
            trace.counting(self.compilers.count)

    def _compiled(
        self,
        bounds: Sequence[Bound],
        names: Sequence[str],
        alignments: Sequence[Sequence[int]],
        portable: bool = False,
    ) -> GpuCode:
        job, host = self._job(bounds, names, alignments), self.options.allow_host
        with ExitStack() as stack:
            compilers = self.compilers or stack.enter_context(self.tools(self.options))
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
        self, lowered: Lowered, names: Sequence[str], compiled: Sequence[Sequence[CompiledKernel]]
    ) -> dict[str, Any]:
        first, precision = self.target.gpus[0], self.options.precision
        rows = list(zip_equal(names, lowered.table.locs, lowered.table.bounds))
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
                    "blocks": " ".join(f"{name} {n}" for name, n in block_schedule(bound).blocks),
                    "parallel": " ".join(block_schedule(bound).parallel),
                }
                for (name, loc, bound), kernel in zip_equal(rows, compiled[0])
            ],
            "builds": [
                {
                    "arch": gpu.arch,
                    "kernels": [
                        {
                            "symbol": name,
                            "warps": kernel.warps,
                            "stages": kernel.stages,
                            "language": "gluon" if kernel.stays else "triton",
                            "registers": kernel.registers,
                            "private": kernel.private,
                            "shared": kernel.shared,
                            **_price(gpu, bound, kernel, precision),
                        }
                        for (name, _, bound), kernel in zip_equal(rows, kernels)
                    ],
                }
                for gpu, kernels in zip_equal(self.target.gpus, compiled)
            ],
        }


def stored_floats(options: Options) -> DType:
    """Returns the type to which the precision narrows f32 values in memory; for tf32 it is f32."""
    return DTYPES.get(options.precision, F32)


def graph_settings(
    gpus: Sequence[GpuProfile], options: Options, ledger: Ledger = SILENT
) -> GraphSettings:
    """Returns the settings of graph passes that suit all of `gpus`.

    Integer matmuls round once, while matmuls of dequantised values round at every step. So strict
    numerics excludes integer matmuls. Derivations do not use bilinear forms of convolutions,
    because these were measured on CPUs only.
    """
    planner, strict = _planner(gpus, options, ledger), options.numerics == "strict"
    derivations = None
    if options.level >= 2 and not strict and options.derive:
        prices = Prices(_planner(gpus, options, ledger))
        derivations = Derivations(prices, options.weight_growth, bilinear=False)
    zeros = partial(cheapest, planner=planner, margin=MARGINS["derivation"])
    return GraphSettings(
        small_top_k=True,
        cheapest=partial(cheapest, planner=planner),
        parts=partial(cheapest, planner=planner, apart=True),
        int8_matmuls=not strict,
        tile_of=GroupedGemmPrices(planner, _ROW_TILES).tile_of,
        merges=MergePrices(planner) if options.derive else None,
        zeros=zeros if derivations else None,
        derivations=derivations,
    )


def _planner(gpus: Sequence[GpuProfile], options: Options, ledger: Ledger) -> BlockChooser:
    profile = block_profile(gpus, options.precision)
    return BlockChooser(profile, stored_floats(options), ledger=ledger)


def _home(target: Target) -> tuple[str, int]:
    """Returns the name of the lock's section for the GPUs of `target`.

    The number of cores is that of the multiprocessors of the smallest GPU.
    """
    return target.text, min(gpu.multiprocessors for gpu in target.gpus)


# GPUs share schedules if the numbers of multiprocessors of the largest and the smallest GPU have a
# ratio below the first limit, and their shared memories a ratio below the second.
_SIMILAR_COUNT, _SIMILAR_SHARED = 2.2, 1.5


def similar_parts(target: Target) -> tuple[Target, ...]:
    """Splits `target` into parts with similar GPUs.

    The GPUs of a part have about equal numbers of multiprocessors of one kind, and about equally
    much shared memory. One schedule has to fit the smallest GPU of a part and to occupy the
    largest. Each part costs a lowering, which takes a tenth of the time of compiling its kernels.
    """
    parts: list[list[GpuProfile]] = []
    for gpu in target.gpus:
        for part in parts:
            if _are_similar([*part, gpu]):
                part.append(gpu)
                break
        else:
            parts.append([gpu])
    return tuple(_part(target, gpus) for gpus in parts)


def _part(target: Target, gpus: Sequence[GpuProfile]) -> Target:
    return replace(target, archs=tuple(gpu.arch for gpu in gpus), gpus=tuple(gpus))


def _are_similar(gpus: Sequence[GpuProfile]) -> bool:
    multiprocessors = [gpu.multiprocessors for gpu in gpus]
    shared = [gpu.shared for gpu in gpus]
    return (
        len({(gpu.registers, gpu.warp) for gpu in gpus}) == 1
        and max(multiprocessors) < min(multiprocessors) * _SIMILAR_COUNT
        and max(shared) < min(shared) * _SIMILAR_SHARED
    )


def block_profile(gpus: Sequence[GpuProfile], precision: str) -> BlockProfile:
    """Returns the resources for which to schedule if all of `gpus` share the schedules.

    They are the rates of the fastest GPU, the multiprocessors of the largest, and the registers and
    shared memory of the smallest. f32 matmuls use matrix units if `precision` allows it.
    """
    fastest = max(gpus, key=lambda g: g.bandwidth)
    rounded = {"f32": fastest.peak("tf32")} if precision == "tf32" else {}
    peaks = rounded | {name: fastest.peak(name) for name in ("bf16", "f16", "i8")}
    # Without matrix units for 8-bit floats, kernels multiply 8-bit floats as f16.
    peaks[FLOAT8_NAME] = fastest.peak(FLOAT8_NAME) or fastest.peak("f16")
    # Hopper's matrix units read 32-bit operands, too, only along the sum.
    deep = ("f32",) if rounded and fastest.matrix_warps > 1 else ()
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
        tuple((name, peak) for name, peak in peaks.items() if peak is not None),
        fastest.matrix_warps,
        terms=(*TYPICAL_DEVICE.terms, *deep),
    )


def _peak(gpu: GpuProfile, precision: str) -> float:
    """Returns the operations per second in `precision`, or in f32 if the GPU has no units for
    it."""
    peak = gpu.peak(precision) or gpu.peak("f32")
    assert peak is not None
    return peak


def _price(gpu: GpuProfile, bound: Bound, kernel: CompiledKernel, precision: str) -> dict[str, Any]:
    """Returns the predicted seconds of a launch, and the resource that limits it.

    The price uses the registers and shared memory that the compiled kernel actually needs.
    """
    schedule = replace(block_schedule(bound), stages=kernel.stages)
    usage = Usage(kernel.registers, kernel.private, kernel.shared)
    price = BlockPricer(bound.group, block_profile((gpu,), precision)).price(schedule, usage)
    return {"seconds": float(f"{price.seconds:.4g}"), "limit": price.limit}
