"""A graph as code for GPUs: one program, and its kernels for each architecture of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tcc.backends.gpu.code import compile_blocks
from tcc.backends.gpu.source import CompiledKernel
from tcc.errors import UserError
from tcc.generated import Generated
from tcc.ir.graph import Graph
from tcc.ir.types import DTYPES, F32
from tcc.options import Options
from tcc.passes.blocks.plan import BlockPlanner
from tcc.passes.lower_model import Lowered, lower_for_gpu
from tcc.passes.lower_node import check_without_calls
from tcc.passes.plan_kernels import Bound
from tcc.passes.precision import Precision
from tcc.schedule.blocks import BlockProfile, BlockSchedule
from tcc.schedule.work import contraction_flops, group_bytes, group_flops
from tcc.target import GpuProfile, Target


class GpuCode:
    """Lowers and generates one model for the GPUs of `target`."""

    # No algorithm here trades rounding for speed, and no prices are compared.
    limits = None
    priced = 0

    def __init__(self, target: Target, options: Options, constants: int) -> None:
        """Raises UserError for options that the target does not have."""
        if options.machine is not None:
            raise UserError("machine files describe processors, not GPUs", where="--machine")
        self.target, self.options = target, options
        self.planner = BlockPlanner(block_profile(target.gpus), options.numerics != "strict")

    def check(self, graph: Graph) -> None:
        """Raises UserError with every node that only a function of the host computes, unless these
        are allowed."""
        if not self.options.allow_host:
            check_without_calls(graph, self.target.kind)

    def lower(self, graph: Graph) -> Lowered:
        """The program and its kernels."""
        floats = DTYPES.get(self.options.precision, F32)  # tf32 is stored as f32
        stored = Precision(
            floats, self.options.weight_bits, pairs=True, everywhere=floats is not F32
        )
        return lower_for_gpu(graph, self.planner, stored)

    def generate(self, lowered: Lowered, names: Sequence[str]) -> Generated:
        """Images of all kernels under `names`."""
        schedules = [_schedule(bound) for bound in lowered.table.bounds]
        code = compile_blocks(
            lowered.kernels,
            names,
            schedules,
            lowered.alignments,
            self.target,
            precision=self.options.precision,
            allow_host=self.options.allow_host,
            jobs=self.options.jobs,
        )
        facts = self._facts(lowered, names, code.kernels)
        return Generated((), 0, code.listings, facts, code.images)

    def _facts(
        self, lowered: Lowered, names: Sequence[str], made: Sequence[Sequence[CompiledKernel]]
    ) -> dict[str, Any]:
        first = self.target.gpus[0]
        rows = list(zip(names, lowered.table.locs, lowered.table.bounds, strict=True))
        return {
            "machine": {
                "name": first.part,
                "flops_per_second": _peak(first, self.options.precision),
                "bytes_per_second": first.bandwidth,
            },
            "variants": [
                {
                    "arch": gpu.arch,
                    "features": list(self.target.profile.features),
                    "kernels": [
                        {
                            "symbol": name,
                            "source": loc,
                            **_cost(gpu, bound, self.options.precision),
                            **_build(_schedule(bound), kernel),
                        }
                        for (name, loc, bound), kernel in zip(rows, kernels, strict=True)
                    ],
                }
                for gpu, kernels in zip(self.target.gpus, made, strict=True)
            ],
        }


def block_profile(gpus: Sequence[GpuProfile]) -> BlockProfile:
    """What one schedule for all of `gpus` may count on: units for the largest, registers of the
    smallest."""
    return BlockProfile(
        max(g.multiprocessors for g in gpus),
        min(g.registers for g in gpus),
        min(g.warp for g in gpus),
    )


def _schedule(bound: Bound) -> BlockSchedule:
    assert isinstance(bound.schedule, BlockSchedule)
    return bound.schedule


def _peak(gpu: GpuProfile, precision: str) -> float:
    """Operations per second in `precision`, in f32 where it has no units of that type."""
    peak = gpu.peak(precision) or gpu.peak("f32")
    assert peak is not None
    return peak


def _cost(gpu: GpuProfile, bound: Bound, precision: str) -> dict[str, Any]:
    """What one launch does, and the least that it can take; open sizes count as typical ones."""
    flops, bytes_ = group_flops(bound.group), group_bytes(bound.group)
    seconds = max(flops / _peak(gpu, precision), bytes_ / gpu.bandwidth)
    return {
        "flops": flops,
        "contraction_flops": contraction_flops(bound.group),
        "bytes": bytes_,
        "seconds": float(f"{seconds:.4g}"),
    }


def _build(schedule: BlockSchedule, kernel: CompiledKernel) -> dict[str, Any]:
    """How a kernel was compiled, and what it takes of a multiprocessor."""
    return {
        "blocks": " ".join(f"{name} {size}" for name, size in schedule.blocks),
        "parallel": " ".join(schedule.parallel),
        "warps": kernel.warps,
        "stages": kernel.stages,
        "registers": kernel.registers,
        "private": kernel.private,
        "shared": kernel.shared,
    }
