"""Describes a weight section by seeded arrays, and rebuilds it from them; needs only NumPy.

`describe` knows nothing about the compiler. It looks for the bytes of each array, in any order of
its axes and in each float type. An array may lie in the section as a block, as panels of one axis,
or as rows at equal distances (a part of a merged matrix, or a padded matrix). Bytes that it cannot
explain are kept unchanged. So `rebuild` returns the section byte for byte, whatever layout the
compiler chooses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gpu.draws import Array, ArrayDraw, bits_of, cached_values, values

_LINE = 64  # bytes to which the compiler aligns weights, and the rows of large weights
_HEAD = 8
_SMALLEST = 1024  # elements; a smaller array is stored as bytes, not as a seed
_TYPES = ("f32", "bf16", "f16")
_WIDTHS = (128, 64, 32, 16)
# Only this many lines with an array's first bytes are tried: a random array has few of them.
_MOST_PLACES = 16


@dataclass(frozen=True, slots=True)
class SectionPart:
    """Bytes of a section that hold an array.

    The array is the draw named `source`, transposed to the order `axes` and converted to `dtype`.
    Its bytes are cut into `rows` rows of equal length. Row r begins at byte `offset` + r * `stride`
    of the section. `panel` is None or (axis, width): then this axis is first split into
    (panel, position in the panel), and `axes` orders the axes after the split.
    """

    source: str
    panel: tuple[int, int] | None
    axes: tuple[int, ...]
    dtype: str
    offset: int
    rows: int
    stride: int


@dataclass(frozen=True, slots=True)
class SectionRemainder:
    """The bytes of a section that no part explains.

    The section is cut into lines of `_LINE` bytes. `mask` has a bit for each line: 1 if the line
    has unexplained bytes. `lines` has the contents of the lines whose bit is 1. `size` is the
    section's size in bytes.
    """

    size: int
    mask: bytes
    lines: bytes


def describe(
    section: Array, draws: Mapping[str, ArrayDraw]
) -> tuple[tuple[SectionPart, ...], SectionRemainder]:
    """Returns (the parts of a weight section that hold arrays of `draws`, the remaining bytes).

    `section` has the bytes of the section. `draws` describes random arrays, by name.
    """
    heads = _Heads(section)
    parts = tuple(
        part
        for name, draw in draws.items()
        if prod(draw.shape) >= _SMALLEST and draw.spread > 0
        for part in _parts_of(name, values(draw), section, heads)
    )
    unexplained = np.zeros(-(-section.size // _LINE) * _LINE, np.uint8)
    unexplained[: section.size] = section
    for part in parts:
        shape = draws[part.source].shape
        _rows(unexplained, part, prod(shape) * _item(part.dtype) // part.rows)[:] = 0
    lines = unexplained.reshape(-1, _LINE)
    nonzero = lines.any(1)
    return parts, SectionRemainder(
        section.size, np.packbits(nonzero).tobytes(), lines[nonzero].tobytes()
    )


def rebuild(
    parts: tuple[SectionPart, ...], remainder: SectionRemainder, draws: Mapping[str, ArrayDraw]
) -> Array:
    """Returns the bytes of the section that `describe` described."""
    count = -(-remainder.size // _LINE)
    lines = np.zeros((count, _LINE), np.uint8)
    nonzero = np.unpackbits(np.frombuffer(remainder.mask, np.uint8), count=count).astype(bool)
    lines[nonzero] = np.frombuffer(remainder.lines, np.uint8).reshape(-1, _LINE)
    section = lines.reshape(-1)
    by_source: dict[str, list[SectionPart]] = {}
    for part in parts:
        by_source.setdefault(part.source, []).append(part)
    for source, source_parts in by_source.items():
        array = cached_values(draws[source])
        for part in source_parts:
            flat = _bytes(_cut(bits_of(array, part.dtype), part.panel).transpose(part.axes))
            _rows(section, part, flat.size // part.rows)[:] = flat.reshape(part.rows, -1)
    return section[: remainder.size]


class _Heads:
    """An index of a section: finds the lines that begin with given eight bytes."""

    def __init__(self, section: Array) -> None:
        lines = section[: section.size // _LINE * _LINE]
        words = np.ascontiguousarray(lines.reshape(-1, _LINE)[:, :_HEAD]).view(np.uint64)[:, 0]
        self._order = np.argsort(words, kind="stable")
        self._sorted = words[self._order]

    def find(self, head: bytes) -> list[int]:
        word = np.frombuffer(head, np.uint64)[0]
        first, last = (int(np.searchsorted(self._sorted, word, s)) for s in ("left", "right"))
        return [int(i) * _LINE for i in self._order[first : min(last, first + _MOST_PLACES)]]


def _parts_of(name: str, array: Array, section: Array, heads: _Heads) -> Iterator[SectionPart]:
    """Yields the parts of `section` that hold the array.

    Tries all types of _TYPES, all orders of axes and all panels. `name` becomes the parts' source.
    """
    for dtype in _TYPES:
        bits = bits_of(array, dtype)
        count = _HEAD // bits.itemsize
        part_places: set[int] = set()
        for panel, axes in _orders(bits.shape):
            view = _cut(bits, panel).transpose(axes)
            places = set(heads.find(np.array(view.flat[:count]).tobytes())) - part_places
            flat = _bytes(view) if places else None
            for place in sorted(places):
                assert flat is not None
                rows_and_stride = _part_at(place, view.shape, flat, section, heads)
                if rows_and_stride is not None:
                    part_places.add(place)
                    yield SectionPart(name, panel, axes, dtype, place, *rows_and_stride)


def _part_at(
    place: int, shape: tuple[int, ...], flat: Array, section: Array, heads: _Heads
) -> tuple[int, int] | None:
    """Returns (number of rows, their stride in bytes) if `section` holds the array at `place`.

    `shape` is the array's shape and `flat` its bytes. Rows may have gaps between them. Returns None
    if the array is not there.
    """
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
            part = SectionPart("", None, (), "", place, rows, stride)
            if fits and np.array_equal(_rows(section, part, length), flat.reshape(rows, length)):
                return rows, stride
    return None


@cache
def _orders(shape: tuple[int, ...]) -> tuple[tuple[tuple[int, int] | None, tuple[int, ...]], ...]:
    """Returns all pairs (panel, order of axes) that give different layouts in memory.

    Pairs with the panel None come first. In an order, axes of size one and the axis that counts the
    panels come first, because other positions of them give no other layout or are not used.
    """
    unit_axes = tuple(i for i, size in enumerate(shape) if size == 1)
    axes = [i for i, size in enumerate(shape) if size != 1]
    orders: list[tuple[tuple[int, int] | None, tuple[int, ...]]]
    orders = [(None, (*unit_axes, *order)) for order in permutations(axes)]
    for axis in axes:
        for width in _WIDTHS:
            if shape[axis] % width == 0 and shape[axis] > width:
                # The split replaces axis `axis` by `axis` (which counts panels) and `axis` + 1
                # (positions in a panel); the numbers of later axes grow by one.
                inner_axes = [i + (i >= axis) if i != axis else axis + 1 for i in axes]
                front = (*(i + (i > axis) for i in unit_axes), axis)
                orders += [((axis, width), (*front, *order)) for order in permutations(inner_axes)]
    return tuple(orders)


def _cut(array: Array, panel: tuple[int, int] | None) -> Array:
    if panel is None:
        return array
    axis, width = panel
    return array.reshape(*array.shape[:axis], -1, width, *array.shape[axis + 1 :])


def _rows(section: Array, part: SectionPart, length: int) -> Array:
    return as_strided(section[part.offset :], (part.rows, length), (part.stride, 1))


def _bytes(view: Array) -> Array:
    return np.ascontiguousarray(view).reshape(-1).view(np.uint8)


def _item(dtype: str) -> int:
    return 4 if dtype == "f32" else 2
