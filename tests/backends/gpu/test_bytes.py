"""Tests of int8 matmuls in Triton's interpreter, and of their instructions."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.backends.gpu.source import kernel_source
from tcc.debug import Trace
from tcc.ir.tile import MemorySpace, TileKernel
from tcc.ir.types import I8, U8
from tcc.passes.pipeline import lower
from tcc.passes.place import LoweringContext
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.target import GPUS

from tests.lib.interpreter.running import NEEDS_TRITON, Job, compile_kernels, evaluated, interpreted
from tests.lib.oracle.gpu.machine_code import machine_codes
from tests.passes.tile.gpu.bytes import GRAPHS, product

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]
# The matrix instruction of each architecture, and its name in the assembly.
UNITS = {
    "cuda:sm_80": ("IMMA", "mma.sync.aligned.m16n8k32"),
    "cuda:sm_90": ("IGMMA", "wgmma.mma_async.sync.aligned"),
    "rocm:gfx90a": ("v_mfma", "v_mfma_i32_"),
    "rocm:gfx942": ("v_mfma", "v_mfma_i32_"),
    "rocm:gfx1100": ("v_wmma", "v_wmma_i32_16x16x16_iu8"),
}


def job_of(kernel: TileKernel) -> Job:
    """Returns a job with bytes of the whole range."""
    rng = np.random.default_rng(1)
    arrays = []
    for buffer in kernel.buffers:
        (size,) = (n.const for n in buffer.sizes)
        info = np.iinfo(buffer.dtype.carrier)
        full = rng.integers(info.min, info.max, size, buffer.dtype.carrier, endpoint=True)
        arrays.append(np.zeros_like(full) if buffer.scope is MemorySpace.OUTPUT else full)
    return Job(kernel, arrays)


def test_the_interpreter_agrees_exactly() -> None:
    names = ("mixed", "both", "convolved", "one_row")
    made = (
        lower(GRAPHS[n](), LoweringContext(BlockChooser(), arena_planner(), FULL), Trace()).kernels
        for n in names
    )
    jobs = [job_of(kernel) for kernels in made for kernel in kernels]
    for job, got in zip(jobs, interpreted(jobs), strict=True):
        for array, want in zip(got, evaluated(job), strict=True):
            np.testing.assert_array_equal(array, want)


def test_matrix_units_multiply_bytes() -> None:
    made = lower(
        product(U8, I8, "a", (512, 512, 1024)),
        LoweringContext(BlockChooser(), arena_planner(), FULL),
        Trace(),
    )
    (schedule,) = (b.schedule for b in made.table.bounds)
    assert isinstance(schedule, BlockSchedule)
    how = {"warps": schedule.warps, "stages": schedule.stages}
    source = kernel_source(made.kernels[0], "k", dot="ieee", alignments=made.alignments[0], **how)
    (kernels,) = compile_kernels([source], [GPUS[target] for target in UNITS], 1)
    codes = machine_codes(kernels)
    assert [[f for f, _ in code.matrix] for code in codes] == [[f] for f, _ in UNITS.values()]
    assert not any(code.private for code in codes)
    for kernel, (_, name) in zip(kernels, UNITS.values(), strict=True):
        assert name in kernel.assembly, kernel.arch
