"""Tests of assets: files for users of a model inside its artifact, and damaged tables of them."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import programs
import pytest
from tcc.artifact import read_manifest
from tcc.backends.artifact.emit import LIBRARIES
from tcc.cli import execute
from tcc.runtime import Module, abi, load

from tests.processes import finished

TOKENIZER = bytes(n * n % 251 for n in range(50_000))
NAME = 'a "name"\\ of ö??/'
ASSETS = {"tokenizer.json": TOKENIZER, "copy": TOKENIZER, "empty": b"", NAME: b"\0one\0"}


def link(folder: Path, kernels: bytes, assets: Mapping[str, bytes] = ASSETS) -> Path:
    program, weights = programs.mlp()
    out = folder / "mini.so"
    out.parent.mkdir(exist_ok=True)
    programs.link(program, kernels, out, weights=[weights], assets=assets)
    return out


@pytest.fixture(scope="module")
def artifact(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link(tmp_path_factory.mktemp("assets"), kernels)


def test_a_module_and_the_manifest_have_the_assets(artifact: Path) -> None:
    module = load(artifact)
    assert dict(module.assets) == ASSETS
    assert len(module.assets) == 4
    assert module.assets["tokenizer.json"] is module.assets["tokenizer.json"], "it is read twice"
    listed = read_manifest(artifact)["assets"]
    assert listed == sorted(
        (
            {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in ASSETS.items()
        ),
        key=lambda entry: str(entry["name"]),
    )
    assert module(np.zeros(2, np.float32)).tolist() == [1, 2]


def test_an_unknown_name_is_an_error_that_lists_the_names(artifact: Path) -> None:
    with pytest.raises(KeyError, match=r"no asset vocabulary; it has: .*tokenizer\.json"):
        load(artifact).assets["vocabulary"]


def test_an_artifact_without_assets_has_no_entry(kernels: bytes, tmp_path: Path) -> None:
    module = load(link(tmp_path, kernels, {}))
    assert "assets" not in module.manifest
    assert dict(module.assets) == {}
    with pytest.raises(KeyError, match="it has: none"):
        module.assets["tokenizer.json"]


def test_equal_assets_in_any_order_give_equal_bytes(
    artifact: Path, kernels: bytes, tmp_path: Path
) -> None:
    again = link(tmp_path / "again", kernels, dict(reversed(ASSETS.items())))
    assert again.read_bytes() == artifact.read_bytes()


def test_equal_contents_are_stored_once(artifact: Path) -> None:
    assert artifact.read_bytes().count(TOKENIZER) == 1


def test_saved_files_hold_the_assets_beside_a_side_file(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    out = tmp_path / "side.so"
    programs.link(program, kernels, out, weights=[weights], side_file=True, assets=ASSETS)
    module = load(out)
    module.save(tmp_path / "second.so")
    out.unlink()
    assert dict(module.assets) == ASSETS, "a loaded module reads its file again"
    assert dict(load(tmp_path / "second.so").assets) == ASSETS


def test_inspect_lists_assets(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["inspect", str(artifact)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "asset tokenizer.json, 48.8 KiB" in printed
    assert execute(["inspect", str(artifact), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["assets"]) == 4


# ---- C programs --------------------------------------------------------------------------------

MAIN = """
#include <stdio.h>
#include "mini.h"

