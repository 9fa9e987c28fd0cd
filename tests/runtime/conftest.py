"""Compiles kernels once, and artifacts once per test module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tcc.runtime import Module, load

from tests.once import made_once

sys.path.insert(0, str(Path(__file__).parent))

import programs
from op_library import Ops, build_ops
from programs import Builder
from sanitized import RACES, Sanitized, build_sanitized


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return programs.compile_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Ops:
    return Ops(made_once(tmp_path_factory, "ops", build_ops))


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    return Sanitized(made_once(tmp_path_factory, "sanitized", build_sanitized))


@pytest.fixture(scope="session")
def racing(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    """Returns programs under ThreadSanitizer."""
    folder = made_once(tmp_path_factory, "racing", lambda folder: build_sanitized(folder, RACES))
    return Sanitized(folder, RACES)


@pytest.fixture(scope="module")
def linked(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Module]:
    def make(builder: Builder, **options: Any) -> Module:
        out = tmp_path_factory.mktemp("module") / "m.so"
        programs.link(builder.program(), kernels, out)
        return load(out, **options)

    return make


@pytest.fixture(scope="module")
def mlp_path(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program, weights = programs.mlp()
    out = tmp_path_factory.mktemp("mlp") / "mini.so"
    programs.link(program, kernels, out, weights=[weights])
    return out


@pytest.fixture(scope="module")
def mlp(mlp_path: Path) -> Module:
    return load(mlp_path, poison=True)
