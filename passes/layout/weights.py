"""Builds the weight section: every constant, once in each layout that a kernel reads.

Packing a weight puts its elements in the order of a layout.  In all layouts that tcc chooses,
each storage dimension is the index i of an axis, or i // n or i % n for a number n.  Then packing
is a reshape and a transpose.  For any other layout, each element is stored by its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from tcc.errors import InternalError
from tcc.frozen import entity, frozen
from tcc.ir.graph import ConstantStore, Handle, Value
from tcc.ir.index import Index, Quotient, Remainder, as_int, evaluate, sole_atom, var_of
from tcc.ir.layout import Layout
from tcc.ir.narrow import bf16_bits, encode
from tcc.ir.op import Array
from tcc.ir.types import BF16, DType, element_count
from tcc.known import all_known
from tcc.zipped import zip_equal

# The alignment in bytes of weights in the section: _ALIGN, a vector, or _PAGE for weights of at
# least _LARGE bytes. Kernels prefetch a line of each of several pages in turn
# (`tcc.passes.tile.cpu.prefetch`), and hardware prefetchers stop at the end of a page. Streams that
# begin in the middle of a page are read 8 to 12 % slower.
_ALIGN = 64
_PAGE = 4096
_LARGE = 1 << 16


@frozen
class Rounded:
    """A constant that is stored in fewer bits than in the model.

    `sources`: names of the source model's constants from which it was computed, if known.
    `type`: `bf16`, `f16`, `int8` or `int4`.
    `operands`: the type to which the tensors multiplied with it are rounded; empty if none is.
    `moved`: True if it only holds elements of its sources; False if it was computed from them.
    """

    sources: tuple[str, ...]
    type: str
    operands: str
    moved: bool


@frozen
class _Entry:
    handle: Handle
    layout: Layout
    dtype: DType


@entity
class WeightPart:
    """A part of a weight section of `size` bytes; a call makes it, as an array of bytes."""

    size: int
    make: Callable[[], Array]

    def __call__(self) -> Array:
        return self.make()


class WeightTable:
    """Assigns offsets in the weight section to constants.

    `rounded`: the model's constants that are stored with less precision.  `types`: the stored types
    of the weights of contractions, if less than f32 is requested.  `size`: bytes of the section.
    """

    def __init__(self, store: ConstantStore) -> None:
        self._store = store
        self.rounded: dict[Rounded, None] = {}
        self.types: dict[Value, str] = {}
        self._offsets: dict[_Entry, int] = {}
        self.size = 0

    def place(self, handle: Handle, dtype: DType, layout: Layout) -> tuple[int, int]:
        """Returns the offset and the size in bytes of a constant in `layout`."""
        entry = _Entry(handle, layout, dtype)
        size = _count(layout) * dtype.bytes
        if entry not in self._offsets:
            align = _PAGE if size >= _LARGE else _ALIGN
            self._offsets[entry] = -(-self.size // align) * align
            self.size = -(-(self._offsets[entry] + size) // _ALIGN) * _ALIGN
        return self._offsets[entry], size

    def adopt(self, other: WeightTable) -> dict[int, int]:
        """Adds the constants of `other`.

        Returns a map from the offsets in `other` to the offsets in this table.
        """
        offsets: dict[int, int] = {}
        for entry, offset in other._offsets.items():
            self._store.adopt(entry.handle, other._store)
            here, size = self.place(entry.handle, entry.dtype, entry.layout)
            if size or offset not in offsets:
                offsets[offset] = here
        self.rounded.update(other.rounded)
        return offsets

    def same_as(self, other: WeightTable) -> bool:
        """Returns True if both tables hold the same constants in the same layouts at the same
        offsets."""
        return list(self._offsets.items()) == list(other._offsets.items())

    @property
    def ranks(self) -> int:
        """Returns the number of ranks whose sections differ; 1 where all ranks have one."""
        return max((self._store.ranks(e.handle) for e in self._offsets), default=1)

    def parts(self, rank: int = 0) -> Iterator[WeightPart]:
        """Yields the parts of a rank's section, in order.

        The sections of all ranks have the same offsets and size.

        A part is a weight, or the zeros between two weights.  They are separate, because appending
        the zeros to a weight would copy it.
        """
        ends = [*self._offsets.values(), self.size][1:]
        for (entry, start), end in zip_equal(self._offsets.items(), ends):
            size = _count(entry.layout) * entry.dtype.bytes
            yield WeightPart(size, partial(self._bytes, entry, rank))
            padding = end - start - size
            if padding:
                yield WeightPart(padding, partial(np.zeros, padding, np.uint8))

    def _bytes(self, entry: _Entry, rank: int) -> Array:
        array = self._store.on_rank(entry.handle, rank)
        return stored_bytes(pack(array, entry.layout), entry.dtype)


def stored_bytes(array: Array, dtype: DType) -> Array:
    """Returns the bytes in which `array` is stored, in memory order, with elements of type `dtype`.

    A bf16 is the upper 16 bits of an f32.  An element of a narrow type is one byte with its code.
    """
    if dtype.is_narrow:
        return encode(array, dtype).reshape(-1)
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype is BF16:
        flat = bf16_bits(flat)
    return flat.view(np.uint8)


def _count(layout: Layout) -> int:
    number = as_int(element_count(layout.sizes))
    if number is None:
        raise InternalError("a constant's layout has a symbolic size")
    return number


def pack(array: Array, layout: Layout) -> Array:
    """Returns `array` in storage order, as an array of shape `layout.sizes`."""
    sizes = tuple(as_int(s) or 0 for s in layout.sizes)
    quick = _by_reshaping(array, layout, sizes)
    return _by_indexing(array, layout, sizes) if quick is None else quick


def _by_indexing(array: Array, layout: Layout, sizes: tuple[int, ...]) -> Array:
    grid: Any = np.indices(array.shape, sparse=True)
    env: dict[str, Any] = {var.name: g for var, g in zip_equal(layout.axes, grid)}
    at = tuple(np.asarray(evaluate(index, env)) for index in layout.indices)
    out = np.full(sizes, layout.fill or 0, array.dtype)
    out[at] = array
    return out


def _by_reshaping(array: Array, layout: Layout, sizes: tuple[int, ...]) -> Array | None:
    """Returns `array` in storage order, by padding, reshaping and transposing it.

    None if a storage dimension is neither an axis, nor the quotient or remainder of an axis.
    """
    pieces = all_known(_piece(index, layout) for index in layout.indices)
    divisors = {axis: by for axis, _, by in pieces or ()}
    # Each axis becomes an axis of quotients and an axis of remainders. A divisor of 1 gives an axis
    # of remainders of length 1.
    cuts = [
        (-(-size // divisors.get(n, 1)), divisors.get(n, 1)) for n, size in enumerate(array.shape)
    ]
    expected = [(n, part, by) for n, (_, by) in enumerate(cuts) for part in range(1 + (by > 1))]
    if pieces is None or sorted(pieces) != expected:
        return None
    widths = [(0, count * by - size) for size, (count, by) in zip_equal(array.shape, cuts)]
    if np.any(widths):
        array = np.pad(array, widths, constant_values=layout.fill or 0)
    order = [2 * axis + part for axis, part, _ in pieces]
    order += [n for n in range(2 * array.ndim) if n not in order]
    packed = array.reshape([n for cut in cuts for n in cut]).transpose(order)
    fits = packed.shape[: len(sizes)] == sizes
    return np.ascontiguousarray(packed.reshape(sizes)) if fits else None


def _piece(index: Index, layout: Layout) -> tuple[int, int, int] | None:
    """Returns (axis, part, divisor) of a storage index; None if it has another form.

    `part` is 0 for the quotient of the axis by `divisor`, and 1 for the remainder.
    """
    var, atom = var_of(index), None if index.const else sole_atom(index)
    if var in layout.axes:
        return layout.axes.index(var), 0, 1
    if isinstance(atom, Quotient | Remainder):
        inner, by = var_of(atom.num), as_int(atom.den)
        if inner in layout.axes and by is not None:
            return layout.axes.index(inner), int(isinstance(atom, Remainder)), by
    return None
