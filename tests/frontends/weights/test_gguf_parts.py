"""A model may consist of several GGUF files; parts that contradict the first file are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tcc.errors import UserError
from tcc.frontends.weights.gguf_file import read_gguf

from .gguf_files import written


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """Writes a model of seven tensors in three files, and returns the path of the first."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=3)
    writer.add_string("general.name", "model")
    for number in range(7):
        writer.add_tensor(f"t{number}", np.full(4, number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "m-00001-of-00003.gguf"


def test_the_first_file_reads_all(first: Path) -> None:
    checkpoint = read_gguf(first)
    values = {name: np.asarray(weight.load())[0] for name, weight in checkpoint.weights.items()}
    assert values == {f"t{number}": number for number in range(7)}
    assert checkpoint.facts["general.name"] == "model"
    assert checkpoint.where == str(first)


def refused(path: Path) -> str:
    with pytest.raises(UserError) as error:
        read_gguf(path)
    return str(error.value)


def test_a_part_that_is_not_the_first_is_refused(first: Path) -> None:
    assert "give the first, NAME-00001-of-00003.gguf" in refused(
        first.with_name("m-00002-of-00003.gguf")
    )
    renamed = first.rename(first.with_name("other.gguf"))
    assert "it is one of 3 parts" in refused(renamed)


def test_a_missing_part_is_named(first: Path) -> None:
    third = first.with_name("m-00003-of-00003.gguf")
    third.unlink()
    assert third.name in refused(first)


def test_parts_that_are_swapped_are_refused(first: Path) -> None:
    shutil.copy(first.with_name("m-00002-of-00003.gguf"), first.with_name("m-00003-of-00003.gguf"))
    assert "m-00003-of-00003.gguf is no part of it" in refused(first)


@pytest.mark.parametrize(
    ("names", "facts", "why"),
    [
        (["a", "b"], {"split.no": 1, "split.count": 2}, "its parts have 3 tensors"),
        (["c"], {"split.no": 1, "split.count": 2}, "has a tensor for a second time"),
        (["a"], {"split.no": 1, "split.count": 3}, "is no part of it"),
    ],
)
def test_parts_contradict_the_first(
    names: list[str], facts: dict[str, Any], why: str, tmp_path: Path
) -> None:
    one = np.ones(4, np.float32), "F32"
    metadata = {"split.no": 0, "split.count": 2, "split.tensors.count": 2}
    first = written(tmp_path / "m-00001-of-00002.gguf", {"c": one}, metadata)
    written(tmp_path / "m-00002-of-00002.gguf", dict.fromkeys(names, one), facts)
    assert why in refused(first)


@pytest.mark.parametrize("count", [0, 1 << 31, "3"])
def test_a_count_of_parts_that_cannot_be(count: object, tmp_path: Path) -> None:
    path = written(
        tmp_path / "m-00001-of-00000.gguf", {"a": (np.ones(4, "f4"), "F32")}, {"split.count": count}
    )
    assert f"it is one of {count} parts" in refused(path)
