"""`scripts/open_models`: the sizes of its models, its verdicts, and its exit code."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from open_cases import OpenRow

GOOD = OpenRow(
    "unet", "96x416", open=(1.1e-3,) * 3, fixed=(1e-3,) * 3, ort=(2e-3,) * 3, difference=1e-6
)
SLOW = OpenRow(
    "unet", "96x416", open=(1.3e-3,) * 3, fixed=(1e-3,) * 3, ort=(2e-3,) * 3, difference=1e-6
)
LATE = OpenRow(
    "unet", "96x416", open=(3e-3,) * 3, fixed=(3e-3,) * 3, ort=(2e-3,) * 3, difference=1e-6
)
WRONG = OpenRow(
    "unet", "96x416", open=(1e-3,) * 3, fixed=(1e-3,) * 3, ort=(2e-3,) * 3, difference=2e-4
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setattr("environment.enter", lambda *extras: None)
    monkeypatch.syspath_prepend(str(SCRIPTS.parent))
    loader = SourceFileLoader("open_models", str(SCRIPTS / "open_models"))
    spec = importlib.util.spec_from_loader("open_models", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "open_models", module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "SCRATCH", tmp_path / "scratch")
    monkeypatch.setattr(module, "TABLE", tmp_path / "open_models.txt")
    return module


def _measured(*rows: OpenRow) -> Callable[..., Iterator[OpenRow]]:
    return lambda *_: iter(rows)


def test_sizes_stand_on_the_open_axes(script: ModuleType) -> None:
    models = {model.name: model for model in script.MODELS}
    assert [entry.shape for entry in models["resnet50"].entries("96x416")] == [(1, 3, 96, 416)]
    feed = models["bert_base"].feed("7")
    assert {name: array.shape for name, array in feed.items()} == {
        name: (1, 7) for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    selection = [(m.name, s) for m, s in script.selected(["unet", "bert_base"], ["32x64", "9"])]
    assert selection == [("unet", ["32x64"]), ("bert_base", ["9"])]
    assert all(model.takes(size) for model in script.MODELS for size in model.sizes)


def test_a_row_misses_goals_that_it_does_not_reach(script: ModuleType) -> None:
    assert [len(script.misses(row)) for row in (GOOD, SLOW, LATE, WRONG)] == [0, 1, 1, 1]


@pytest.mark.parametrize(("rows", "code"), [((GOOD,), 0), ((GOOD, SLOW), 1), ((WRONG,), 1)])
def test_the_exit_code_and_the_table_tell_of_misses(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, rows: tuple[OpenRow, ...], code: int
) -> None:
    monkeypatch.setattr(script, "measure", _measured(*rows))
    assert script.main(["--models", "unet", "--sizes", "96x416", "--rounds", "3"]) == code
    assert not script.TABLE.exists()
    lines = (script.SCRATCH / script.TABLE.name).read_text().splitlines()
    assert f"missed: {code} of {len(rows)}" in lines
