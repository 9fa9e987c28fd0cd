"""Each run plans an arena of symbolic sizes, as small as for fixed sizes, and reuses plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import programs
import pytest
from sanitized import FLAGS, run_sanitized
from tcc.ir.program import PlanArena
from tcc.runtime import Module, load
from trials import HERE, RUNTIME, compile_c, includes

LINE = 64


@pytest.fixture(scope="module")
def planned(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Module]:
    def make(steps: int, **options: bool) -> Module:
        out = tmp_path_factory.mktemp("planned") / "m.so"
        programs.link(programs.planned(steps), kernels, out)
        return load(out, threads=1, **options)

    return make


@pytest.mark.parametrize("poison", [False, True])
def test_a_chain_takes_two_buffers_at_every_size(
    planned: Callable[..., Module], poison: bool
) -> None:
    """Sizes return after more other sizes than the runtime keeps plans for."""
    module = planned(9, poison=poison)
    largest = 0
    for n in (*range(40), *range(40), 1000, 3):
        x = np.arange(n, dtype=np.float32) - n // 2
        np.testing.assert_array_equal(module(x), np.maximum(x, 0))
        largest = max(largest, 2 * max(LINE, -(-4 * n // LINE) * LINE))
        assert module.statistics().arena_bytes == largest


def test_lives_that_overlap_are_kept_apart(kernels: bytes, tmp_path: Path) -> None:
    """All buffers are live all the time, so the arena holds each of them."""
    program = programs.planned(9)
    (plan,) = (i for i in program.body if isinstance(i, PlanArena))
    together = replace(plan, lives=(0, 9, -1) * len(plan.offsets))
    body = tuple(together if i is plan else i for i in program.body)
    programs.link(replace(program, body=body), kernels, tmp_path / "m.so")
    module = load(tmp_path / "m.so", threads=1, poison=True)
    module(np.ones(100, np.float32))
    assert module.statistics().arena_bytes == 8 * 7 * LINE


@pytest.mark.parametrize("row", [48, 1 << 10, 64 << 10])
def test_an_arena_that_grows_by_rows_is_seldom_made_anew(tmp_path: Path, row: int) -> None:
    sources = [
        HERE / "growing.c",
        *(RUNTIME / "src" / f"{n}.c" for n in ("arena", "alloc", "status")),
    ]
    compile_c("cc", (*FLAGS, *includes(RUNTIME)), sources, tmp_path / "growing")
    assert int(run_sanitized(tmp_path / "growing", str(row))) <= 5
