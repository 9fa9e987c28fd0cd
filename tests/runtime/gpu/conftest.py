"""Builds the fake drivers once, and links programs once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.fake_gpu.fakes import Fakes
from tests.lib.fake_gpu.gpu_programs import Artifacts


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    return Fakes(tmp_path_factory.mktemp("fakes"))


@pytest.fixture(scope="session")
def linked(fakes: Fakes, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(tmp_path_factory.mktemp("gpu"), fakes.kernels)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts these tests first: each test forks, which takes seconds once a worker has loaded
    thousands of kernels. The other tests keep their order."""
    here = f"{Path(__file__).parent}{os.sep}"
    items.sort(key=lambda item: not str(item.path).startswith(here))
