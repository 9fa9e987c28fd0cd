"""The runs of a command: one, or one for each file of a folder that an input names."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tcc.cli.arrays import texts_by_name
from tcc.errors import UserError
from tcc.later import later
from tcc.preprocess import input_errors
from tcc.runtime import ModulePort

if TYPE_CHECKING:
    from tcc.runtime import inputs as input_files
else:
    input_files = later("tcc.runtime.inputs")


def runs_of(
    ports: Sequence[ModulePort], input_texts: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yields the file name and the texts of --input of each run.

    A text `NAME=@FOLDER` gives a run for each file of the folder, in the order of their names.
    Several folders must have files of the same names, but for suffixes. Without a folder there is
    one run, and its file name is empty. Raises UserError for folders that are empty or differ.
    """
    texts = texts_by_name(ports, input_texts)
    files: dict[str, list[str]] = {}
    for name, text in texts.items():
        if text.startswith("@") and ",@" not in text:
            with input_errors(f"--input {name}={text}"):
                paths = input_files.folder_files(text[1:])
            files |= {} if paths is None else {name: paths}
    if not files:
        yield "", [f"{name}={text}" for name, text in texts.items()]
        return
    _check_names(files)
    first = next(iter(files))
    for number, label in enumerate(map(_file, files[first])):
        run_texts = texts | {name: f"@{paths[number]}" for name, paths in files.items()}
        yield label.name, [f"{name}={text}" for name, text in run_texts.items()]


def _check_names(files: dict[str, list[str]]) -> None:
    stems = {name: [_file(text).stem for text in texts] for name, texts in files.items()}
    (first, expected), *further = stems.items()
    for name, names in further:
        if names != expected:
            raise UserError(
                "two folders have different files",
                where=f"--input {first}, --input {name}",
                why="each run takes the files of one name",
                hint="give both folders files of the same names, but for suffixes",
            )


def _file(text: str) -> Path:
    return Path(input_files.file_of(text))


def check_no_stdin(input_texts: Sequence[str]) -> None:
    """Raises UserError for an input from standard input, which ranks cannot share."""
    for text in input_texts:
        _, at, files = text.partition("=@")
        if at and input_files.STDIN in map(input_files.file_of, files.split(",@")):
            raise UserError(
                "ranks cannot share standard input",
                where=f"--input {text}",
                hint="write it to a file: NAME=@FILE",
            )
