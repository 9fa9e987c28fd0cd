"""Samples of a model's inputs: the sets of inputs that a folder of files holds.

    ports = module.inputs
    for name, texts in sample_texts(ports, ["photos:bgr,letterbox=114"]):
        ...

A text of samples is `FOLDER[:SETTINGS]` for a model with one input, or `NAME=VALUE` as in
`tcc run --input`. For a model with several inputs, the files of `FOLDER` are archives (.npz) with
an array for each input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tcc.runtime import abi
from tcc.runtime.agreement import Agreement, Scores
from tcc.runtime.arrays import Array
from tcc.runtime.input_texts import runs_of, texts_by_name, value_of_files
from tcc.runtime.inputs import file_of, folder_files, read_array
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError
from tcc.runtime.worker import read_arrays, write_arrays

Run: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def sample_texts(
    ports: Sequence[ModulePort], texts: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yields the name of each sample's file, and its texts of `--input`.

    Raises InputError for a text that names no folder and no input, for an input without a value,
    and for folders that are empty or have different files.
    """
    named = [text for text in texts if any(text.startswith(f"{port.name}=") for port in ports)]
    folders = [text for text in texts if text not in named]
    if len(folders) > 1 or (folders and named):
        raise InputError(
            "the samples have several sources",
            where=", ".join(texts),
            why="a folder without the name of an input holds all inputs",
            hint="write NAME=@FOLDER for each input",
        )
    if not folders:
        _check_values(ports, named)
        yield from runs_of(ports, named)
        return
    files = folder_files(folders[0])
    if files is None:
        raise InputError(
            "there is no such folder",
            where=folders[0],
            hint=f"give FOLDER, or NAME=@FOLDER for one of {_names(ports)}",
        )
    for file in files:
        yield file_of(file), _texts_of(ports, file)


def _texts_of(ports: Sequence[ModulePort], file: str) -> list[str]:
    if len(ports) == 1:
        return [f"{ports[0].name}=@{file}"]
    if not file.endswith(".npz"):
        raise InputError(
            "a file is no sample of all inputs",
            where=file,
            why=f"the model has the inputs {_names(ports)}",
            hint="save each sample by np.savez with an array of each input's name, "
            "or write NAME=@FOLDER for each input",
        )
    return [f"{port.name}=@{file}:{port.name}" for port in ports]


def _check_values(ports: Sequence[ModulePort], texts: Sequence[str]) -> None:
    """Raises InputError for an input without a value."""
    values = texts_by_name(ports, texts)
    for port in ports:
        if not set("@=") & set(values.get(port.name, "")):
            raise InputError(
                f"the input {port.name!r} has no samples",
                where=", ".join(texts),
                hint=f"add {port.name}=@FOLDER, or one value as in {port.name}=@FILE.npy",
            )


def _names(ports: Sequence[ModulePort]) -> str:
    return ", ".join(port.name for port in ports)


def file_arrays(ports: Sequence[ModulePort], texts: Sequence[str]) -> dict[str, Any]:
    """Returns the arrays of a sample's texts, each of which names a file.

    Raises InputError for another text, and for a file that cannot be read.
    """
    values = texts_by_name(ports, texts)
    return {port.name: value_of_files(port, values[port.name], None) for port in ports}


def stacked_arrays(ports: Sequence[ModulePort], file: str) -> Iterator[dict[str, Array]]:
    """Yields the arrays of each sample in an archive (.npz) of samples.

    Its names are those of the inputs, and the first axis of each array counts the samples. A sample
    has the shape of the input. The axis may also be the input's own first axis, of which each
    sample takes as many entries as the input has. Raises InputError for an archive with other names
    or different counts.
    """
    names = {port.name for port in ports}
    with np.load(file, allow_pickle=False) as archive:
        archive_names = set(archive.files)
    if archive_names != names:
        raise InputError(
            "the archive has other names than the model's inputs",
            where=file,
            why=f"it has {', '.join(sorted(archive_names))}; the inputs are {_names(ports)}",
            hint="save it by np.savez with an array of each input's name",
        )
    stacks = {port.name: _stacked(port, read_array(f"{file}:{port.name}"), file) for port in ports}
    counts = {len(stack) for stack in stacks.values()}
    if len(counts) > 1 or 0 in counts:
        raise InputError(
            "the arrays of the archive have different numbers of samples, or none",
            where=file,
            why=", ".join(f"{name} has {len(stack)}" for name, stack in stacks.items()),
            hint="the first axis of each array counts the samples",
        )
    for number in range(max(counts)):
        yield {name: np.ascontiguousarray(stack[number]) for name, stack in stacks.items()}


