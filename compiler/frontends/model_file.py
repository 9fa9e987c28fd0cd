"""Opens model files, which are hostile: regular files only, mapped and never copied."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from tcc.errors import UserError


def map_file(path: Path, hint: str, largest: int | None = None) -> memoryview:
    """The bytes of a regular file of at least one byte and at most `largest`.

    Raises `UserError`, with `hint`, for whatever else lies there.
    """
    try:
        # Without O_NONBLOCK opening a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UserError(
            "the model cannot be read",
            where=str(path),
            why=getattr(error, "strerror", None) or str(error),
            hint="check the path",
        ) from error
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)  # Python would not take a folder's descriptor as a file
        raise UserError("the model is not a file", where=str(path), hint=hint)
    with os.fdopen(descriptor, "rb") as file:
        if largest is not None and info.st_size > largest:
            raise UserError(
                "the model file is too large",
                where=str(path),
                why=f"{info.st_size} bytes; a protobuf ends at {largest}",
                hint="save the model with its weights as external data",
            )
        if not info.st_size:
            raise UserError("the model file is empty", where=str(path), hint=hint)
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:  # files of the system's that are made up as they are read
            raise UserError(
                "the model cannot be read",
                where=str(path),
                why=error.strerror or str(error),
                hint=hint,
            ) from error
