"""A path is a language model by its suffix, by its first bytes, or because it is a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tcc import frontends
from tcc.cli.compile import _name
from tcc.errors import UserError
from tcc.frontends.weights.checkpoint import Checkpoint

from .gguf_files import written


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[Checkpoint]:
    """Returns a list that collects imported checkpoints; the import itself returns no graph."""
    checkpoints: list[Checkpoint] = []

    def import_checkpoint(checkpoint: Checkpoint, *_arguments: Any) -> None:
        checkpoints.append(checkpoint)

    monkeypatch.setattr(frontends, "import_checkpoint", import_checkpoint)
    return checkpoints


@pytest.mark.parametrize("name", ["m.gguf", "blob"])
def test_a_gguf_file_is_known_by_its_name_or_its_bytes(
    name: str, tmp_path: Path, imported: list[Checkpoint]
) -> None:
    facts = {"tokenizer.chat_template": "{{ x }}"}
    path = written(tmp_path / name, {"a": (np.ones(1, "f4"), "F32")}, facts)
    frontends.load_called(str(path))
    assert [(c.form, c.where, {*c.weights}) for c in imported] == [("gguf", str(path), {"a"})]
    assert frontends.assets_of(path)["chat_template.jinja"] == b"{{ x }}"


def test_a_folder_is_a_model_and_its_weights_alone_are_none(
    tmp_path: Path, imported: list[Checkpoint]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    save_file({"a": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    frontends.load_called(tmp_path)
    assert [(c.form, c.where) for c in imported] == [("folder", str(tmp_path))]
    assert json.loads(frontends.assets_of(tmp_path)["generation.json"])["eos"] == [5]
    with pytest.raises(UserError) as error:
        frontends.load_called(tmp_path / "model.safetensors")
    assert error.value.hint == f"name the folder: {tmp_path}"


def test_models_without_weight_folders_have_no_assets(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x07")
    assert frontends.assets_of(path) == {}
    assert frontends.assets_of(object()) == {}


def test_an_artifact_has_the_name_of_the_folder_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model-1.7B"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert [_name(Path(text)) for text in (".", str(folder), "a.Q4_1.gguf", "b.onnx")] == [
        "model-1.7B", "model-1.7B", "a.Q4_1", "b",
    ]  # fmt: skip
