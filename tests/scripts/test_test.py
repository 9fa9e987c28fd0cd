"""`scripts/test` passes the right arguments to pytest, and prints its help."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    loader = SourceFileLoader("test_script", str(SCRIPTS / "test"))
    spec = spec_from_loader("test_script", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_all_and_fast_tests_are_spread_over_workers(script: ModuleType) -> None:
    spread = ["-n", "2", "--dist", "loadgroup", "--durations", "10"]
    last = ["--max-worker-restart", "0"]
    assert script.with_defaults([]) == [*spread, *last]
    assert script.with_defaults(["--fast"]) == [*spread, "-m", "fast", *last]
    assert script.with_defaults(["--whole"]) == [*spread, "--whole", *last]
    assert script.with_defaults(["tests/ir", "-x"]) == ["tests/ir", "-x", *last]
    assert script.with_defaults(["tests/ir", "--fast"]) == ["tests/ir", "-m", "fast", *last]


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_explains_the_mark_and_runs_nothing(
    script: ModuleType, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([flag]) == 0
    assert "scripts/test --fast" in capsys.readouterr().out