def _stacked(port: ModulePort, array: Array, file: str) -> Array:
    """Returns an array whose first axis counts samples of the port's rank."""
    if array.ndim != len(port.shape) or not array.ndim:
        return array if array.ndim else array[np.newaxis]
    entries = port.shape[0] or 1
    if array.shape[0] % entries:
        raise InputError(
            f"the samples do not fit the input {port.name!r}",
            where=file,
            why=f"its first axis has {entries} entries, and the array has {array.shape[0]}",
            hint=f"give a multiple of {entries}, or an axis of samples in front",
        )
    return array.reshape(-1, entries, *array.shape[1:])


class StoredSamples:
    """Samples in a folder: their inputs and the outputs that are expected of them.

    Each sample is read for itself, so that all samples together may exceed the memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def add(
        self,
        ports: Sequence[ModulePort],
        texts: Sequence[str],
        reader: Callable[[list[str]], Mapping[str, Any]],
    ) -> None:
        """Checks and stores the samples that `texts` name; without a text there are none.

        `reader` returns the arrays of a sample's texts of `--input`. Raises InputError for samples
        that do not fit the ports or have a NaN or an infinity.
        """
        for name, sample in sample_texts(ports, texts) if texts else ():
            self.put(ports, reader(sample), name or ", ".join(sample))

    def put(self, ports: Sequence[ModulePort], arrays: Mapping[str, Any], where: str = "") -> None:
        """Checks and stores a sample; raises InputError, which names `where`, as `add` does."""
        for port in ports:
            _check_array(port, arrays[port.name], where)
        write_arrays(self.path(self.count), arrays)
        self.count += 1

    def check_ranges(self, where: str) -> int:
        """Returns the number of samples, and checks that they give ranges of values.

        Raises InputError if there is only one, or all are equal. `where` is the place that the
        error names.
        """
        first = self.inputs(0)
        if any(
            not np.array_equal(array, first[name])
            for number in range(1, self.count)
            for name, array in self.inputs(number).items()
        ):
            return self.count
        raise InputError(
            "there is only one sample"
            if self.count == 1
            else f"all {self.count} samples are equal",
            where=where,
            why="the ranges of values in equal runs say little of other runs",
            hint="give a folder with about 100 different samples, like the inputs in use",
        )

    def inputs(self, number: int) -> dict[str, Array]:
        """Returns the inputs of a sample, by name."""
        return read_arrays(self.path(number))

    def expect(self, run_model: Run, count: int) -> None:
        """Runs a model on the first `count` samples, and stores its outputs as expected."""
        for number in range(count):
            write_arrays(self._expected(number), run_model(self.inputs(number)))

    def scores(self, run_model: Run, numbers: Iterable[int]) -> Scores:
        """Runs a model on samples, and compares its outputs with the expected outputs."""
        agreement = Agreement()
        for number in numbers:
            agreement.add(run_model(self.inputs(number)), read_arrays(self._expected(number)))
        return agreement.scores()

    def path(self, number: int) -> Path:
        """Returns the file of a sample's inputs, as `write_arrays` writes it."""
        return self.folder / f"inputs-{number}.npz"

    def _expected(self, number: int) -> Path:
        return self.folder / f"expected-{number}.npz"


def _check_array(port: ModulePort, value: Any, where: str) -> None:
    if port.kind != "tensor" or port.dtype in abi.EXTENSIONS or port.dtype == "string":
        raise InputError(
            f"the input {port.name!r} is {port.dtype}",
            where=where,
            why="samples are arrays of a type that NumPy has",
        )
    array = np.asarray(value)
    fits = len(array.shape) == len(port.shape) and all(
        expected in (None, size) for size, expected in zip(array.shape, port.shape, strict=True)
    )
    if not fits or array.dtype != abi.numpy_dtype(port.dtype):
        raise InputError(
            f"a sample does not fit the input {port.name!r}",
            where=where,
            why=f"it is {array.dtype}{list(array.shape)}; the input is {port.dtype} {port.text}",
            hint="save each sample in the input's type and shape, with its batch axis",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(
            f"a sample of the input {port.name!r} has a NaN or an infinity",
            where=where,
            why="no range holds it",
            hint="repair or remove the file",
        )
