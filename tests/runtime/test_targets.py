"""Kept fuzzing inputs and first inputs pass through the C fuzz targets under sanitizers."""

from __future__ import annotations

from pathlib import Path

import packed_programs
import pytest
from sanitized import Sanitized, run_sanitized

from tests.lib.fuzz.kept import write_inputs

TARGETS = Path(__file__).parents[1] / "lib" / "fuzz" / "targets"
pytestmark = pytest.mark.xdist_group("sanitized-runtime")


@pytest.mark.parametrize("name", ["program", "strings"])
def test_no_kept_input_fails(sanitized: Sanitized, tmp_path: Path, name: str) -> None:
    packed_programs.main(name, tmp_path)
    write_inputs(name, tmp_path)
    target = sanitized.program(name, TARGETS / f"{name}.c", TARGETS / "replay.c")
    inputs = sorted(map(str, tmp_path.iterdir()))
    assert len(inputs) > 100
    assert run_sanitized(target, *inputs) == f"{len(inputs)}\n"
