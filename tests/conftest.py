"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests run one to a core: a product whose threads wait for one another takes three times as long.
# NumPy and torch read these when they are imported.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


gc.disable()  # what is imported and collected lives to the end


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


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Tests of one file that share a fixture run in one worker, which makes it once.

    pytest-xdist 3.8 names a test's group in `_nodeid`, which pytest 9.2 reads no more.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None and _shares(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    yield
    for item in items:
        grouped = getattr(item, "_nodeid", item.nodeid)
        if item.nodeid != grouped:
            item._id = type(item._id).parse(grouped)


def _shares(item: pytest.Item) -> bool:
    """Whether it uses a fixture that lives as long as its file, besides the one above."""
    known = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(
        fixture.scope == "module" and name != "_few_objects_to_walk"
        for name, fixtures in known.items()
        for fixture in fixtures
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest-xdist 3.8 notes a test's group in a field that pytest 9.2 no longer reads, and the
    tests of a group would be spread over the workers, each with fixtures of its own."""
    for item in items:
        noted = getattr(item, "_nodeid", item.nodeid)
        if noted != item.nodeid:
            item._id = type(item._id).parse(noted)
            assert item.nodeid == noted, "groups of pytest-xdist are lost"


@pytest.fixture
def own_tempdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files in this process: errors leave there what they point to."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path
