"""Reads the headers and sections of a 64-bit little-endian ELF file, which may be hostile."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

HEADER_BYTES = 64
MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_EXECUTED = 4  # the flag of a section with machine code
_OBJECT = 1  # the type of an object file
# The largest size in bytes of the names of sections, because a file may claim any size.
MOST_NAMES = 1 << 20
_CHUNK = 1 << 22


class ElfError(ValueError):
    """A file that is no such ELF file, or is damaged; the message says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an ELF file.

    `segments` is the offset of the table of segments, which has `segment_count` entries. `sections`
    is the offset of the table of sections, which has `count` entries of `entry` bytes. `names` is
    the index of the section with the sections' names.
    """

    segments: int
    sections: int
    segment_count: int
    entry: int
    count: int
    names: int

    @property
    def size(self) -> int:
        """The bytes of the file, because linkers put the table of sections last."""
        return self.sections + self.entry * self.count


def read_header(file: BinaryIO) -> Header:
    """Returns the header at the start of a file; raises ElfError for a file of another format."""
    file.seek(0)
    start = file.read(HEADER_BYTES)
    if len(start) < HEADER_BYTES:
        raise ElfError("it is too short for an ELF file")
    values = _HEADER.unpack(start)
    ident, kind, *_, segments, sections, _, _, _, segment_count = values[:11]
    if ident[:6] != MAGIC + b"\x02\x01":
        raise ElfError("it is not a 64-bit little-endian ELF file")
    if kind == _OBJECT:
        raise ElfError("it is an object file, for a program to link")
    header = Header(segments, sections, segment_count, *values[11:])
    if header.entry != _SECTION.size or header.names >= header.count:
        raise ElfError("it has no section table")
    return header


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Returns `size` bytes at `offset`; raises ElfError if the file ends before them."""
    if offset < 0 or size < 0 or offset + size > file.seek(0, 2):
        raise ElfError("the file is cut short")
    file.seek(offset)
    return file.read(size)


def hash_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Returns the SHA-256 of `size` bytes at `offset`, or of fewer at the end of the file."""
    digest = hashlib.sha256()
    file.seek(offset)
    while size and (chunk := file.read(min(size, _CHUNK))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.digest()


def code_bytes(file: BinaryIO) -> int:
    """Returns the bytes of machine code in a file; raises ElfError for a damaged file."""
    return sum(row[5] for row in _sections(file, read_header(file)) if row[2] & _EXECUTED)


def read_section(file: BinaryIO, name: str, limit: int) -> bytes | None:
    """Returns the bytes of the section `name`; None without such a section.

    Raises ElfError for a damaged file, and for a section of more than `limit` bytes.
    """
    header = read_header(file)
    sections = _sections(file, header)
    start, size = sections[header.names][4:6]
    if size > MOST_NAMES:
        raise ElfError("its sections have too many names")
    names = read_at(file, start, size)
    for start, _, _, _, offset, size, *_ in sections:
        if names.startswith(f"{name}\0".encode(), start):
            if size > limit:
                raise ElfError(f"its section {name} is too large")
            return read_at(file, offset, size)
    return None


def _sections(file: BinaryIO, header: Header) -> Sequence[tuple[int, ...]]:
    return [*_SECTION.iter_unpack(read_at(file, header.sections, header.entry * header.count))]
