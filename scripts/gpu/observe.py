"""Observes the kernels of compiles for GPUs and judges their machine code; needs tcc."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tcc.backends.gpu import backend as gpu_code
from tcc.backends.gpu.code import Job
from tcc.backends.gpu.source import CompiledKernel
from tcc.ir.tile import TileKernel

from tests.lib.oracle.gpu.code_rules import CheckedKernel, breaches
from tests.lib.oracle.gpu.machine_code import machine_codes


@dataclass(frozen=True)
class Observation:
    """A compiled kernel for one architecture.

    `source` names the nodes of the model that it computes, `alignments` has the alignments of its
    buffers in bytes, and `dot` is the precision of its matmuls.
    """

    source: str
    kernel: TileKernel
    compiled: CompiledKernel
    alignments: tuple[int, ...]
    dot: str


def with_machine_code(kernels: Sequence[Observation]) -> list[CheckedKernel]:
    """Returns the kernels with facts from their disassembled machine code."""
    codes = machine_codes([k.compiled for k in kernels])
    return [
        CheckedKernel(k.kernel, k.compiled, code, k.alignments, k.dot)
        for k, code in zip(kernels, codes, strict=True)
    ]


@contextmanager
def observations() -> Iterator[list[Observation]]:
    """Yields a list to which compiles in this context add the kernels of their artifacts.

    A kernel is added once for each architecture.
    """
    kernels: list[Observation] = []
    generate, compile_blocks = gpu_code.GpuBackend.generate, gpu_code.compile_blocks
    sources: list[str] = []

    def watched_generate(self: Any, lowered: Any, *arguments: Any) -> Any:
        sources[:] = lowered.table.locs
        try:
            return generate(self, lowered, *arguments)
        finally:
            sources.clear()

    def watched_blocks(job: Job, compilers: Any, **options: Any) -> Any:
        code = compile_blocks(job, compilers, **options)
        dot = "ieee" if job.precision == "f32" else job.precision
        # Kernels without sources were compiled only for comparison and go into no artifact.
        for images in code.kernels if sources else ():
            rows = zip(sources, job.kernels, images, job.alignments, strict=True)
            kernels.extend(Observation(s, k, m, tuple(a), dot) for s, k, m, a in rows)
        return code

    gpu_code.GpuBackend.generate, gpu_code.compile_blocks = watched_generate, watched_blocks
    try:
        yield kernels
    finally:
        gpu_code.GpuBackend.generate, gpu_code.compile_blocks = generate, compile_blocks


@dataclass(frozen=True)
class Exemption:
    """A rule of `code_rules` that a kernel breaks for now, and the reason.

    `source` is a part of `Observation.source`. The exemption holds for compiles of `model` with
    `precision`, for the architectures `archs`.
    """

    model: str
    precision: str
    archs: tuple[str, ...]
    source: str
    rule: str
    why: str


def judge(
    model: str, precision: str, kernels: Sequence[CheckedKernel], sources: Sequence[str],
    exemptions: Sequence[Exemption],
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Returns (sentences about breaches of rules without an exemption, unnecessary exemptions).

    An exemption is unnecessary if all its kernels obey the rule. `sources` has the source of each
    kernel.
    """
    archs = {c.made.arch for c in kernels}
    model_exemptions = [k for k in exemptions if (k.model, k.precision) == (model, precision)]
    waiting = [(k, a) for k in model_exemptions for a in k.archs if a in archs]
    stale, violations = dict.fromkeys(waiting), []
    for checked, source in zip(kernels, sources, strict=True):
        for breach in breaches(checked):
            arch = checked.made.arch
            excuses = [
                (k, a) for k, a in waiting
                if a == arch and k.rule == breach.rule and k.source in source
            ]  # fmt: skip
            for excuse in excuses:
                stale.pop(excuse, None)
            if not excuses:
                location = f"{model} {precision} {arch} {checked.made.symbol} ({source.strip()})"
                violations.append(f"{location}: {breach.rule}: {breach.found}")
    return violations, [f"{model} {precision} {a} {k.source}: {k.rule}" for k, a in stale]
