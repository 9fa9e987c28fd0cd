"""Inputs of a model from files: arrays, pictures and sounds.

    from tcc.runtime.inputs import read_input

    image = read_input(module.inputs[0], "cat.png:bgr,letterbox=114")

A text is `FILE`, or `FILE:SETTINGS` (see `input_settings.py`), or `FILE.npz:KEY`. The name `-` is
standard input. Pictures need Pillow and sounds soundfile, the extra `io`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tcc.runtime.array_files import MOST_BYTES, NUMPY_MAGICS, numpy_array, raw_array
from tcc.runtime.arrays import Array
from tcc.runtime.input_settings import Settings, read_settings
from tcc.runtime.pictures import picture
from tcc.runtime.ports import ModulePort
from tcc.runtime.reports import InputError
from tcc.runtime.sounds import sound

STDIN = "-"
_KINDS = {
    "numpy": (".npy", ".npz"),
    "bin": (".bin",),
    "sound": (".wav", ".flac", ".ogg"),
    "picture": (
        ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm",
    ),
}  # fmt: skip
_KIND_OF_SUFFIX = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes}
# First bytes of files, for names that tell no kind.
_MAGICS = {
    "numpy": NUMPY_MAGICS,
    "sound": (b"RIFF", b"fLaC", b"OggS"),
    "picture": (b"\x89PNG\r\n", b"\xff\xd8\xff", b"BM", b"GIF8", b"II*\0", b"MM\0*"),
}


def read_input(
    port: ModulePort, texts: str | Sequence[str], settings: Settings | None = None
) -> Array:
    """Returns the array of an input from a file, or from one file for each entry of its batch.

    `texts` have the form `FILE[:SETTINGS]`. `settings` hold for pictures and sounds whose text has
    none. Arrays of NumPy's files are taken as they are; all other files give the sizes and the
    element type of `port`, which takes a tensor. Raises InputError for a file that cannot be read
    or does not fit the port.
    """
    parts = [texts] if isinstance(texts, str) else [*texts]
    if len(parts) == 1:
        return _read(port, parts[0], settings)
    if not port.shape:
        raise InputError(f"the input {port.name!r} is one number", where=",".join(parts))
    if port.shape[0] not in (None, len(parts)):
        raise InputError(
            f"{len(parts)} files are given",
            where=",".join(parts),
            why=f"the input {port.name!r} has the shape {port.text}",
            hint=f"give {port.shape[0]} files: each is an entry along the first axis",
        )
    entry = replace(port, shape=(1, *port.shape[1:]))
    arrays = [_read(entry, part, settings) for part in parts]
    shapes = {array.shape[1:] for array in arrays} | {array.shape[:1] for array in arrays} - {(1,)}
    if len(shapes) > 1 or len({array.dtype for array in arrays}) > 1:
        raise InputError(
            "the files give arrays of different shapes or types", where=",".join(parts),
            why=", ".join(f"{a.dtype} {a.shape}" for a in arrays[:4]),
            hint="each file is one entry along the first axis",
        )  # fmt: skip
    return np.concatenate(arrays)


def folder_files(text: str) -> list[str] | None:
    """Returns the texts of the files in the folder that `FOLDER[:SETTINGS]` names, by name.

    Returns None where the text names no folder. Files whose name begins with a dot, and folders,
    are left out. Raises InputError for a folder without files.
    """
    name, settings = _split(text)
    folder = Path(name)
    with _reading(text):
        if not folder.is_dir():
            return None
        paths = sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.is_file())
    if not paths:
        raise InputError("the folder has no files", where=text)
    return [f"{path}:{settings}" if settings else str(path) for path in paths]


def file_of(text: str) -> str:
    """Returns the path in a text of the form `FILE[:SETTINGS]`."""
    return _split(text)[0]


def read_array(text: str) -> Array:
    """Returns the array of the file that `FILE.npy`, `FILE.npz` or `FILE.npz:KEY` names.

    Raises InputError for a file without the array.
    """
    name, key = _split(text)
    with _reading(text), _opened(name) as stream:
        return numpy_array(stream, key, text)


def _split(text: str) -> tuple[str, str]:
    """Returns the path and the settings of a text; the name of a file may have a colon.

    The second text is an array's key behind the name of an archive (.npz).
    """
    archive, mark, key = text.partition(".npz:")
    if mark:
        return f"{archive}.npz", key
    name, colon, settings = text.rpartition(":")
    try:
        is_name = Path(text).exists()
    except (OSError, ValueError):
        is_name = False
    return (name, settings) if colon and not is_name else (text, "")


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turns errors of the file system into InputError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError("the file cannot be read", where=where, why=why) from error
    except ValueError as error:  # a name with a NUL
        raise InputError("the file cannot be read", where=where, why=str(error)) from error


def _read(port: ModulePort, text: str, embedded: Settings | None) -> Array:
    name, words = _split(text)
    with _reading(text), _opened(name) as stream:
        is_archive = name.endswith(".npz")
        settings = read_settings(words, text) if words and not is_archive else None
        kind = _kind(name, settings or Settings(), stream, text)
        if kind in ("numpy", "bin"):
            if settings is not None and settings.names() - {"format"}:
                raise InputError(
                    "settings are for pictures and sounds", where=text,
                    why="an array is taken as it is", hint="leave them out",
                )  # fmt: skip
            if kind == "bin":
                return raw_array(stream, port, text)
            return numpy_array(stream, words if is_archive else "", text)
        reader = picture if kind == "picture" else sound
        return reader(stream, port, settings or embedded or Settings(), text)


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name != STDIN:
        if Path(name).is_dir():
            raise InputError(
                "a folder is no input of one run", where=name,
                hint="name a file in it; tcc run runs the model for each file of a folder",
            )  # fmt: skip
        with Path(name).open("rb") as file:
            yield file
        return
    data = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"standard input has more than {MOST_BYTES} bytes")
    yield BytesIO(data)


def _kind(name: str, settings: Settings, stream: BinaryIO, where: str) -> str:
    """Returns the kind of a file: as set, else by its suffix, else by its first bytes."""
    kind = settings.format or _KIND_OF_SUFFIX.get(Path(name).suffix.lower())
    if kind:
        return kind
    head = stream.read(8)
    stream.seek(0)
    for kind, magics in _MAGICS.items():
        if head.startswith(magics):
            return kind
    raise InputError(
        "the kind of the file is unknown",
        where=where,
        why=f"its name has none of the suffixes {', '.join(_KIND_OF_SUFFIX)}",
        hint="name the kind, as in FILE:format=bin, numpy, picture or sound",
    )
