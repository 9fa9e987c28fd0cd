"""The communication library's programs are compiled once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tcc.backends.artifact.comm_library import comm_sources

from tests.once import made_once

sys.path.insert(0, str(Path(__file__).parent))

from library import build_program, build_whole


@pytest.fixture(scope="session")
def programs(comm_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of this folder that are linked with the library."""

    def build(folder: Path) -> None:
        for name in ("matrix", "faults", "chaos", "joined", "device_faults"):
            build_program(folder, name, comm_library)
        # it looks inside
        inside = [path for path in comm_sources() if path.stem in ("environment", "status")]
        build_whole(folder, "settings", inside, "-O1")

    return made_once(tmp_path_factory, "comm", build)
