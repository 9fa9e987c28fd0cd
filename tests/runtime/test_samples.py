"""Samples in folders are found and read, and bad samples are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.runtime.input_texts import texts_by_name, value_of_files
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError
from tcc.runtime.samples import StoredSamples, sample_texts

X = ModulePort("x", "f32", (1, 3), "1x3")
STATE = ModulePort("state", "f32", (None, 2), "nx2")


def read(*ports: ModulePort) -> Any:
    """Returns the function that reads the arrays of a sample's texts."""

    def arrays(texts: list[str]) -> dict[str, Any]:
        values = texts_by_name(ports, texts)
        return {port.name: value_of_files(port, values[port.name], None) for port in ports}

    return arrays


def stored(folder: Path, source: Path, *ports: ModulePort) -> StoredSamples:
    folder.mkdir(exist_ok=True)
    samples = StoredSamples(folder)
    samples.add(ports, [str(source)], read(*ports))
    return samples


def written(folder: Path, *arrays: Any) -> Path:
    folder.mkdir()
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", np.asarray(array, np.float32))
    return folder


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    source = written(tmp_path / "s", [[1, 2, 3]], [[4, 5, 6]])
    samples = stored(tmp_path / "t", source, X)
    assert samples.count == samples.check_ranges("") == 2
    assert samples.inputs(1)["x"].tolist() == [[4, 5, 6]]


def test_archives_hold_all_inputs(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for n in range(3):
        arrays = {"x": np.full((1, 3), n, np.float32), "state": np.ones((n + 1, 2), np.float32)}
        np.savez(tmp_path / "s" / f"{n}.npz", **arrays)
    samples = stored(tmp_path / "t", tmp_path / "s", X, STATE)
    assert [samples.inputs(n)["state"].shape for n in range(3)] == [(1, 2), (2, 2), (3, 2)]


def test_inputs_have_folders_and_values_of_their_own(tmp_path: Path) -> None:
    source = written(tmp_path / "s", [[1, 2, 3]], [[4, 5, 6]])
    texts = [f"x=@{source}:format=numpy", "state=1x2=0"]
    assert [texts_of_input for _, texts_of_input in sample_texts([X, STATE], texts)] == [
        [f"x=@{source}/{n}.npy:format=numpy", "state=1x2=0"] for n in range(2)
    ]


def test_scores_compare_with_the_stored_outputs(tmp_path: Path) -> None:
    samples = stored(tmp_path / "t", written(tmp_path / "s", [[1, 2, 4]], [[4, 2, 8]]), X)
    samples.expect(lambda arrays: {"y": arrays["x"]}, 2)
    assert samples.scores(lambda arrays: {"y": arrays["x"]}, range(2)).error == 0
    halved = samples.scores(lambda arrays: {"y": arrays["x"] / 2}, range(2))
    assert (halved.error, halved.top1) == (0.5, 1.0)


BAD = {
    "one": ([[[1, 2, 3]]], "only one sample"),
    "equal": ([[[1, 2, 3]]] * 3, "all 3 samples are equal"),
    "nan": ([[[1, 2, 3]], [[1, np.nan, 3]]], "NaN or an infinity"),
    "infinity": ([[[1, 2, np.inf]], [[1, 2, 3]]], "NaN or an infinity"),
    "shape": ([[[1, 2, 3]], [[1, 2, 3, 4]]], "does not fit the input 'x'"),
    "rank": ([[[1, 2, 3]], [1, 2, 3]], "does not fit the input 'x'"),
    "empty": ([], "has no files"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_samples_are_refused(tmp_path: Path, name: str) -> None:
    arrays, message = BAD[name]
    with pytest.raises(InputError, match=message):
        stored(tmp_path / "t", written(tmp_path / "s", *arrays), X).check_ranges("--data s")


def test_the_error_names_the_file(tmp_path: Path) -> None:
    source = written(tmp_path / "s", [[1, 2, 3]], [[1, np.nan, 3]])
    with pytest.raises(InputError) as refused:
        stored(tmp_path / "t", source, X)
    assert refused.value.where.endswith("1.npy")


def test_another_element_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    np.save(tmp_path / "s" / "0.npy", np.ones((1, 3), np.float64))
    with pytest.raises(InputError, match="does not fit"):
        stored(tmp_path / "t", tmp_path / "s", X)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["absent"], "no such folder"),
        (["s", "t"], "several sources"),
        (["s", "x=@s"], "several sources"),
        (["x=@s"], "'state' has no samples"),
        (["x=@s", "state=2x2"], "'state' has no samples"),
        (["s"], "no sample of all inputs"),
    ],
)
def test_bad_texts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], message: str
) -> None:
    written(tmp_path / "s", [[1, 2, 3]])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        list(sample_texts([X, STATE], texts))
