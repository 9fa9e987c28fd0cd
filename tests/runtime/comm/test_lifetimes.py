"""Objects of the runtime outlive the objects that they use: no order of calls ends in a signal.

scripts/runtime_bars runs all orders; this test runs a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lifetimes
import pytest
from library import WATCHED
from orders import build_watched_library, link_models, run_orders, watched_python


@pytest.fixture(scope="module")
def folder(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lifetimes")
    link_models(directory, kernels)
    return directory


@pytest.mark.parametrize("name", lifetimes.PUBLIC)
def test_every_public_name_is_used(name: str) -> None:
    assert lifetimes.public_names(lifetimes.PUBLIC[name]) <= lifetimes.USES[name].keys()


def test_no_order_of_close_collect_and_use_ends_in_a_signal(
    folder: Path, comm_library: Path
) -> None:
    assert run_orders(folder, comm_library, "--every", "40").endswith(" 0 of them bad")


def test_no_order_is_seen_by_sanitizers(
    folder: Path, objects_of: Callable[..., list[Path]], tmp_path: Path
) -> None:
    variables = watched_python()
    if isinstance(variables, str):
        pytest.skip(variables)
    library = build_watched_library(tmp_path, objects_of(*WATCHED))
    summary = run_orders(folder, library, "--every", "40", "--seed", "1", variables=variables)
    assert summary.endswith(" 0 of them bad")
