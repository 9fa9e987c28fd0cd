"""Tests of the arena planner that the pass uses: its plans, and its errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tcc.backends.artifact import planner, toolchain
from tcc.backends.artifact.cache import make_own
from tcc.backends.artifact.toolchain import (
    PLANNER,
    Toolchain,
    build_planner,
    find_toolchain,
    planner_library,
    runtime_objects,
)
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


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns a cache with the runtime's objects, for a tcc without a shipped planner."""
    built_folder = runtime_objects(find_toolchain())[0].parent
    folder = tmp_path / "cache" / "tcc" / f"runtime-{built_folder.name.removeprefix('runtime-')}"
    make_own(folder.parent)
    shutil.copytree(built_folder, folder, ignore=shutil.ignore_patterns(PLANNER))
    without = shutil.ignore_patterns("lib")
    sources = shutil.copytree(toolchain.runtime_folder(), tmp_path / "runtime", ignore=without)
    monkeypatch.setattr(toolchain, "runtime_folder", lambda: sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_a_missing_planner_is_compiled_once_beside_the_runtime(cached: Path) -> None:
    path = planner_library()
    assert path == cached / PLANNER
    assert Planner(path).plan([Life(0, 1, 5)]).peak == 5
    status = path.stat()
    assert planner_library().stat() == status


def test_a_planner_that_cannot_be_saved_is_compiled_for_this_process(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(compiler: Toolchain, folder: Path) -> Path:
        if folder == cached:
            raise PermissionError
        return build_planner(compiler, folder)

    monkeypatch.setattr(toolchain, "build_planner", elsewhere)
    assert Planner(planner_library()).plan([Life(0, 1, 5)]).peak == 5
    assert not (cached / PLANNER).exists()


def test_a_planner_is_written_whole(tmp_path: Path) -> None:
    build_planner(find_toolchain(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [PLANNER]
    assert Planner(tmp_path / PLANNER).plan([Life(0, 1, 5)]).peak == 5
