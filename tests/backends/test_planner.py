"""The planner that the pass is given: its plans, and the errors where it cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tcc.backends.artifact import planner
from tcc.backends.artifact.toolchain import PLANNER, _built, build_planner, find_toolchain
from tcc.errors import InternalError, ToolError, UserError
from tcc.passes.memory.plan_arena import Lifetime
from tcc.runtime.planner import ArenaPlan, Life, Planner

TWO = [Lifetime(0, 1, 100, -1), Lifetime(1, 2, 1, -1)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    planner.arena_planner.cache_clear()
    yield
    planner.arena_planner.cache_clear()


def test_offsets_are_multiples_of_a_cache_line() -> None:
    offsets, end = planner.arena_planner()(TWO)
    assert sorted(offsets)[0] == 0
    assert all(at % 64 == 0 for at in offsets)
    assert end == 192


def test_the_last_position_is_part_of_a_life() -> None:
    assert planner.arena_planner()([TWO[0], Lifetime(2, 2, 1, -1)])[1] == 128


def test_buffers_that_are_too_large_are_the_models_fault() -> None:
    with pytest.raises(UserError, match="the model's memory cannot be planned"):
        planner.arena_planner()([Lifetime(0, 0, 1 << 61, -1)] * 2)


def test_a_wrong_plan_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(self: Planner, lives: list[Life], **_: object) -> ArenaPlan:
        return ArenaPlan((0,) * len(lives), 192, 192, 0)

    monkeypatch.setattr(Planner, "plan", plan)
    with pytest.raises(InternalError, match="the arena's plan is wrong"):
        planner.arena_planner()(TWO)


def test_a_library_that_cannot_be_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / PLANNER).write_text("no library")
    monkeypatch.setattr(planner, "planner_library", lambda: tmp_path / PLANNER)
    with pytest.raises(ToolError, match="the arena planner cannot be loaded") as error:
        planner.arena_planner()
    assert error.value.where == str(tmp_path / PLANNER)


def test_where_none_is_shipped_it_is_compiled_with_the_runtime(tmp_path: Path) -> None:
    (path,) = _built(find_toolchain(), (PLANNER,))
    assert Planner(path).plan([Life(0, 1, 5)]).peak == 5
    build_planner(find_toolchain(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [PLANNER]
    assert Planner(tmp_path / PLANNER).plan([Life(0, 1, 5)]).peak == 5
