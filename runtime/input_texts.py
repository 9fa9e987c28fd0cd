"""Texts of inputs as in `tcc run --input NAME=VALUE`: what they name, their files, their runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tcc.runtime.input_settings import Settings
from tcc.runtime.inputs import STDIN, file_of, folder_files, read_array, read_input
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError

FORMS = (
    "write NAME=@file.npy, NAME=@file.npz:KEY, NAME=@picture.png, NAME=2x3xf32=1, NAME=2x3xf32 or "
    "NAME=2x3; for a sequence NAME=@a.npy,@b.npy"
)


def texts_by_name(ports: Sequence[ModulePort], input_texts: Iterable[str]) -> dict[str, str]:
    """Returns the text of the value of each `NAME=VALUE`, by name; raises InputError for a bad
    text."""
    names = [port.name for port in ports]
    texts: dict[str, str] = {}
    for text in input_texts:
        where = f"--input {text}"
        # A name may contain "=", so several names may match; the longest is meant.
        matches = [port for port in names if text.startswith(f"{port}=")]
        name = max(matches, key=len, default=text.partition("=")[0])
        if "=" not in text:
            raise InputError("bad input", where=where, hint=FORMS)
        if name not in names:
            hint = f"its inputs are: {', '.join(names)}"
            raise InputError(f"the model has no input {name!r}", where=where, hint=hint)
        if name in texts:
            raise InputError(f"the input {name!r} is given twice", where=where)
        texts[name] = text[len(name) + 1 :]
        if not texts[name]:
            raise InputError("nothing is given", where=where, hint=FORMS)
    return texts


def value_of_files(port: ModulePort, text: str, settings: Settings | None) -> Any:
    """Returns the value of a port from the files that `text` names.

    It is an array for a tensor, a list for a sequence, and an array or None for an optional. Raises
    InputError for a file that cannot be read.
    """
    where = f"--input {port.name}={text}"
    files = text.split(",@") if text else []
    if text and not text.startswith("@"):
        raise InputError("bad input", where=where, why=f"it is {port.dtype}", hint=FORMS)
    names = [name.removeprefix("@") for name in files]
    with _errors_at(where):
        if port.kind == "tensor":
            return read_input(port, names, settings)
        items = [read_array(name) for name in names]
    if port.kind == "sequence" or "sequence" in port.dtype:
        return items or (None if port.kind == "optional" else [])
    if len(items) > 1:
        raise InputError("an optional has one element", where=where)
    return items[0] if items else None


def runs_of(
    ports: Sequence[ModulePort], input_texts: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yields the file name and the texts of --input of each run.

    A text `NAME=@FOLDER` gives a run for each file of the folder, in the order of their names.
    Several folders must have files of the same names, but for suffixes. Without a folder there is
    one run, and its file name is empty. Raises InputError for folders that are empty or differ.
    """
    texts = texts_by_name(ports, input_texts)
    files: dict[str, list[str]] = {}
    for name, text in texts.items():
        if text.startswith("@") and ",@" not in text:
            with _errors_at(f"--input {name}={text}"):
                paths = folder_files(text[1:])
            files |= {} if paths is None else {name: paths}
    if not files:
        yield "", [f"{name}={text}" for name, text in texts.items()]
        return
    _check_names(files)
    first = next(iter(files))
    for number, label in enumerate(map(_file, files[first])):
        run_texts = texts | {name: f"@{paths[number]}" for name, paths in files.items()}
        yield label.name, [f"{name}={text}" for name, text in run_texts.items()]


def check_no_stdin(input_texts: Sequence[str]) -> None:
    """Raises InputError for an input from standard input, which ranks cannot share."""
    for text in input_texts:
        _, at, files = text.partition("=@")
        if at and STDIN in map(file_of, files.split(",@")):
            raise InputError(
                "ranks cannot share standard input",
                where=f"--input {text}",
                hint="write it to a file: NAME=@FILE",
            )


def _check_names(files: Mapping[str, Sequence[str]]) -> None:
    stems = {name: [_file(text).stem for text in texts] for name, texts in files.items()}
    (first, expected), *further = stems.items()
    for name, names in further:
        if names != expected:
            raise InputError(
                "two folders have different files",
                where=f"--input {first}, --input {name}",
                why="each run takes the files of one name",
                hint="give both folders files of the same names, but for suffixes",
            )


def _file(text: str) -> Path:
    return Path(file_of(text))


@contextmanager
def _errors_at(where: str) -> Iterator[None]:
    """Replaces the place that an InputError names."""
    try:
        yield
    except InputError as error:
        raise type(error)(error.what, where=where, why=error.why, hint=error.hint) from error