int main(int argc, char **argv) {
    const char *data = NULL;
    size_t size = 0;
    const tcc_api *api = mini_api();
    if (argc < 2) return 2;
    if (api->model_asset(argv[1], &data, &size)) return fputs(api->last_error(), stderr), 1;
    return fwrite(data, 1, size, stdout) != size;
}
"""


@pytest.mark.parametrize("emit", ["shared", "object", "static"])
def test_c_programs_read_assets(kernels: bytes, tmp_path: Path, emit: str) -> None:
    program, weights = programs.mlp()
    library = tmp_path / {"shared": "mini.so", "object": "mini.o", "static": "mini.a"}[emit]
    programs.link(program, kernels, library, weights=[weights], emit=emit, assets=ASSETS)
    (tmp_path / "main.c").write_text(MAIN)
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined")
    place = f"-Wl,-rpath,{tmp_path}"
    built = tmp_path / "main"
    words = ("gcc", *flags, "main.c", library, place, *LIBRARIES.split(), "-o", built)
    subprocess.run(words, cwd=tmp_path, check=True)
    for name, data in ASSETS.items():
        process = subprocess.run((built, name), capture_output=True, check=True)
        assert process.stdout == data, name
    refused = finished(built, "vocabulary")
    assert refused.returncode == 1
    assert "model 'mini' has no asset 'vocabulary'" in refused.stderr


def test_missing_arguments_are_refused(artifact: Path) -> None:
    api = load(artifact)._api
    data, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert api.model_asset(None, ctypes.byref(data), ctypes.byref(size)) == abi.INVALID_ARGUMENT
    assert api.model_asset(b"copy", None, ctypes.byref(size)) == abi.INVALID_ARGUMENT
    assert api.model_asset(b"copy", ctypes.byref(data), None) == abi.INVALID_ARGUMENT
    assert b"no place" in api.last_error()


# ---- damaged and forged files ------------------------------------------------------------------


def row_of(data: bytes, content: bytes) -> int:
    """Returns the place of a content's offset, size and hash in the table of an artifact."""
    hashed = struct.pack("<Q32s", len(content), hashlib.sha256(content).digest())
    assert data.count(hashed) >= 1
    return data.index(hashed) - 8


def mutant(artifact: Path, folder: Path, place: int, content: bytes) -> Module:
    """Loads a copy of an artifact with other bytes at a place; loading does not compare the
    seal."""
    copy = folder / "mutant.so"
    shutil.copyfile(artifact, copy)
    with copy.open("r+b") as file:
        file.seek(place)
        file.write(content)
    return load(copy)


@pytest.mark.parametrize(
    ("offset", "size"),
    [(1 << 40, 5), (0, 1 << 40), (2**64 - 1, 5), (5, 2**64 - 5), (2**64 - 5, 2**64 - 1)],
)
def test_ranges_beyond_the_assets_are_errors(
    artifact: Path, tmp_path: Path, offset: int, size: int
) -> None:
    place = row_of(artifact.read_bytes(), ASSETS[NAME])
    module = mutant(artifact, tmp_path, place, struct.pack("<QQ", offset, size))
    with pytest.raises(RuntimeError, match=r"damaged.* ends behind the assets"):
        module.assets[NAME]
    assert module.assets["tokenizer.json"] == TOKENIZER


def test_another_range_or_hash_is_an_error(artifact: Path, tmp_path: Path) -> None:
    data = artifact.read_bytes()
    place = row_of(data, ASSETS[NAME])
    for at, content in ((place, b"\1"), (place + 8, b"\4"), (place + 16, b"\0" * 32)):
        with pytest.raises(RuntimeError, match=r"damaged.* has another hash"):
            mutant(artifact, tmp_path, at, content).assets[NAME]


def test_a_changed_byte_of_an_asset_is_an_error(artifact: Path, tmp_path: Path) -> None:
    place = artifact.read_bytes().index(TOKENIZER) + 25_000
    module = mutant(artifact, tmp_path, place, bytes([TOKENIZER[25_000] ^ 1]))
    for name in ("tokenizer.json", "copy"):
        with pytest.raises(RuntimeError, match=f"damaged.*{name}.* has another hash"):
            module.assets[name]
    assert module.assets[NAME] == ASSETS[NAME]


@pytest.mark.parametrize("entry", [b"0", b"[0]", b'[{"name": 1}]', b'"copy"'])
def test_a_manifest_whose_entry_has_another_form_lists_nothing(
    artifact: Path, tmp_path: Path, entry: bytes
) -> None:
    data, key = artifact.read_bytes(), b'"assets": '
    begin = data.index(key + b"[")
    size = data.index(b"]", begin) + 1 - begin
    module = mutant(artifact, tmp_path, begin, (key + entry).ljust(size))
    assert dict(module.assets) == {}
    assert module(np.zeros(1, np.float32)).tolist() == [1]


def test_a_manifest_may_name_an_asset_that_is_not_there(artifact: Path, tmp_path: Path) -> None:
    place = artifact.read_bytes().index(b'"name": "copy"')
    module = mutant(artifact, tmp_path, place, b'"name": "Copy"')
    with pytest.raises(RuntimeError, match="model 'mini' has no asset 'Copy'"):
        module.assets["Copy"]
