"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from tcc import cli
from tcc.backends.artifact.comm_library import LIBRARY, build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain
from tcc.backends.idle_pool import RESTING
from tcc.cli import progress

from tests import fast
from tests.draws import pytest_fixture_setup, pytest_runtest_call  # noqa: F401 (hooks)
from tests.once import made_once
from tests.part import pytest_addoption, set_extent  # noqa: F401 (a hook)

# Tests run one to a core: a product whose threads wait for one another takes three times as long.
# NumPy and torch read these when they are imported; workers of xdist inherit them.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


# From one compile to the next lie minutes of other tests, and a process takes a second to start.
RESTING._seconds = 600.0
# On a busy machine a compile takes longer than ten seconds; its lines of progress are no notes.
progress._PERIODS = 0.2, 600.0

# A test of hypothesis draws the same examples in each run.
hypothesis.settings.register_profile("seeded", derandomize=True)
hypothesis.settings.load_profile("seeded")
# It also draws constants of all modules that happen to be imported: then examples depend on what
# runs before, and each worker reads the sources of all tests again.
providers._get_local_constants = lambda: providers._local_constants

gc.disable()  # what is imported and collected lives to the end


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(fast, "fast")
    set_extent(config)


def pytest_collection_finish() -> None:
    """Collections of garbage need not walk over the tests, all 20,000, and are as rare as those of
    the command."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(100_000)


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_walk() -> Iterator[None]:
    """What a file leaves in memory, imports and caches, lives to the end as well."""
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file that share a fixture run in one worker, which makes it once.

    Fast tests of one file run in one worker too, because they share what the code keeps in caches.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None and (_shares(item) or fast.is_fast(item)):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))


def _shares(item: pytest.Item) -> bool:
    """Whether it uses a fixture that lives as long as its file, besides the one above."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(
        fixture.scope == "module" and name != "_few_objects_to_walk"
        for name, fixtures in known.items()
        for fixture in fixtures
    )


@pytest.fixture(scope="session")
def comm_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libtcc_comm.so."""
    folder = made_once(
        tmp_path_factory,
        "comm_library",
        lambda folder: build_comm_library(find_toolchain(), folder),
    )
    return folder / LIBRARY


def artifact_of(model: str, factory: pytest.TempPathFactory, *options: str | Path) -> Path:
    """Returns the artifact of a sample model, as `tcc compile` writes it with these options."""
    path = fast.MODELS[1] / model
    if not path.is_file():
        pytest.skip(f"{model} of the sample models is absent")

    def compiled(folder: Path) -> None:
        words = ["compile", path, "-o", folder / "model.so", "--jobs", "1", *options]
        assert cli.execute([str(word) for word in words]) == 0

    return made_once(factory, path.stem, compiled) / "model.so"


@pytest.fixture(scope="session")
def silero(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of the sample model of speech."""
    return artifact_of("silero_vad.onnx", tmp_path_factory)


@pytest.fixture(scope="session")
def yolox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of the sample model of objects in photos, with the settings of its example."""
    settings = fast.ROOT / "models" / "examples" / "yolox.toml"
    return artifact_of("yolox_nano.onnx", tmp_path_factory, "--preprocess", settings)


@pytest.fixture
def own_tempdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files in this process: errors leave there what they point to."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path
