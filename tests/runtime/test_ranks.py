"""An artifact loads the plan for the number of ranks and the memory, and refuses wrong comms, under
sanitizers."""

from __future__ import annotations

import struct
from pathlib import Path

import programs
import pytest
from sanitized import Sanitized, run_sanitized
from tcc.backends.artifact.encode_program import encode_program
from tcc.ir.program import Program

HERE = Path(__file__).parent

# One worker compiles the runtime with sanitizers, even if tests are spread over several workers.
pytestmark = pytest.mark.xdist_group("sanitized-runtime")


def write(folder: Path, files: dict[str, Program]) -> list[str]:
    """Writes programs as the drivers read them; returns the files' paths."""
    paths = []
    for name, program in files.items():
        record = encode_program(program)
        paths.append(folder / name)
        paths[-1].write_bytes(struct.pack("<q", len(record)) + record)
    return [str(path) for path in paths]


def test_plans_are_chosen_by_the_number_of_ranks(sanitized: Sanitized, tmp_path: Path) -> None:
    program = sanitized.program("choose_ranks", HERE / "ranks.c")
    files = {
        "plain": programs.doubling(),
        "small": programs.updating(8),
        "large": programs.updating(16),
        "other": programs.updating(8, other=5),
    }
    assert run_sanitized(program, *write(tmp_path, files)) == "ok\n"


@pytest.mark.parametrize("checked", ["sanitized", "racing"])
def test_the_first_plan_that_fits_all_ranks_is_loaded(
    checked: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    runtime: Sanitized = request.getfixturevalue(checked)
    program = runtime.program("choose_plans", HERE / "plans.c")
    files = {"small": programs.holding(4096), "large": programs.holding(arena=2 << 20)}
    assert run_sanitized(program, *write(tmp_path, files)) == "ok\n"


@pytest.mark.parametrize(
    "held",
    [{}, {"arena": 1 << 20}, {"state": 640}, {"symmetric": 5000}, {"scratch": 333},
     {"arena": 1 << 20, "state": 640, "symmetric": 5000, "scratch": 333}],
)  # fmt: skip
def test_a_rank_needs_its_weights_and_the_memory_of_a_run(
    sanitized: Sanitized, tmp_path: Path, held: dict[str, int]
) -> None:
    program = sanitized.program("choose_plans", HERE / "plans.c")
    (path,) = write(tmp_path, {"held": programs.holding(**held)})
    assert int(run_sanitized(program, "bytes", path)) == 1000 + sum(held.values())
