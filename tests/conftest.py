"""Settings and fixtures of all tests."""

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

# One test runs per core: a matmul whose threads wait for one another takes three times as long.
# NumPy and torch read these variables at import, and xdist workers inherit them.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


# Workers rest for long, because minutes may pass between two compiles and a new process takes a
# second to start.
RESTING._seconds = 600.0
# On a busy machine a compile takes longer than ten seconds; tests do not expect its progress lines
# in the output.
progress._PERIODS = 0.2, 600.0

# A hypothesis test draws the same examples in each run.
hypothesis.settings.register_profile("seeded", derandomize=True)
hypothesis.settings.load_profile("seeded")
# Hypothesis also draws constants of all imported modules. Then examples would depend on the modules
# that earlier tests imported, and each worker would parse the sources of all tests.
providers._get_local_constants = lambda: providers._local_constants

gc.disable()  # objects created by imports and collection live to the end


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(fast, "fast")
    set_extent(config)


def pytest_collection_finish() -> None:
    """Excludes the 20,000 tests from garbage collection, and sets the rare collections of the
    command."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(100_000)


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_walk() -> Iterator[None]:
    """Excludes the imports and caches that a test file leaves behind from later garbage
    collections."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _variables_kept() -> Iterator[None]:
    """Fails a test that changes a variable of tcc for the tests behind it.

    Libraries set variables of their own when a test first imports them.
    """
    variables = _variables()
    yield
    changed = variables.items() ^ _variables().items()
    for name, _ in changed:
        os.environ.pop(name, None)
    os.environ.update(variables)
    assert not changed, f"the test changed environment variables: {sorted(changed)}"


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TCC_")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts tests of one file that share a fixture in one worker, which creates the fixture once.

    Fast tests of one file run in one worker too, because they share the caches of the code.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None and (_shares(item) or fast.is_fast(item)):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))


def _shares(item: pytest.Item) -> bool:
    """Returns True if the test uses a module-scoped fixture other than `_few_objects_to_walk`."""
    definitions = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(
        fixture.scope == "module" and name != "_few_objects_to_walk"
        for name, fixtures in definitions.items()
        for fixture in fixtures
    )


@pytest.fixture(scope="session")
def comm_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of libtcc_comm.so."""
    folder = made_once(
        tmp_path_factory,
        "comm_library",
        lambda folder: build_comm_library(find_toolchain(), folder),
    )
    return folder / LIBRARY


def artifact_of(model: str, factory: pytest.TempPathFactory, *options: str | Path) -> Path:
    """Returns the artifact that `tcc compile` writes for a sample model with the given options."""
    path = fast.MODELS[1] / model
    if not path.is_file():
        pytest.skip(f"{model} of the sample models is absent")

    def compiled(folder: Path) -> None:
        words = ["compile", path, "-o", folder / "model.so", "--jobs", "1", *options]
        assert cli.execute([str(word) for word in words]) == 0

    return made_once(factory, path.stem, compiled) / "model.so"


@pytest.fixture(scope="session")
def silero(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the artifact of the speech sample model."""
    return artifact_of("silero_vad.onnx", tmp_path_factory)


@pytest.fixture(scope="session")
def yolox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the artifact of the object detection sample model, with the settings of its
    example."""
    settings = fast.ROOT / "models" / "examples" / "yolox.toml"
    return artifact_of("yolox_nano.onnx", tmp_path_factory, "--preprocess", settings)


@pytest.fixture
def own_tempdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Redirects this process's temporary files to a new folder, because errors leave files
    there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path
