"""Opens model files, which are hostile: regular files only, mapped and never copied."""

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


def open_data(model: Path, location: str) -> int:
    """A descriptor of the regular file at `location`, relative to the folder of `model`.

    Links are followed where the file they lead to lies below that folder, or, where `model` is a
    link itself, right beside the file that it leads to: so caches lay models out whose files are
    named by their contents.  Links are found in archives of strangers too, and could bring in any
    file of the user's.  So could a second name of a file (a hard link), which is taken only where
    the model has several names itself, as what package managers install from a cache.

    As in ONNX Runtime, `.` and an empty name between slashes stand for the folder before them.
    `..` is refused also where it leads nowhere else: through a link it could.

    Raises ValueError, with a sentence, for anything else.
    """
    shown = f"'{location[:200]}'"
    parts = location.split("/")
    absolute, folder_only = location.startswith("/"), parts[-1] in ("", ".")
    if absolute or folder_only or ".." in parts or not {"\0", "\\"}.isdisjoint(location):
        raise ValueError(f"location {location[:200]!r} is not a plain relative path")
    try:
        # What O_PATH opens is only named: no device or pipe notices, and nobody can exchange it
        # between the look at it and the reading.
        named = os.open(model.parent / location, os.O_PATH | os.O_CLOEXEC)
        try:
            info, way = os.fstat(named), f"/proc/self/fd/{named}"
            found, own = Path(os.readlink(way)), Path(os.path.realpath(model))
            folder = Path(os.path.realpath(model.parent))
            if not (found.is_relative_to(folder) or found.parent == own.parent):
                raise ValueError(f"{shown} is a link that leads out of the model's folder: {found}")
            single = info.st_nlink == 1 or os.stat(model).st_nlink > 1
            if not stat.S_ISREG(info.st_mode) or not single:
                raise ValueError(f"{shown} is not a regular file with one name")
            return os.open(way, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(named)
    except OSError as error:
        raise ValueError(f"{shown}: {error.strerror}") from error
