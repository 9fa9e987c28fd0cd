"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest

# Tests run one to a core: a product whose threads wait for one another takes three times as long.
# NumPy and torch read these when they are imported.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


gc.disable()  # what is imported and collected lives to the end


def pytest_collection_finish() -> None:
    """Collections of garbage need not walk over the tests, all 20,000."""
    gc.enable()
    gc.freeze()


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
