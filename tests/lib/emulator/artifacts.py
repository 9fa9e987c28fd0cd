"""Compiles small models for GPUs, runs them and compares them with ONNX Runtime.

No code here depends on the vendor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tcc
from tcc.backends.gpu.source import CompiledKernel
from tcc.driver import compile_model
from tcc.options import read_options
from tcc.variants import Sharders

from tests.lib.agreement import assert_agree, expected, session

from .device import Device
from .models import Small

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

from gpu.observe import observations


@dataclass(frozen=True)
class Made:
    """An artifact and its kernels."""

    path: Path
    small: Small
    kernels: Sequence[CompiledKernel]


def compiled(
    small: Small, target: str, out: Path, *, sharders: Sharders | None = None, **options: Any
) -> Made:
    how = {"target": target, "precision": small.precision, "jobs": 1, "name": "m", **options}
    with observations() as kernels:
        compile_model(small.model(), read_options(how), out, sharders=sharders)
    return Made(out, small, [kernel.compiled for kernel in kernels])


def assert_runs(made: Made, device: Device, seeds: Sequence[int | None]) -> None:
    """Fails unless the artifact agrees with ONNX Runtime with each seed; raises the emulator's
    errors.

    Later runs may come from a captured graph.
    """
    reference = expected(session(made.small.model()), made.small.inputs)
    with device.blamed():
        module = tcc.load(made.path)
        for seed in seeds:
            device.engine.seed = seed
            outputs = module.run(dict(made.small.inputs))
            assert_agree(outputs, reference, made.small.tolerance)
    assert device.launches
