"""An artifact of a hand-written program, with which command tests need no compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import programs

from tests.cli.named_model import compile_model


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links an artifact with C kernels: y[i] = max(x[i], 0) + i + 1 for x f32[n], n at most 64."""
    folder = tmp_path_factory.mktemp("artifact")
    program, weights = programs.mlp()
    path = folder / "mlp.so"
    programs.link(program, programs.compile_kernels(folder), path, weights=[weights])
    return path


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles tests.cli.named_model; returns the artifact, which lies beside its ONNX file."""
    return compile_model(tmp_path_factory.mktemp("named"))
