"""Tests that execute small models from the PTX of their artifacts, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tcc
from tcc.artifact import read_manifest
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.emulator.artifacts import assert_runs, compiled
from tests.lib.emulator.device import Device
from tests.lib.emulator.models import MODELS, Small, integers, normal
from tests.lib.emulator.ptx.engine import PtxEngine
from tests.lib.fake_gpu.fakes import Fakes, in_child
from tests.lib.interpreter.running import NEEDS_TRITON
from tests.part import part

pytestmark = NEEDS_TRITON
# Triton compiles these kernels differently for sm_90: matmuls, and kernels with shared memory.
HOPPER = {
    "attention", "attention of f16", "convolutions of bf16", "dots", "pipelined bf16",
    "pipelined f16", "pipelined tf32", "product of bf16", "product of tf32", "running",
}  # fmt: skip


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Fakes(tmp_path_factory.mktemp("driver")).driver(Platform.CUDA)


@pytest.mark.parametrize("name", part("models in PTX", MODELS, 2))
def test_model_agrees(name: str, driver: Path, tmp_path: Path) -> None:
    """A model agrees on its GPU, there also as a graph, and on a newer GPU that takes the PTX."""
    archs = ("sm_80", "sm_90") if name in HOPPER else ("sm_80",)
    made = compiled(MODELS[name](), f"cuda:{','.join(archs)}", tmp_path / "m.so")

    def run() -> None:
        for seed, arch in enumerate((*archs, "sm_120")):
            engine = PtxEngine(made.kernels)
            device = Device(driver, Platform.CUDA, engine)
            device.configure(arch)
            assert_runs(made, device, (seed, 3) if arch == archs[-1] else (seed,))
            assert engine.forms == {"ptx" if arch == "sm_120" else "cubin"}

    in_child(run)


def test_four_bit_weights_are_summed_in_parts(driver: Path, tmp_path: Path) -> None:
    """Weights that int4 holds exactly agree with ONNX Runtime; two kernels share the sum."""
    levels = integers(50, -7, 8, 16384, 64)
    levels[::32] = -8  # The largest magnitude of each group of 32 makes its scale exact.
    small = Small(
        "(float[2,16384] x) => (float[2,64] y) {y = MatMul(x, w)}",
        {"x": normal(51, 2, 16384)},
        {"w": (levels * 0.125).astype(np.float32)},
    )
    artifact = compiled(small, "cuda:sm_80", tmp_path / "m.so", weights="int4")
    (variant,) = read_manifest(artifact.path)["variants"]
    assert variant["traffic"]["launches"] == 2
    assert variant["traffic"]["weights"] < 16384 * 64

    def run() -> None:
        device = Device(driver, Platform.CUDA, PtxEngine(artifact.kernels))
        device.configure("sm_80")
        assert_runs(artifact, device, (0,))

    in_child(run)


def test_random_numbers(driver: Path, tmp_path: Path) -> None:
    """Random bits equal the evaluator's on two architectures, and runs without a seed differ."""
    small = Small(
        """(float[3,7] x) => (float[3,7] u, float[3,7] n) {
        u = RandomUniformLike(x) n = RandomNormalLike(x) }""",
        {"x": normal(60, 3, 7)},
    )
    artifact = compiled(small, "cuda:sm_80", tmp_path / "m.so")
    graph = load_model(small.model())

    def run() -> None:
        for arch in ("sm_80", "sm_120"):
            device = Device(driver, Platform.CUDA, PtxEngine(artifact.kernels))
            device.configure(arch)
            with device.blamed():
                module = tcc.load(artifact.path)
                for seed in (7, 7, 7, 2**64 - 3):  # The third run is a graph.
                    found = module.run(dict(small.inputs), seed=seed)
                    due = evaluate_graph(graph, dict(small.inputs), seed=seed)
                    np.testing.assert_array_equal(found["u"], due["u"])
                    np.testing.assert_allclose(found["n"], due["n"], rtol=1e-5, atol=1e-5)
                first, second = (module.run(dict(small.inputs))["u"] for _ in range(2))
                assert not np.array_equal(first, second)
                del module  # The next device has other kernels.
            assert device.launches

    in_child(run)
