"""Finds the library of a file, whatever else was loaded from its path before.

The dynamic linker takes a library it has for the one asked for where the path is spelled alike, or
where device and inode are the same; it does not ask whether the file changed.  So a file that came
to a path by renaming is opened under a spelling not used yet, and one that was overwritten in place
is opened as a copy.
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
from typing import Any

SIDE_SUFFIX = ".weights"

# ELF's numbers for the machines that there is code for.
_MACHINES = {62: "x86_64", 183: "aarch64"}

# The end of an artifact holds the hash of its weights: clocks of file systems tick every few
# milliseconds.
_END = 64

_Inode = tuple[int, int]
_Stamp = tuple[int, int, bytes]
_File = tuple[_Inode, _Stamp]


def foreign_machine(path: Path) -> str:
    """That the library at `path` is for another machine, as a sentence; empty where it is not."""
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
    """A library of this process.  It stays loaded until the process ends, as all artifacts do.

    It was read from the file `path`.  `overwritten` is set once that is seen to hold something
    else: the weights it maps are then not its own any more.
    """

    library: ctypes.CDLL
    path: Path
    file: _File
    overwritten: bool = False

    def is_at_path(self) -> bool:
        """Whether the file at `path` is the one it was read from; OSError if there is none."""
        return _look_at(self.path) == self.file


@dataclass(frozen=True, slots=True)
class _Images:
    """Libraries by inode, size, time and end of their file; those that the linker knows by inode.

    `spellings` counts how often each path was spelled anew; `placed` has the path of what was
    written by `place`, by its hash.
    """

    loaded: dict[_File, Image] = field(default_factory=dict)
    mapped: dict[_Inode, Image] = field(default_factory=dict)
    spellings: dict[Path, int] = field(default_factory=dict)
    placed: dict[bytes, Path] = field(default_factory=dict)
    lock: Any = field(default_factory=RLock)


_IMAGES = _Images()
# So that a forked child finds the tables whole, and nobody in them whom it does not have.
os.register_at_fork(
    before=_IMAGES.lock.acquire,
    after_in_parent=_IMAGES.lock.release,
    after_in_child=_IMAGES.lock.release,
)


def open_image(path: Path) -> Image:
    """The library of the file that is at `path`, which is absolute, now.

    Raises OSError where the file cannot be read or loaded, and ValueError for a path with a NUL.
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
            # Another file may have come to the path meanwhile.
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
    """Opens the file under a spelling of its path that nobody has used."""
    count = _IMAGES.spellings.get(path, 0) + 1
    _IMAGES.spellings[path] = count
    library = ctypes.CDLL(os.path.join(path.parent, *(["."] * count), path.name))
    return Image(library, path, file)


def place(path: Path, file: _File, contents: Mapping[str, bytes]) -> Path:
    """A path of an artifact that this or another process read from `path`, where it was `file`.

    It is `path` where that holds the same file still, so that processes share its weights; else
    one of `contents` (by suffix), which stays until the process ends.  Raises OSError where those
    cannot be written.
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
    return Image(ctypes.CDLL(str(copy)), copy, _look_at(copy))


def _folder() -> Path:
    """A new folder that is gone once this process ends; its forks leave it alone."""
    folder = Path(tempfile.gettempdir(), f"tcc-{token_hex(8)}")
    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)  # before a signal can come
    folder.mkdir(0o700)
    return folder
