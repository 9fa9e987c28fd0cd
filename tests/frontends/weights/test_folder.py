"""The reader of Hugging Face folders agrees with the library safetensors, and refuses hostile
files."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tcc.errors import UserError
from tcc.frontends.weights import checkpoint as checkpoints
from tcc.frontends.weights.folder import read_folder

from tests.draws import RNG

_CONFIG = {"model_type": "llama", "eos_token_id": 2, "max_position_embeddings": 64}
_INDEX = "model.safetensors.index.json"


def _folder(path: Path, **files: Any) -> Path:
    """Writes a folder with a configuration and other files; values other than bytes become JSON."""
    for name, content in {"config.json": _CONFIG, **files}.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (path / name).write_bytes(data)
    return path


def _sharded(path: Path, **places: str) -> Path:
    """Writes a folder whose tensors lie in the shards that `places` names."""
    _folder(path, **{_INDEX: {"metadata": {}, "weight_map": places}})
    for file in {*places.values()}:
        names = sorted(name for name, place in places.items() if place == file)
        save_file({name: np.full((2,), ord(name), np.float32) for name in names}, path / file)
    return path


def _safetensors(header: Any, content: bytes) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data + content


def test_tensors_are_those_of_the_library(tmp_path: Path) -> None:
    arrays = {
        "b": RNG.standard_normal((3, 5)).astype(np.float32),
        "a": RNG.standard_normal((7,)).astype(np.float16),
        "c": np.array(3.5, np.float32),
        "d": np.zeros((0, 4), np.float32),
        "e": RNG.integers(-9, 9, (2, 2)),
        "f": np.array([True, False]),
    }
    save_file(arrays, _folder(tmp_path) / "model.safetensors")
    checkpoint = read_folder(tmp_path)
    assert (checkpoint.form, checkpoint.where) == ("folder", str(tmp_path))
    assert checkpoint.facts == _CONFIG
    assert {*checkpoint.weights} == {*arrays}
    for name, array in arrays.items():
        weight = checkpoint.weights[name]
        contents = weight.load()
        assert isinstance(contents, np.ndarray)
        assert (weight.shape, contents.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(contents, array)
        assert not contents.flags.owndata
    assert checkpoint.weights["a"].type_name == "F16"


def test_bf16_is_read_as_its_bits(tmp_path: Path) -> None:
    header = {"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    data = _safetensors(header, bytes.fromhex("803f 0040"))
    weight = read_folder(_folder(tmp_path, **{"model.safetensors": data})).weights["w"]
    contents = weight.load()
    assert isinstance(contents, np.ndarray)
    assert contents.tolist() == [0x3F80, 0x4000]
    assert weight.type_name == "BF16"


def test_shards_are_read_together(tmp_path: Path) -> None:
    _sharded(tmp_path, a="1.safetensors", b="2.safetensors", c="1.safetensors")
    weights = read_folder(tmp_path).weights
    contents = {name: weight.load() for name, weight in weights.items()}
    assert {name: np.asarray(a).tolist() for name, a in contents.items()} == {
        name: [ord(name)] * 2 for name in "abc"
    }


def test_assets_are_the_files_and_the_tokens(tmp_path: Path) -> None:
    save_file({"a": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    _folder(
        tmp_path,
        **{
            "tokenizer.json": b'{ "model": 1}\n',
            "tokenizer_config.json": {"chat_template": "{{ ä }}"},
            "generation_config.json": {"bos_token_id": 1, "eos_token_id": [7, 3]},
        },
    )
    assets = read_folder(tmp_path).assets()
    assert assets["tokenizer.json"] == b'{ "model": 1}\n'
    assert assets["chat_template.jinja"] == "{{ ä }}".encode()
    assert json.loads(assets["generation.json"]) == {"bos": 1, "eos": [3, 7], "context": 64}
    (tmp_path / "chat_template.jinja").write_bytes(b"newer")
    (tmp_path / "generation_config.json").unlink()
    assets = read_folder(tmp_path).assets()
    assert assets["chat_template.jinja"] == b"newer"
    assert json.loads(assets["generation.json"]) == {"bos": None, "eos": [2], "context": 64}


@pytest.mark.parametrize(
    ("templates", "template"),
    [
        (
            [{"name": "tools", "template": "t"}, {"name": "default", "template": "{{ d }}"}],
            "{{ d }}",
        ),
        ([{"name": "tools", "template": "t"}], None),
        ([7, {"name": "default", "template": 7}], None),
    ],
)
def test_the_default_of_named_templates_is_taken(
    templates: Any, template: str | None, tmp_path: Path
) -> None:
    save_file({"a": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    _folder(tmp_path, **{"tokenizer_config.json": {"chat_template": templates}})
    template_read = read_folder(tmp_path).assets().get("chat_template.jinja")
    assert template_read == (None if template is None else template.encode())


def test_a_cache_of_links_is_read(tmp_path: Path) -> None:
    """Hugging Face's cache has links to files that are named by their contents."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save_file({"a": np.ones(1, np.float32)}, _folder(blobs) / "model.safetensors")
    for name in ("config.json", "model.safetensors"):
        (blobs / name).rename(blobs / f"blob of {name}")
        (snapshot / name).symlink_to(f"../../blobs/blob of {name}")
    assert {*read_folder(snapshot).weights} == {"a"}


_ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
_PLACES: dict[str, Any] = {"weight_map": {"a": "1.safetensors"}}
# Faulty folders: a word of the error, and the files of the folder.
_HOSTILE: dict[str, tuple[str, dict[str, Any]]] = {
    "no weights": ("model.safetensors", {}),
    "no object": ("config.json is no JSON object", {"config.json": [1]}),
    "no JSON": ("Expecting", {"config.json": b"{"}),
    "deep JSON": ("recursion", {"config.json": b"[" * 100_000}),
    "large JSON": ("MiB", {"config.json": b"[" + b"{}," * 1_000_000 + b"{}]"}),
    "empty file": ("empty", {"model.safetensors": b""}),
    "long header": ("header", {"model.safetensors": b"\xff" * 8 + bytes(64)}),
    "short header": ("header", {"model.safetensors": b"\x80" + bytes(64)}),
    "garbage header": ("header", {"model.safetensors": _safetensors(b"[1, 2]  ", b"")}),
    "outside": ("", {"model.safetensors": _safetensors({"a": _ONE}, b"")}),
    "gap": ("", {"model.safetensors": _safetensors({"a": _ONE}, bytes(8))}),
    "overlap": ("", {"model.safetensors": _safetensors({"a": _ONE, "b": _ONE}, bytes(4))}),
    "huge": (
        "",
        {"model.safetensors": _safetensors({"a": {**_ONE, "shape": [1 << 60]}}, bytes(4))},
    ),
    "negative": (
        "",
        {"model.safetensors": _safetensors({"a": {**_ONE, "shape": [-1]}}, bytes(4))},
    ),
    "type": (
        "a has the type F8_E4M3",
        {
            "model.safetensors": _safetensors(
                {"a": {**_ONE, "dtype": "F8_E4M3", "shape": [4]}}, b"1234"
            )
        },
    ),
    "index of texts": ("weight_map", {_INDEX: {"weight_map": ["a"]}}),
    "index of numbers": ("'1'", {_INDEX: {"weight_map": {"a": 1}}}),
    "index of a subfolder": ("b/1", {_INDEX: {"weight_map": {"a": "b/1.safetensors"}}}),
    "index of the parent": ("../1", {_INDEX: {"weight_map": {"a": "../1.safetensors"}}}),
    "index of a shard": ("1.safetensors", {_INDEX: _PLACES}),
    "shard without a tensor": (
        "1.safetensors differ in the tensor a",
        {_INDEX: _PLACES, "1.safetensors": _safetensors({"b": _ONE}, bytes(4))},
    ),
    "shard with another tensor": (
        "1.safetensors differ in the tensor b",
        {
            _INDEX: _PLACES,
            "1.safetensors": _safetensors(
                {"a": _ONE, "b": {**_ONE, "data_offsets": [4, 8]}}, bytes(8)
            ),
        },
    ),
    "end token": (
        "no number of a token",
        {
            "config.json": {"eos_token_id": "</s>"},
            "model.safetensors": _safetensors({"a": _ONE}, bytes(4)),
        },
    ),
}


@pytest.mark.parametrize("kind", _HOSTILE)
def test_a_hostile_folder_is_refused(kind: str, tmp_path: Path) -> None:
    word, files = _HOSTILE[kind]
    with pytest.raises(UserError) as error:
        read_folder(_folder(tmp_path, **files)).assets()
    assert word in error.value.why
    assert error.value.where == str(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": np.ones(1, np.float32)}, _folder(folder) / "model.safetensors")
    (folder / "tokenizer.json").write_bytes(b"{}")
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(UserError) as error:
        read_folder(folder).assets()
    assert "out of the model's folder" in error.value.why


def test_a_shard_in_a_subfolder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    _sharded(tmp_path, a="b/1.safetensors")
    with pytest.raises(UserError) as error:
        read_folder(tmp_path)
    assert "b/1.safetensors, which is not in the folder" in error.value.why


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(_folder(tmp_path) / "model.safetensors")
    with pytest.raises(UserError) as error:
        read_folder(tmp_path)
    assert "not a regular file" in error.value.why


class _Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.write_text, (self._path, "was run")


def test_code_and_pickled_weights_do_not_run(tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    code = f"open({str(sign)!r}, 'w')\n".encode()
    folder = tmp_path / "model"
    folder.mkdir()
    config = {**_CONFIG, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    _folder(
        folder,
        **{
            "config.json": config,
            "modeling.py": code,
            "pytorch_model.bin": pickle.dumps(_Planted(sign)),
        },
    )
    with pytest.raises(UserError) as error:
        read_folder(folder)
    assert "pickled" in error.value.why
    assert "save_pretrained" in error.value.why
    save_file({"a": np.ones(1, np.float32)}, folder / "model.safetensors")
    assert {*read_folder(folder).weights} == {"a"}
    assert not sign.exists()


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": np.ones(1, np.float32)}, _folder(tmp_path) / "model.safetensors")
    monkeypatch.setattr(checkpoints, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        read_folder(tmp_path)
    assert "safetensors" in error.value.what
    assert error.value.hint == "pip install 'tcc[lm]'"
