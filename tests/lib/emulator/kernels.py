"""Compiles single kernels to artifacts of one launch, so that a test can choose any schedule.

No code here depends on the vendor.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tcc.backends.gpu.code import GpuCode, Job, compile_blocks
from tcc.backends.gpu.compile import Compilers
from tcc.backends.gpu.source import CompiledKernel
from tcc.ir.expr import extent
from tcc.ir.index import evaluate
from tcc.ir.program import Input, Launch, Program
from tcc.ir.tile import MemorySpace, TileKernel
from tcc.ir.types import I8
from tcc.runtime import abi
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.target import Target

from tests.lib.fake_gpu.fakes import Artifact
from tests.lib.interpreter.running import evaluated, job_of

from .device import Device

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime"))

from tests.lib.fake_gpu.gpu_programs import GpuBuilder, link

Array = np.ndarray[Any, np.dtype[Any]]
_STORED: dict[str, tuple[Any, tuple[int, int]]] = {
    "bf16": (ml_dtypes.bfloat16, (4, 16)),
    "f16": (np.float16, (2, 16)),
    "f32": (np.float32, (2, 32)),
    "i8": (np.int8, (0, 8)),
    "i32": (np.int32, (0, 32)),
    "f8e4m3fn": (ml_dtypes.float8_e4m3fn, (10, 8)),
    "f8e5m2": (ml_dtypes.float8_e5m2, (12, 8)),
}


@dataclass(frozen=True)
class MadeKernel:
    """An artifact that launches one kernel; the kernel's buffers are the artifact's ports."""

    path: Path
    kernel: TileKernel
    compiled: CompiledKernel


@dataclass(frozen=True)
class Wanted:
    """A kernel and its compile options.

    `precision` is the precision of matmuls; `gluon` allows warps with different roles.
    """

    kernel: TileKernel
    precision: str
    warps: int = 8
    stages: int = 3
    gluon: bool = True


def made(wanted: Wanted, target: Target, folder: Path) -> MadeKernel:
    """Compiles the kernel for the target's first GPU."""
    with Compilers(1) as compilers:
        code = _compiled(wanted, target, compilers)
    link(_program(wanted.kernel), code.images, folder / "k.so")
    return MadeKernel(folder / "k.so", wanted.kernel, code.kernels[0][0])


def _compiled(wanted_kernel: Wanted, target: Target, compilers: Compilers) -> GpuCode:
    schedule = BlockSchedule((), (), wanted_kernel.warps, wanted_kernel.stages)
    alignments = [max(16, b.align) for b in wanted_kernel.kernel.buffers]
    kernels, names = [wanted_kernel.kernel], ["k"]
    job = Job(
        kernels,
        names,
        [schedule],
        [alignments],
        target,
        wanted_kernel.precision,
        wanted_kernel.gluon,
    )
    return compile_blocks(job, compilers)


def _program(kernel: TileKernel) -> Program:
    b, places = GpuBuilder(), []
    for buffer in kernel.buffers:
        shape = [int(evaluate(n, {})) for n in buffer.sizes]
        dims, text = [b.const(n) for n in shape], str(shape)
        if buffer.scope is MemorySpace.OUTPUT:
            places.append(b.output(buffer.name, buffer.dtype.name, dims, text))
            b.allocate(places[-1], b.const(prod(shape) * buffer.dtype.bytes))
        else:
            number = b.input(buffer.name, buffer.dtype.name, dims, text)
            places.append(b.buffer(Input(number), buffer.name))
    units = prod(int(evaluate(extent(v), {})) for v in kernel.axes)
    b.body.append(Launch(0, b.const(units), tuple(places), ()))
    return replace(b.program(), kernels=("k",))


def assert_computes(found: MadeKernel, device: Device, tolerance: float, seed: int = 3) -> None:
    """Fails unless the results agree with the tile evaluator's; raises the emulator's errors."""
    job = job_of(found.kernel, seed=seed)
    pairs = zip(job.arrays, found.kernel.buffers, strict=True)
    job = replace(job, arrays=[a - 4 if b.dtype is I8 else a for a, b in pairs])  # both signs
    outputs = [
        np.ascontiguousarray(a.astype(_STORED[b.dtype.name][0]))
        for a, b in zip(job.arrays, found.kernel.buffers, strict=True)
    ]
    ports = [
        abi.make_tensor(a.ctypes.data, _STORED[b.dtype.name][1], a.shape, None)
        for a, b in zip(outputs, found.kernel.buffers, strict=True)
    ]
    are_outputs = [b.scope is MemorySpace.OUTPUT for b in found.kernel.buffers]
    with device.blamed():
        artifact = Artifact(found.path)
        try:
            artifact.run(
                [p for p, out in zip(ports, are_outputs, strict=True) if not out],
                [p for p, out in zip(ports, are_outputs, strict=True) if out],
            )
        finally:
            artifact.close()
    for number, (output, expected) in enumerate(zip(outputs, evaluated(job), strict=True)):
        if are_outputs[number]:
            exact = not found.kernel.buffers[number].dtype.is_float  # may have any value
            assert exact or not np.any(output == 77), f"a part of buffer {number} was not written"
            scale = np.abs(expected).max()
            np.testing.assert_allclose(
                output.astype(np.float64), expected, rtol=0, atol=tolerance * scale
            )
