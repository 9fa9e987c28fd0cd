"""The communication library's programs are compiled once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain

sys.path.insert(0, str(Path(__file__).parent))

from library import build_objects, build_program


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs matrix, faults and chaos."""
    folder = tmp_path_factory.mktemp("comm")
    objects = build_objects(folder / "objects", "-O1")
    for name in ("matrix", "faults", "chaos", "settings"):
        build_program(folder, name, objects, "-O1")
    return folder


@pytest.fixture(scope="session")
def comm_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_comm_library(find_toolchain(), tmp_path_factory.mktemp("comm_library"))
