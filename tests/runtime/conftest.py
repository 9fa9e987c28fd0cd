"""Kernels are compiled once, artifacts once per test module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import programs
from op_library import Ops
from sanitized import Sanitized


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return programs.compile_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Ops:
    return Ops(tmp_path_factory.mktemp("ops"))


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    return Sanitized(tmp_path_factory.mktemp("sanitized"))
