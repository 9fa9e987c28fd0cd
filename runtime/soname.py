"""The SONAME of an artifact: the file name under which linked programs load it."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
from pathlib import Path

from tcc.runtime.elf import read_header
from tcc.runtime.sections import SEAL

# The longest file name that Linux allows; the link step reserves this many bytes.
ROOM = 255
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2  # types of ELF segments
_STRINGS, _SONAME = 5, 14  # tags of entries in the dynamic segment


def set_soname(path: Path, name: str) -> None:
    """Makes `name` the SONAME of the sealed artifact at `path`, and seals it again.

    An artifact without a SONAME, from an older tcc, stays unchanged. Raises OSError if the file
    cannot be read or written, and ValueError if the name has more than 255 bytes.
    """
    text = os.fsencode(name)
    if len(text) > ROOM:
        raise ValueError(f"the file name has more than {ROOM} bytes")
    with path.open("r+b") as file:
        header = read_header(file)
        image = bytearray(header.size)
        file.seek(0)
        file.readinto(image)
        place = _soname_place(bytes(image), header.segments, header.segment_count)
        if place is None:
            return
        image[place : place + ROOM] = text.ljust(ROOM, b"\0")
        file.seek(0)
        file.write(image)
        magic, size, _ = SEAL.unpack(file.read(SEAL.size))
        file.seek(len(image))
        file.write(SEAL.pack(magic, size, hashlib.sha256(image).digest()))


def _soname_place(image: bytes, table: int, count: int) -> int | None:
    """Returns the offset of the SONAME in the file, or None if there is none."""
    segments: list[tuple[int, ...]] = [
        _SEGMENT.unpack_from(image, table + n * _SEGMENT.size) for n in range(count)
    ]
    start, size = next((s[2], s[5]) for s in segments if s[0] == _DYNAMIC)
    tags: dict[int, int] = dict(_ENTRY.iter_unpack(image[start : start + size]))
    if _SONAME not in tags:
        return None
    address = tags[_STRINGS] + tags[_SONAME]
    loads = (s for s in segments if s[0] == _LOAD)
    return next(address - s[3] + s[2] for s in loads if s[3] <= address < s[3] + s[5])


def copy_file(source: Path, target: Path, soname: str = "") -> None:
    """Copies a file to a temporary name in the target's folder, then renames the copy.

    With `soname`, the copied library gets that SONAME.
    """
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".tcc-", delete=False) as file:
        temporary = Path(file.name)
    try:
        shutil.copyfile(source, temporary)
        if soname:
            set_soname(temporary, soname)
        shutil.copymode(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
