"""Tests of float8 matmuls in Triton's interpreter, and of their instructions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.backends.gpu.compile import Compilers, compile_kernels
from tcc.backends.gpu.source import CompiledKernel, kernel_source
from tcc.debug import Trace
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.narrow import decode
from tcc.ir.types import (
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    FLOAT8,
    DType,
    tensor,
)
from tcc.ops import OPS
from tcc.ops.algebra.levels import LevelsAttrs
from tcc.passes.pipeline import lower
from tcc.passes.place import LoweringContext
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.target import GPUS

from tests.lib.interpreter.running import NEEDS_TRITON, Job, interpreted
from tests.lib.oracle.gpu.machine_code import machine_codes

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]
# The matrix instruction of each architecture and dtype, and its name in the assembly.
UNITS = [
    ("cuda:sm_80", F8E4M3FN, "HMMA", "mma.sync.aligned.m16n8k16"),
    ("cuda:sm_89", F8E4M3FN, "QMMA", "mma.sync.aligned.m16n8k32"),
    ("cuda:sm_90", F8E4M3FN, "QGMMA", "wgmma.mma_async.sync.aligned"),
    ("rocm:gfx942", F8E4M3FNUZ, "v_mfma", "_fp8_fp8"),
    ("rocm:gfx950", F8E5M2, "v_mfma", "f8f6f4|_bf8_bf8"),
]


def product(dtype: DType, rows: int, depth: int, columns: int) -> Graph:
    b = GraphBuilder("product")
    x, w = b.input("x", tensor(dtype, rows, depth)), b.input("w", tensor(dtype, depth, columns))
    return b.finish(b.add(OPS["matmul_levels"], [x, w], LevelsAttrs(), names=["y"]))


def job_of(dtype: DType) -> Job:
    """Returns a job with every finite value, many times."""
    made = lower(
        product(dtype, 40, 96, 48), LoweringContext(BlockChooser(), arena_planner(), FULL), Trace()
    )
    (kernel,) = made.kernels
    codes = np.arange(256, dtype=np.uint8)
    finite = codes[np.isfinite(decode(codes, dtype))]
    rng = np.random.default_rng(7)
    x, w = (decode(rng.choice(finite, n), dtype) for n in (40 * 96, 96 * 48))
    return Job(kernel, [x, w, np.zeros(40 * 48, np.float32)])


def test_the_interpreter_agrees_with_float64() -> None:
    jobs = [job_of(dtype) for dtype in FLOAT8]
    for job, got in zip(jobs, interpreted(jobs), strict=True):
        x, w = job.arrays[0].reshape(40, 96), job.arrays[1].reshape(96, 48)
        a, b = x.astype(np.float64), w.astype(np.float64)
        scale = np.abs(a) @ np.abs(b)
        assert np.all(np.abs(got[2].reshape(40, 48) - a @ b) <= 96 * 2.0**-23 * scale)


def test_matrix_units_multiply_floats_of_a_byte() -> None:
    with Compilers(1) as compilers:
        kernels = [compiled(target, dtype, compilers) for target, dtype, _, _ in UNITS]
    codes = machine_codes(kernels)
    assert [[f for f, _ in code.matrix] for code in codes] == [[f] for _, _, f, _ in UNITS]
    assert not any(code.private for code in codes)
    for kernel, (_, _, _, name) in zip(kernels, UNITS, strict=True):
        assert re.search(name, kernel.assembly), kernel.arch


def compiled(target: str, dtype: DType, compilers: Compilers) -> CompiledKernel:
    made = lower(
        product(dtype, 512, 1024, 1024),
        LoweringContext(BlockChooser(), arena_planner(), FULL),
        Trace(),
    )
    schedule = made.table.bounds[-1].schedule  # An earlier kernel may turn the second operand.
    assert isinstance(schedule, BlockSchedule)
    how = {"warps": schedule.warps, "stages": 1}
    source = kernel_source(made.kernels[-1], "k", dot="ieee", alignments=made.alignments[-1], **how)
    ((kernel,),) = compile_kernels([source], [GPUS[target]], compilers)
    return kernel
