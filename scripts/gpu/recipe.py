"""How a weight section is made again from seeded arrays.  NumPy only.

`describe` knows nothing of the compiler: it looks for the bytes of each array, in any order of its
axes and in each float type, as a block, as panels of one axis, or as rows at equal distances (a
part of a merged matrix, or a padded one).  What it does not find is carried as it is, so that
`rebuild` gives the section back byte for byte whatever the compiler did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gpu.draws import Array, Draw, kept, stored, values

_LINE = 64  # the compiler places weights, and rows of large ones, on multiples of it
_HEAD = 8
_SMALLEST = 1024  # elements: smaller arrays are carried
_TYPES = ("f32", "bf16", "f16")
_WIDTHS = (128, 64, 32, 16)
# An array that begins in more places than this is no random one.
_MOST_PLACES = 16


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a section: the array `source` with its axes in the order `axes`, stored as `dtype`,
    in `rows` rows of equal length that begin `stride` bytes apart, the first at `offset`.

    With `panel` (an axis and a width) that axis was cut in two first: its panels, and the places
    within one.
    """

    source: str
    panel: tuple[int, int] | None
    axes: tuple[int, ...]
    dtype: str
    offset: int
    rows: int
    stride: int


@dataclass(frozen=True, slots=True)
class Rest:
    """The lines of a section that hold bytes of no part: a bit for each line, and their bytes."""

    size: int
    mask: bytes
    lines: bytes


def describe(section: Array, draws: Mapping[str, Draw]) -> tuple[tuple[Part, ...], Rest]:
    """The parts of `section` (bytes) that are arrays of `draws`, and all else."""
    heads = _Heads(section)
    parts = tuple(
        part
        for name, draw in draws.items()
        if prod(draw.shape) >= _SMALLEST and draw.spread > 0
        for part in _parts_of(name, values(draw), section, heads)
    )
    left = np.zeros(-(-section.size // _LINE) * _LINE, np.uint8)
    left[: section.size] = section
    for part in parts:
        shape = draws[part.source].shape
        _rows(left, part, prod(shape) * _item(part.dtype) // part.rows)[:] = 0
    lines = left.reshape(-1, _LINE)
    held = lines.any(1)
    return parts, Rest(section.size, np.packbits(held).tobytes(), lines[held].tobytes())


def rebuild(parts: tuple[Part, ...], rest: Rest, draws: Mapping[str, Draw]) -> Array:
    """The bytes of the section that `describe` was given."""
    count = -(-rest.size // _LINE)
    lines = np.zeros((count, _LINE), np.uint8)
    held = np.unpackbits(np.frombuffer(rest.mask, np.uint8), count=count).astype(bool)
    lines[held] = np.frombuffer(rest.lines, np.uint8).reshape(-1, _LINE)
    section = lines.reshape(-1)
    by_source: dict[str, list[Part]] = {}
    for part in parts:
        by_source.setdefault(part.source, []).append(part)
    for source, found in by_source.items():
        array = kept(draws[source])
        for part in found:
            flat = _bytes(_cut(stored(array, part.dtype), part.panel).transpose(part.axes))
            _rows(section, part, flat.size // part.rows)[:] = flat.reshape(part.rows, -1)
    return section[: rest.size]


class _Heads:
    """Where on the lines of a section eight given bytes are."""

    def __init__(self, section: Array) -> None:
        whole = section[: section.size // _LINE * _LINE]
        words = np.ascontiguousarray(whole.reshape(-1, _LINE)[:, :_HEAD]).view(np.uint64)[:, 0]
        self._order = np.argsort(words, kind="stable")
        self._sorted = words[self._order]

    def find(self, head: bytes) -> list[int]:
        word = np.frombuffer(head, np.uint64)[0]
        first, last = (int(np.searchsorted(self._sorted, word, s)) for s in ("left", "right"))
        return [int(i) * _LINE for i in self._order[first : min(last, first + _MOST_PLACES)]]


def _parts_of(name: str, array: Array, section: Array, heads: _Heads) -> Iterator[Part]:
    for dtype in _TYPES:
        bits = stored(array, dtype)
        count = _HEAD // bits.itemsize
        known: set[int] = set()
        for panel, axes in _orders(bits.shape):
            view = _cut(bits, panel).transpose(axes)
            places = set(heads.find(np.array(view.flat[:count]).tobytes())) - known
            flat = _bytes(view) if places else None
            for place in sorted(places):
                assert flat is not None
                found = _part_at(place, view.shape, flat, section, heads)
                if found is not None:
                    known.add(place)
                    yield Part(name, panel, axes, dtype, place, *found)


def _part_at(
    place: int, shape: tuple[int, ...], flat: Array, section: Array, heads: _Heads
) -> tuple[int, int] | None:
    """Rows and their distance, if the array begins at `place`."""
    if np.array_equal(section[place : place + flat.size], flat):
        return 1, flat.size
    for axis in range(1, len(shape)):
        rows = prod(shape[:axis])
        length = flat.size // rows
        if rows < 2 or length < _HEAD:
            continue
        for second in heads.find(flat[length : length + _HEAD].tobytes()):
            stride = second - place
            fits = stride > length and place + stride * (rows - 1) + length <= section.size
            part = Part("", None, (), "", place, rows, stride)
            if fits and np.array_equal(_rows(section, part, length), flat.reshape(rows, length)):
                return rows, stride
    return None


@cache
def _orders(shape: tuple[int, ...]) -> tuple[tuple[tuple[int, int] | None, tuple[int, ...]], ...]:
    """Panels and orders of axes that differ in memory: whole arrays first, axes of size one and
    the panels in front."""
    ones = tuple(i for i, size in enumerate(shape) if size == 1)
    others = [i for i, size in enumerate(shape) if size != 1]
    found: list[tuple[tuple[int, int] | None, tuple[int, ...]]]
    found = [(None, (*ones, *order)) for order in permutations(others)]
    for axis in others:
        for width in _WIDTHS:
            if shape[axis] % width == 0 and shape[axis] > width:
                # the panels' number takes the axis's place, what follows moves on by one
                rest = [i + (i >= axis) if i != axis else axis + 1 for i in others]
                front = (*(i + (i > axis) for i in ones), axis)
                found += [((axis, width), (*front, *order)) for order in permutations(rest)]
    return tuple(found)


def _cut(array: Array, panel: tuple[int, int] | None) -> Array:
    if panel is None:
        return array
    axis, width = panel
    return array.reshape(*array.shape[:axis], -1, width, *array.shape[axis + 1 :])


def _rows(section: Array, part: Part, length: int) -> Array:
    return as_strided(section[part.offset :], (part.rows, length), (part.stride, 1))


def _bytes(view: Array) -> Array:
    return np.ascontiguousarray(view).reshape(-1).view(np.uint8)


def _item(dtype: str) -> int:
    return 4 if dtype == "f32" else 2
