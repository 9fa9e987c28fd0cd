"""Loads the library that is now at a path, even if another file was loaded from that path before.

If the spelling of the path is that of a loaded library, or if the file has the device and inode of
a loaded one, the dynamic linker returns that library; it does not check if the file changed. So a
file that was renamed to the path is opened under a new spelling of the path. A file that was
overwritten in place is opened as a copy.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import RLock
from time import perf_counter
from typing import Any

from tcc.runtime.sections import SIDE_SUFFIX

# The numbers that ELF gives to the supported machines.
_MACHINES = {62: "x86_64", 183: "aarch64"}

# This many bytes at the end of an artifact identify it; they contain the hash of its weights. Times
# alone do not tell files apart, because the clocks of file systems tick every few milliseconds.
_END = 64

_Inode = tuple[int, int]
_Stamp = tuple[int, int, bytes]
_File = tuple[_Inode, _Stamp]


def foreign_machine(path: Path) -> str:
    """Returns a sentence if the library at `path` is for another machine, else ""."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except (OSError, ValueError):
        return ""
    name = _MACHINES.get(int.from_bytes(head[18:20], "little"), "")
    here = platform.machine()
    if head[:4] != b"\x7fELF" or not name or name == here:
        return ""
    return f"it is for {name}, and this machine is {here}"


@dataclass(slots=True)
class Image:
    """A library that was loaded from the file `path` and stays loaded until the process ends.

    `seconds` is the time in which the dynamic linker loaded it. `overwritten` is set when the file
    turns out to have changed in place: the mapped weights are then wrong.
    """

    library: ctypes.CDLL
    path: Path
    file: _File
    seconds: float
    overwritten: bool = False

    def is_at_path(self) -> bool:
        """True if `path` still holds the loaded file; raises OSError if there is no file."""
        return _look_at(self.path) == self.file


@dataclass(frozen=True, slots=True)
class _Images:
    """The libraries that this process has loaded.

    `loaded` maps the inode, size, time and last bytes of a file to its library. `mapped` maps an
    inode to the library that the dynamic linker returns for it. `spellings` counts the spellings of
    each path that were used. `placed` maps a hash of an artifact to the copy that `place` wrote.
    """

    loaded: dict[_File, Image] = field(default_factory=dict)
    mapped: dict[_Inode, Image] = field(default_factory=dict)
    spellings: dict[Path, int] = field(default_factory=dict)
    placed: dict[bytes, Path] = field(default_factory=dict)
    lock: Any = field(default_factory=RLock)


_IMAGES = _Images()
# The thread that forks takes the lock first. So the child finds the tables consistent, and no
# thread that exists only in the parent holds the child's lock.
os.register_at_fork(
    before=_IMAGES.lock.acquire,
    after_in_parent=_IMAGES.lock.release,
    after_in_child=_IMAGES.lock.release,
)


def open_image(path: Path) -> Image:
    """Returns the library in the file that is now at the absolute `path`.

    Raises OSError if the file cannot be read or loaded, and ValueError if the path contains a NUL.
    """
    with _IMAGES.lock:
        while True:
            inode, _ = key = _look_at(path)
            if key in _IMAGES.loaded:
                return _IMAGES.loaded[key]
            older = _IMAGES.mapped.get(inode)
            if older is not None:
                older.overwritten = True
            image = _open_anew(path, key) if older is None else _open_copy(path)
            # Load again if another file came to the path meanwhile.
            if _look_at(path) == key:
                _IMAGES.mapped.setdefault(inode, image)
                _IMAGES.loaded[key] = image
                return image


def _look_at(path: Path) -> _File:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        file.seek(max(0, status.st_size - _END))
        stamp = status.st_size, status.st_mtime_ns, file.read(_END)
    return (status.st_dev, status.st_ino), stamp


def _open_anew(path: Path, file: _File) -> Image:
    """Loads the file under a new spelling of its path, and returns the library."""
    count = _IMAGES.spellings.get(path, 0) + 1
    _IMAGES.spellings[path] = count
    return _loaded(os.path.join(path.parent, *(["."] * count), path.name), path, file)


def _loaded(spelling: str, path: Path, file: _File) -> Image:
    begin = perf_counter()
    library = ctypes.CDLL(spelling)
    return Image(library, path, file, perf_counter() - begin)


def place(path: Path, file: _File, contents: Mapping[str, bytes]) -> Path:
    """Returns a path that holds an artifact as it was when a process read it from `path`.

    `file` identifies the artifact that was read. If `path` still holds it, `path` is returned, so
    that processes share the weights. Otherwise the artifact was replaced, and a copy is written
    from `contents`, which has the bytes of each file by its suffix. The copy stays until this
    process ends. Raises OSError if the copy cannot be written.
    """
    with _IMAGES.lock:
        try:
            if _look_at(path) == file:
                return path
        except OSError:
            pass
        parts = (
            part for suffix in sorted(contents) for part in (suffix.encode(), contents[suffix])
        )
        key = _hash_of(parts)
        if key not in _IMAGES.placed:
            target = _folder() / path.name
            for suffix, data in contents.items():
                Path(f"{target}{suffix}").write_bytes(data)
            _IMAGES.placed[key] = target
        return _IMAGES.placed[key]


def _hash_of(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _open_copy(path: Path) -> Image:
    folder = _folder()
    for suffix in ("", SIDE_SUFFIX):
        source = Path(f"{path}{suffix}")
        if not suffix or source.exists():
            shutil.copyfile(source, folder / source.name)
    copy = folder / path.name
    return _loaded(str(copy), copy, _look_at(copy))


def _folder() -> Path:
    """Creates and returns a folder that this process, but not its forks, removes when it ends."""
    folder = Path(tempfile.gettempdir(), f"tcc-{token_hex(8)}")
    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)  # before `mkdir`, so that a signal cannot leave a folder behind
    folder.mkdir(0o700)
    return folder
