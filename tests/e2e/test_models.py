"""Whole models, compiled, agree with ONNX Runtime."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import tcc
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, RuntimeException
from tcc.errors import TccError

from tests.lib.agreement import assert_agree, expected, session
from tests.part import takes_all

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.build import DEFAULT_OUT, build
from models.inputs import make_inputs
from models.manifest import model_spec

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT.parent / "shared" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
JOBS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
# scripts/demo compares MobileNetV2, whose export takes longer than all others together.
BUILT = ["fsrcnn", "infogan", "lstm", *(["mobilenet_v2"] if takes_all() else [])]


def sample(name: str) -> Path:
    path = SAMPLES / name
    if not path.is_file():
        pytest.skip(f"{name} is not beside the repository")
    return path


@pytest.mark.skipif(find_spec("torch") is None, reason="the extra `models` is not installed")
@pytest.mark.xdist_group("torch")  # one worker loads the modules that export models
@pytest.mark.parametrize("name", BUILT)
def test_built_models(name: str) -> None:
    path = build(name, DEFAULT_OUT)
    module = tcc.compile(path, jobs=JOBS)
    runner = session(path)
    for seed in (0, 1):
        feeds = make_inputs(name, seed)
        assert_agree(module.run(feeds), expected(runner, feeds), model_spec(name).tolerance)


def test_magika() -> None:
    path = sample("magika_v3_3.onnx")
    module = tcc.compile(path, jobs=JOBS)
    runner = session(path)
    rng = np.random.default_rng(0)
    for batch in (1, 3, 8):
        feeds = {"bytes": rng.integers(0, 257, (batch, 2048)).astype(np.int32)}
        assert_agree(module.run(feeds), expected(runner, feeds))


def test_yolox(yolox: Path) -> None:
    module = tcc.load(yolox)
    runner = session(sample("yolox_nano.onnx"))
    (port,) = module.inputs
    image = np.random.default_rng(0).uniform(0, 255, (1, 3, 416, 416)).astype(np.float32)
    assert_agree(module.run({port.name: image}), expected(runner, {port.name: image}))


def test_silero(silero: Path) -> None:
    module = tcc.load(silero)
    runner = session(sample("silero_vad.onnx"))
    rng = np.random.default_rng(0)

    def feeds(batch: int, length: int, rate: int) -> dict[str, np.ndarray]:
        sound = 0.1 * rng.standard_normal((batch, length))
        state = 0.1 * rng.standard_normal((2, batch, 128))
        floats = {"input": sound, "state": state}
        return {k: v.astype(np.float32) for k, v in floats.items()} | {"sr": np.array(rate)}

    for batch in (1, 3):
        for length in (300, 512, 576, 700):
            for rate in (16000, 8000):
                inputs = feeds(batch, length, rate)
                try:
                    reference = expected(runner, inputs)
                except (InvalidArgument, RuntimeException):
                    assert rate == 8000, "16 kHz takes all of these lengths"
                    with pytest.raises(TccError):
                        module.run(inputs)
                    continue
                assert_agree(module.run(inputs), reference)
    inputs = feeds(1, 1024, 16000)
    with pytest.raises((InvalidArgument, RuntimeException)):
        expected(runner, inputs)
    with pytest.raises(TccError, match="must be 1, because the other branch"):
        module.run(inputs)


@pytest.mark.parametrize("name", ["shufflenet"])  # scripts/conformance runs all models
def test_light_models_of_the_onnx_package(name: str) -> None:
    path = LIGHT / f"light_{name}.onnx"
    module = tcc.compile(path, jobs=JOBS)
    runner = session(path)
    rng = np.random.default_rng(0)
    feeds = {
        port.name: rng.random([n or 1 for n in port.shape]).astype(np.float32)
        for port in module.inputs
    }
    assert_agree(module.run(feeds), expected(runner, feeds))
