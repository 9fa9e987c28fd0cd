"""Kept fuzzing inputs pass through the Python fuzz targets, and the oracles of the targets can
fail."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from onnx import ModelProto

from tests.lib.fuzz.hostile_case import plain
from tests.lib.fuzz.kept import kept_inputs
from tests.lib.fuzz.targets import importer, pattern


@pytest.mark.parametrize("name", ["importer", "artifact", "pattern"])
def test_no_kept_input_fails(name: str, tmp_path: Path) -> None:
    target = import_module(f"tests.lib.fuzz.targets.{name}")
    inputs = kept_inputs(name)
    assert len(inputs) > 10
    for data in inputs:
        target.check(data)


def test_mutations_are_models_and_differ() -> None:
    data = plain().SerializeToString()
    models = {importer.mutate(data, seed, lambda octets: octets) for seed in range(60)}
    assert len(models) > 30
    for changed in models:
        ModelProto.FromString(changed)
        importer.check(changed)


def test_texts_that_are_not_utf_8_are_refused() -> None:
    """In turn, each text of a model gets a byte that is not valid UTF-8."""
    data = plain().SerializeToString()
    texts = [b"product", b"sum", b"MatMul", b"Add"]
    for text in texts:
        assert text in data
        importer.check(data.replace(text, b"\xff" + text[1:]))


def test_the_oracle_of_patterns_sees_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern.check(b"a+b\naab")
    monkeypatch.setattr(pattern, "matches", lambda automaton, text: False)
    with pytest.raises(AssertionError, match="Python says True"):
        pattern.check(b"a+b\naab")
