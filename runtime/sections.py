"""The ELF sections of an artifact, read from the file without loading its code.

The file may be untrusted: every offset and size is checked before it is used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

# The sections of the manifest, and of each variant's program and kernels' needs: the number of the
# variant follows, and a zero byte stands behind the content.
MANIFEST_SECTION, PROGRAM_SECTION, NEEDS_SECTION = ".tcc.manifest", ".tcc.program", ".tcc.needs"
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_EXECUTED = 4  # the flag of a section with machine code
# The largest size in bytes of the names of sections, because a hostile file may claim any size.
_MOST_NAMES = 1 << 20


class NotAnArtifact(ValueError):
    """The file is no artifact, or is damaged; the message says why."""


@dataclass(frozen=True, slots=True)
class ElfHeader:
    """The header of an ELF file.

    `table` is the offset of the table of sections, which has `count` entries of `entry` bytes.
    `names` is the index of the section with the sections' names.
    """

    table: int
    entry: int
    count: int
    names: int

    @property
    def end(self) -> int:
        """Returns the size of the image: linkers put the table of sections last."""
        return self.table + self.entry * self.count


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Returns `size` bytes at `offset`; raises NotAnArtifact if the file is shorter."""
    if offset < 0 or size < 0 or offset + size > file.seek(0, 2):
        raise NotAnArtifact("the file is cut short")
    file.seek(offset)
    return file.read(size)


def read_header(file: BinaryIO) -> ElfHeader:
    """Returns the header of an ELF64 little-endian file; raises NotAnArtifact for other files."""
    if file.seek(0, 2) < _ELF_HEADER.size:
        raise NotAnArtifact("it is too short for an ELF file")
    head = _ELF_HEADER.unpack(read_at(file, 0, _ELF_HEADER.size))
    if head[0][:6] != b"\x7fELF\x02\x01":
        raise NotAnArtifact("it is not a 64-bit little-endian ELF file")
    header = ElfHeader(head[6], *head[11:])
    if header.entry != _SECTION.size or header.names >= header.count:
        raise NotAnArtifact("it has no section table")
    return header


def code_size(file: BinaryIO) -> int:
    """Returns the bytes of machine code in all sections.

    Raises NotAnArtifact for a damaged file.
    """
    rows = _SECTION.iter_unpack(_table(file, read_header(file)))
    return sum(row[5] for row in rows if row[2] & _EXECUTED)


def read_section(file: BinaryIO, name: str, limit: int) -> bytes | None:
    """Returns the bytes of the section `name`, or None if the file has no such section.

    Raises NotAnArtifact for a damaged file, and for a section of more than `limit` bytes.
    """
    header = read_header(file)
    sections = list(_SECTION.iter_unpack(_table(file, header)))
    start, size = sections[header.names][4:6]
    if size > _MOST_NAMES:
        raise NotAnArtifact("its sections have too many names")
    names = read_at(file, start, size)
    for start, *_, offset, size, _, _, _, _ in sections:
        if names.startswith(f"{name}\0".encode(), start):
            if size > limit:
                raise NotAnArtifact(f"its section {name} is too large")
            return read_at(file, offset, size)
    return None


def _table(file: BinaryIO, header: ElfHeader) -> bytes:
    return read_at(file, header.table, header.entry * header.count)
