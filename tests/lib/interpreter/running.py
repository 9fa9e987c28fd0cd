"""Runs tile kernels in Triton's interpreter and compares them with the tile evaluator."""

from __future__ import annotations

import atexit
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import pytest
from tcc.backends.gpu import compile
from tcc.backends.gpu.source import CompiledKernel, KernelSource
from tcc.backends.gpu.triton.print import triton_source
from tcc.ir.expr import extent
from tcc.ir.graph import carrier
from tcc.ir.index import evaluate
from tcc.ir.narrow import decode, encode
from tcc.ir.tile import MemorySpace, TileKernel
from tcc.ir.types import BF16, BOOL, F16, DType
from tcc.target import GpuProfile

from tests.lib.oracle.tile.evaluate import evaluate_kernel

HERE = Path(__file__).parent
NEEDS_TRITON = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None,
        reason="triton and torch are not installed (extras gpu and models)",
    ),
]


def compile_kernels(
    sources: Sequence[KernelSource],
    profiles: Sequence[GpuProfile],
    jobs: int,
    assembled: Sequence[GpuProfile] = (),
) -> tuple[tuple[CompiledKernel, ...], ...]:
    """Compiles kernels in `jobs` separate processes."""
    with compile.Compilers(jobs) as own:
        return compile.compile_kernels(sources, profiles, own, assembled)


@dataclass(frozen=True)
class Job:
    """A launch: the kernel, the arrays of its buffers, the values of its sizes."""

    kernel: TileKernel
    arrays: Sequence[np.ndarray]
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def units(self) -> int:
        return prod(int(evaluate(extent(v), self.sizes)) for v in self.kernel.axes)


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> np.ndarray:
    if dtype is BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return np.asarray(carrier(rng.standard_normal(shape).astype(dtype.carrier), dtype))
    return rng.integers(0, 9, shape).astype(dtype.carrier)


def job_of(kernel: TileKernel, sizes: Mapping[str, int] | None = None, seed: int = 3) -> Job:
    """Returns a job with random operands, and with 77 in each element of the results."""
    rng, values = np.random.default_rng(seed), sizes or {}
    arrays = []
    for buffer in kernel.buffers:
        shape = [int(evaluate(n, values)) for n in buffer.sizes]
        is_output = buffer.scope is MemorySpace.OUTPUT
        full = np.full(shape, 77, buffer.dtype.carrier)
        arrays.append(full if is_output else random_array(rng, shape, buffer.dtype))
    return Job(kernel, arrays, values)


class Interpreter:
    """A process with Triton's interpreter, which ends with its context."""

    def __enter__(self) -> Interpreter:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "interpret.py")],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(60)
        self._errors.close()

    def run(
        self, job: Job, dot: str = "ieee", device: Callable[[str], str] = str
    ) -> list[np.ndarray]:
        """Runs the job and returns all buffers; `device` may change the kernel's text."""
        source = device(triton_source(job.kernel, "kernel", dot=dot))
        dtypes = [b.dtype for b in job.kernel.buffers]
        types = [t.name for t in dtypes]
        sizes = [job.sizes[v.name] for v in job.kernel.sizes]
        arrays = [_stored(a, t) for a, t in zip(job.arrays, dtypes, strict=True)]
        request = source, "kernel", list(zip(types, arrays, strict=True)), sizes, job.units
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        try:
            pickle.dump(request, asked)
            asked.flush()
            outputs = [array for _, array in pickle.load(answers)]
            return [_carried(a, t) for a, t in zip(outputs, dtypes, strict=True)]
        except (EOFError, BrokenPipeError):
            interpreter.cache_clear()
            self._errors.seek(0)
            raise AssertionError(self._errors.read()[-4000:]) from None


@cache
def interpreter() -> Interpreter:
    """Returns one interpreter for all tests of this process, because imports take seconds."""
    running = ExitStack()
    atexit.register(running.close)
    return running.enter_context(Interpreter())


def _stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns an array as a device stores it: narrow floats as bytes."""
    return encode(array, dtype) if dtype.is_narrow and dtype.is_float else array


def _carried(array: np.ndarray, dtype: DType) -> np.ndarray:
    return decode(array, dtype) if dtype.is_narrow and dtype.is_float else array


def interpreted(jobs: Sequence[Job]) -> list[list[np.ndarray]]:
    """Returns all buffers of every job after its launch."""
    return [interpreter().run(job) for job in jobs]


def evaluated(job: Job) -> list[np.ndarray]:
    """Returns the tile evaluator's buffers after the same launch."""
    copies = [a.copy() for a in job.arrays]
    evaluate_kernel(job.kernel, copies, job.sizes)
    return copies


def assert_same(job: Job, got: Sequence[np.ndarray], *, rtol: float, atol: float) -> None:
    """Fails unless every buffer, inputs included, agrees with the tile evaluator's."""
    for buffer, array, expected in zip(job.kernel.buffers, got, evaluated(job), strict=True):
        # The evaluator rounds every partial sum of narrow types, a device only the last.
        scale = 2**12 if buffer.dtype in (BF16, F16) else 1
        np.testing.assert_allclose(
            array, expected, rtol=rtol * scale, atol=atol * scale, err_msg=buffer.name
        )
