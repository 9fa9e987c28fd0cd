"""Looks at the kernels of compiles for GPUs: what they are, what became of them.  Needs tcc."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tcc.backends.gpu import backend as gpu_code
from tcc.backends.gpu.code import Job
from tcc.backends.gpu.source import CompiledKernel
from tcc.ir.tile import TileKernel

from tests.oracle.gpu.code_rules import CheckedKernel, breaches
from tests.oracle.gpu.machine_code import machine_codes


@dataclass(frozen=True)
class Observed:
    """A kernel for one architecture; `source` names the model's nodes that it computes."""

    source: str
    kernel: TileKernel
    made: CompiledKernel
    alignments: tuple[int, ...]
    dot: str


def compiled(found: Sequence[Observed]) -> list[CheckedKernel]:
    """Kernels with the facts of their machine code, which take a moment to read."""
    codes = machine_codes([each.made for each in found])
    return [
        CheckedKernel(each.kernel, each.made, code, each.alignments, each.dot)
        for each, code in zip(found, codes, strict=True)
    ]


@contextmanager
def observed() -> Iterator[list[Observed]]:
    """All kernels that get into the artifacts of the compiles inside, for every architecture."""
    found: list[Observed] = []
    generate, compile_blocks = gpu_code.GpuBackend.generate, gpu_code.compile_blocks
    sources: list[str] = []

    def watched_generate(self: Any, lowered: Any, names: Sequence[str]) -> Any:
        sources[:] = lowered.table.locs
        try:
            return generate(self, lowered, names)
        finally:
            sources.clear()

    def watched_blocks(job: Job, compilers: Any, **how: Any) -> Any:
        code = compile_blocks(job, compilers, **how)
        dot = "ieee" if job.precision == "f32" else job.precision
        for made in code.kernels if sources else ():  # others were compiled to be compared
            rows = zip(sources, job.kernels, made, job.alignments, strict=True)
            found.extend(Observed(s, k, m, tuple(a), dot) for s, k, m, a in rows)
        return code

    gpu_code.GpuBackend.generate, gpu_code.compile_blocks = watched_generate, watched_blocks
    try:
        yield found
    finally:
        gpu_code.GpuBackend.generate, gpu_code.compile_blocks = generate, compile_blocks


@dataclass(frozen=True)
class Known:
    """A rule that a kernel is known to break, and why that is so for now.

    Kernels are named by a part of their source; `precision` and `arch` are theirs.
    """

    model: str
    precision: str
    archs: tuple[str, ...]
    source: str
    rule: str
    why: str


def judge(
    model: str, precision: str, kernels: Sequence[CheckedKernel], sources: Sequence[str],
    known: Sequence[Known],
) -> tuple[list[str], list[str]]:  # fmt: skip
    """What breaks the rules unexpectedly, and what is known to break one and keeps it."""
    archs = {c.made.arch for c in kernels}
    mine = [k for k in known if (k.model, k.precision) == (model, precision)]
    waiting = [(k, a) for k in mine for a in k.archs if a in archs]
    kept, broken = dict.fromkeys(waiting), []
    for compiled, source in zip(kernels, sources, strict=True):
        for breach in breaches(compiled):
            arch = compiled.made.arch
            excuses = [
                (k, a) for k, a in waiting
                if a == arch and k.rule == breach.rule and k.source in source
            ]  # fmt: skip
            for excuse in excuses:
                kept.pop(excuse, None)
            if not excuses:
                where = f"{model} {precision} {arch} {compiled.made.symbol} ({source.strip()})"
                broken.append(f"{where}: {breach.rule}: {breach.found}")
    return broken, [f"{model} {precision} {a} {k.source}: {k.rule}" for k, a in kept]
