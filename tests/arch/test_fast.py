"""Every exception to the mark `fast` exists, and a fast test that opens a model is reported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import fast


def marked(*names: str) -> Any:
    """Returns a stand-in for a test with the given marks."""
    return SimpleNamespace(nodeid="tests/x.py::test_x", get_closest_marker={*names}.__contains__)


@pytest.mark.parametrize("place", fast.SLOW)
def test_a_place_without_the_mark_exists(place: str) -> None:
    path, _, function = place.partition("::")
    assert (fast.TESTS / path).exists()
    if function:
        tree = ast.parse((fast.TESTS / path).read_text(encoding="utf-8"))
        assert function in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_a_reason_for_a_folder_holds_for_its_files() -> None:
    with_reason = ("e2e", "e2e/gpu/test_x.py", "e2e/gpu/test_x.py::test_y", "arch/test_wheel.py::t")
    assert all(map(fast.reason, with_reason))
    assert not any(map(fast.reason, ("ir", "arch/test_fast.py::test_x", "e2exact", "cli/e2e.py")))


def test_this_test_has_the_mark(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("fast")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a file to a folder that stands for the folder of models. The fixture writes it before
    it redirects the folder, because the setup of a fast test is watched too."""
    path = tmp_path / "m.onnx"
    path.write_bytes(b"m")
    monkeypatch.setattr(fast, "MODELS", (tmp_path,))
    return path


@pytest.mark.parametrize(("marks", "fails"), [(["fast"], True), (["gpu"], False)])
def test_a_fast_test_that_reads_a_model_fails(
    marks: Sequence[str], fails: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast.USES, "names", None)  # this test itself is watched too

    def reads() -> None:
        with fast.no_whole_model(marked(*marks)):
            model.read_bytes()
            model.with_name("m.txt").touch()

    if fails:
        with pytest.raises(pytest.fail.Exception, match=r"uses the whole model .*m\.onnx"):
            reads()
    else:
        reads()


def test_a_fast_test_that_builds_a_model_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast.USES, "names", None)
    builds: Any = ModuleType("models.build")
    builds.recipe = lambda spec: spec.name * 2
    monkeypatch.setitem(sys.modules, "models.build", builds)
    with (
        pytest.raises(pytest.fail.Exception, match="uses the whole model lstm"),
        fast.no_whole_model(marked("fast")),
    ):
        assert builds.recipe(SimpleNamespace(name="lstm")) == "lstmlstm"


def test_other_files_and_tests_without_a_model_pass(model: Path) -> None:
    with fast.no_whole_model(marked("fast")):
        Path(__file__).read_bytes()
        model.with_name("m.txt").touch()
