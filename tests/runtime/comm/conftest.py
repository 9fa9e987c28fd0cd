"""Compiles the programs of the communication library once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from tcc.backends.artifact.comm_library import comm_sources

from tests.once import made_once

sys.path.insert(0, str(Path(__file__).parent))

from library import build_objects, build_program, build_whole

# Programs that are linked with files of the library, because they look at its internals.
INSIDE = {"settings": ("environment", "launchers", "status"), "hosts": ("hosts",)}


@pytest.fixture(scope="session")
def programs(comm_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of this folder's programs that are linked with the library."""

    def build(folder: Path) -> None:
        names = ("matrix", "faults", "crossed", "chaos", "survivors", "joined", "beside")
        for name in (*names, "crowded", "device_faults"):
            build_program(folder, name, comm_library)
        for name, stems in INSIDE.items():
            sources = [path for path in comm_sources() if path.stem in stems]
            build_whole(folder, name, sources, "-O1")

    return made_once(tmp_path_factory, "comm", build)


@pytest.fixture(scope="session")
def objects_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Path]]:
    """Returns a function that compiles the library's objects for some flags, once per run; `only`
    selects files by stem."""

    def objects(*flags: str, only: Collection[str] = ()) -> list[Path]:
        digest = hashlib.sha256("\0".join(flags).encode()).hexdigest()[:16]
        folder = made_once(
            tmp_path_factory, f"comm-{digest}", lambda folder: build_objects(folder, *flags)
        )
        paths = [path for path in sorted(folder.glob("*.o")) if not only or path.stem in only]
        assert len(paths) >= len(only)
        return paths

    return objects
