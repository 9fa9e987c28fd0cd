"""Tests of matmuls with data-dependent matrices in Triton's interpreter."""

from __future__ import annotations

import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.passes.pipeline import lower
from tcc.passes.place import LoweringContext
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.plan import BlockChooser

from tests.lib.interpreter.running import NEEDS_TRITON, assert_same, interpreted, job_of
from tests.passes.moe.experts import GRAPHS

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]


def test_the_interpreter_agrees() -> None:
    """A random index beyond the last matrix selects the last matrix."""
    made = [
        lower(GRAPHS[n](), LoweringContext(BlockChooser(), arena_planner(), FULL), Trace())
        for n in ("many_rows", "several")
    ]
    jobs = [job_of(kernel) for each in made for kernel in each.kernels]
    assert any((job.arrays[1] >= 8).any() for job in jobs if job.arrays[1].dtype == "int64")
    for job, got in zip(jobs, interpreted(jobs), strict=True):
        assert_same(job, got, rtol=2e-5, atol=2e-5)
