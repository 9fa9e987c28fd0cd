"""Fixtures of backend tests: kernels are compiled once a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import programs


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return programs.compile_kernels(tmp_path_factory.mktemp("kernels"))
