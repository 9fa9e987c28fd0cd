"""An artifact of a hand-made program: commands are tested without the compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import programs

from tests.cli.named_model import compile_model


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y[i] = max(x[i], 0) + i + 1 for x f32[n], n at most 64; kernels from C."""
    folder = tmp_path_factory.mktemp("artifact")
    program, weights = programs.mlp()
    path = folder / "mlp.so"
    programs.link(program, programs.compile_kernels(folder), path, weights=[weights])
    return path


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of tests.cli.named_model, beside its ONNX file."""
    return compile_model(tmp_path_factory.mktemp("named"))
