"""The weight section of an artifact: the weights of all variants, then their GPU kernels.

It follows the ELF image, or is a separate file. runtime/src/weights.c defines its trailer.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from tcc.frozen import frozen
from tcc.passes.layout.weights import WeightPart
from tcc.runtime.sections import TRAILER, TRAILER_MAGIC, TRAILER_VERSION

# An array stands for the bytes of its elements in row-major order. A part of a weight table is made
# when its bytes are needed, so that no second copy of the weights is in memory.
BytesLike: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, Any] | WeightPart

# The size of a huge page in bytes. Weights that are at least as large start at a multiple of it.
_HUGE_PAGE = 2 << 20
_PAGE = 64 << 10
_LINE = 64


@frozen
class Range:
    """A range of bytes in the section."""

    offset: int
    size: int


@frozen
class Section:
    """The contents of the section.

    The file `data` has its `size` bytes, with the hash `sha256`. `weights` and `images` have the
    ranges of what was laid out.
    """

    data: Path
    size: int
    sha256: bytes
    weights: tuple[Range, ...]
    images: tuple[Range, ...]


def lay_out(data: Path, weights: Sequence[Sequence[BytesLike]], images: Sequence[bytes]) -> Section:
    """Writes the `weights` of all variants' ranks and the `images` of the variants to the file
    `data`; equal weights or images are stored once.

    Weights start at a page, large weights at a huge page, images at a cache line.
    """
    with data.open("wb") as file:
        writer = _Writer(file)
        # with one variant there is nothing to compare, so no hashes are needed
        several = len(weights) > 1
        weight_ranges = tuple(writer.place(parts, several=several) for parts in weights)
        image_ranges = tuple(writer.place([table] if table else [], line=True) for table in images)
    return Section(data, writer.size, writer.digest.digest(), weight_ranges, image_ranges)


class _Writer:
    """Appends data to the file of a section, with padding for alignment."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.digest = hashlib.sha256()
        self._known: dict[bytes, Range] = {}

    def place(
        self, parts: Sequence[BytesLike], *, several: bool = True, line: bool = False
    ) -> Range:
        """Returns the range of `parts` in the section; appends them if equal data is not there yet.

        With `several` False there is nothing to compare with, so no hash of the data is computed.
        With `line`, data that is appended starts at a cache line instead of a page.
        """
        size = byte_count(parts)
        if size == 0:
            return Range(0, 0)
        end, digest, key = self.size, self.digest.copy(), hashlib.sha256()
        alignment = _LINE if line else _HUGE_PAGE if size >= _HUGE_PAGE else _PAGE
        self._append(bytes(-end % alignment))
        start = self.size
        for part in parts:
            view = _bytes_of(part)
            self._append(view)
            if several:
                key.update(view)
        place = self._known.setdefault(key.digest(), Range(start, size))
        if place.offset != start:  # equal data precedes, so this data goes
            self._file.truncate(self._file.seek(end))
            self.size, self.digest = end, digest
        return place

    def _append(self, data: bytes | memoryview) -> None:
        self.digest.update(data)
        self.size += self._file.write(data)


def byte_count(parts: Sequence[BytesLike]) -> int:
    """Returns the number of bytes of all parts together."""
    return sum(p.size if isinstance(p, WeightPart) else _bytes_of(p).nbytes for p in parts)


def _bytes_of(part: BytesLike) -> memoryview:
    part = part() if isinstance(part, WeightPart) else part
    if isinstance(part, np.ndarray):
        return part.reshape(-1).view(np.uint8).data
    return memoryview(part).cast("B")


def append_section(path: Path, section: Section) -> None:
    """Appends padding, the section and its trailer to the file, or nothing if the section is
    empty."""
    if section.size == 0:
        return
    with path.open("ab") as file:
        alignment = _HUGE_PAGE if section.size >= _HUGE_PAGE else _PAGE
        offset = (file.tell() + alignment - 1) // alignment * alignment
        file.truncate(offset)
        file.seek(offset)
        with section.data.open("rb") as data:
            copyfileobj(data, file, _HUGE_PAGE)
        trailer = (TRAILER_MAGIC, TRAILER_VERSION, offset, section.size, section.sha256)
        file.write(TRAILER.pack(*trailer))
