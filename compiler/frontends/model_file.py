"""Opens model files.  They are untrusted: only regular files are opened, and they are mapped, not
copied."""

import mmap
import os
import stat
from pathlib import Path

from tcc.errors import UserError
from tcc.frontends.place import placed


def map_file(path: Path, hint: str, largest: int | None = None) -> memoryview:
    """Maps a regular file of at least one byte and at most `largest` bytes.

    Raises `UserError`, with `hint`, for anything else.
    """
    with placed(str(path)):
        try:
            # Without O_NONBLOCK opening a pipe would wait for its other end.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise UserError(
                "the model cannot be read",
                why=getattr(error, "strerror", None) or str(error),
                hint="check the path",
            ) from error
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)  # os.fdopen refuses folders, so it cannot close one
            raise UserError("the model is not a file", hint=hint)
        with os.fdopen(descriptor, "rb") as file:
            if largest is not None and info.st_size > largest:
                raise UserError(
                    "the model file is too large",
                    why=f"{info.st_size} bytes; a protobuf ends at {largest}",
                    hint="save the model with its weights as external data",
                )
            if not info.st_size:
                raise UserError("the model file is empty", hint=hint)
            try:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except OSError as error:  # mmap refuses files that the system generates, as in /proc
                raise UserError(
                    "the model cannot be read",
                    why=error.strerror or str(error),
                    hint=hint,
                ) from error


def open_data(model: Path, location: str) -> int:
    """Opens the regular file at `location`, relative to the folder of `model`, and returns a
    descriptor.

    A symbolic link is followed if its target is below the folder of `model`.  If `model` is a link
    itself, a link may also lead to a file in the folder of the model's target: caches that name
    files by their contents lay models out in this way.  Other targets are refused, because links
    also occur in archives of strangers and could expose any file of the user.  A second name of a
    file (a hard link) could do the same.  It is accepted only if the model has several names
    itself, as after an installation from a package cache.

    As in ONNX Runtime, `.` and an empty name between slashes stand for the folder before them. `..`
    is refused even where it stays inside, because behind a link it may not.

    Raises ValueError, with a sentence, for anything else.
    """
    quoted = f"'{location[:200]}'"
    parts = location.split("/")
    absolute, folder_only = location.startswith("/"), parts[-1] in ("", ".")
    if absolute or folder_only or ".." in parts or not {"\0", "\\"}.isdisjoint(location):
        raise ValueError(f"location {location[:200]!r} is not a plain relative path")
    try:
        # O_PATH opens only a reference: devices and pipes are not touched, and the file cannot be
        # exchanged between this check and the reading.
        named = os.open(model.parent / location, os.O_PATH | os.O_CLOEXEC)
        try:
            info, descriptor_path = os.fstat(named), f"/proc/self/fd/{named}"
            target, model_target = Path(os.readlink(descriptor_path)), Path(os.path.realpath(model))
            folder = Path(os.path.realpath(model.parent))
            if not (target.is_relative_to(folder) or target.parent == model_target.parent):
                raise ValueError(
                    f"{quoted} is a link that leads out of the model's folder: {target}"
                )
            single = info.st_nlink == 1 or os.stat(model).st_nlink > 1
            if not stat.S_ISREG(info.st_mode) or not single:
                raise ValueError(f"{quoted} is not a regular file with one name")
            return os.open(descriptor_path, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(named)
    except OSError as error:
        raise ValueError(f"{quoted}: {error.strerror}") from error
