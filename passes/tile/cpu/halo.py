"""Stores the fill value around the rows of a stage that a tile computes (a strip).

    # # # # #        row -1, before the first row of the stage: only the fill value #
    # a a a #        row 0: the elements a, with the fill value before and after them
    # a a a #        row 1

Later stages read the strip through a sliding window, which reaches beyond the ends of rows and
beyond the first and the last row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field
from math import prod

from tcc.frozen import entity
from tcc.ir.expr.scalar import Scalar
from tcc.ir.index import Index, Var, as_int, const, maximum, minimum
from tcc.ir.tile import Block, Compute, Store, lanes
from tcc.ir.tile.group import Strip, TileGroup
from tcc.passes.tile.cpu.ranges import Regions, TileRange, tiles
from tcc.passes.tile.cpu.scratch import Resident
from tcc.passes.tile.emitter import StatementEmitter

# The most elements of one store: four vectors of f32 on the machine with the widest vectors.
_BLOCK = 64


def strip_regions(group: TileGroup, regions: Regions) -> dict[Var, TileRange]:
    """Returns for the row loop of each strip the range of rows that a tile computes.

    `regions` has the tile's part of each common loop.  The range may begin before the first row of
    the loop and end after its last, because later stages read there.
    """
    row_regions: dict[Var, TileRange] = {}
    for stage in group.stages:
        strip = stage.strip
        if strip is None or strip.rows is strip.loop:
            continue
        tile = regions[strip.loop]
        size = as_int(tile.size)
        assert size is not None
        base = tile.base * strip.scale + strip.low
        row_regions[strip.rows] = TileRange(strip.rows, base, const(strip.count(size)))
    return row_regions


@entity
class Edges:
    """Stores the fill value of a stage's component at the positions outside of its rows that later
    stages read."""

    resident: Resident
    strip: Strip
    regions: Regions
    emitter: StatementEmitter
    fills: dict[int, Block] = field(default_factory=dict)

    def store(self, value: Scalar) -> None:
        """Stores `value`, the fill value, around the rows."""
        # Lanes of the vector loop are neighbours in memory, so all of them are filled at once.
        lanes_of = {
            v: self.regions[v].base for v, step in self.resident.steps if step < self.resident.inner
        }
        outer_loops = [v for v, _ in self.resident.steps if v not in lanes_of]
        with self.emitter.body() as stores:
            self._fill_common(outer_loops, lanes_of)
        self.emitter.add(*(Compute(b, value, ()) for b in self.fills.values()), *stores)

    def _fill_common(self, loops: list[Var], mapping: Mapping[Var, Index]) -> None:
        """Fills around the rows at each point of `loops`.

        `loops` are common loops along which the scratch has an axis.  `mapping` has the positions
        along all common loops outside of `loops`.
        """
        if not loops:
            self._rows(mapping)
            return
        for span in tiles(self.emitter, self.regions[loops[0]], 1, False):
            self._fill_common(loops[1:], {**mapping, span.var: span.base})

    def _rows(self, mapping: Mapping[Var, Index]) -> None:
        strip = self.strip
        region, line = self.regions[strip.rows], strip.width * self.resident.inner
        extent = const(0) if strip.rows.extent is None else strip.rows.extent
        first = minimum(region.size, maximum(0, -region.base))
        last = maximum(0, minimum(region.size, extent - region.base))
        start = self.resident.offset(mapping, region.base * strip.width, self.regions)
        for row in self._each(region.size, const(0), first):
            self._segment(start + row * line, line)
        for row in self._each(region.size, const(0), region.size):
            self._gaps(strip.row, start + row * line)
        for row in self._each(region.size, last, region.size):
            self._segment(start + row * line, line)

    def _gaps(self, axes: tuple[tuple[int, int, int], ...], place: Index) -> None:
        """Fills before and after the elements of the row that begins at `place`.

        `axes` has for each axis of a row: (padding before, elements, padding after).
        """
        if not any(before or after for before, _, after in axes):
            return
        (before, size, after), *inner_axes = axes
        inner = prod(sum(axis) for axis in inner_axes) * self.resident.inner
        self._segment(place, before * inner)
        self._segment(place + (before + size) * inner, after * inner)
        for n in self._each(const(size), const(0), const(size)):
            self._gaps(tuple(inner_axes), place + (n + before) * inner)

    def _segment(self, place: Index, size: int) -> None:
        """Fills `size` consecutive elements from `place` on."""
        full_size, remainder = size - size % _BLOCK, size % _BLOCK
        if full_size == _BLOCK:
            self._store(place, _BLOCK)
        elif full_size:
            offset = self.emitter.counter(const(full_size))
            with self.emitter.loop(offset, const(0), const(full_size), _BLOCK):
                self._store(place + offset, _BLOCK)
        if remainder:
            self._store(place + full_size, remainder)

    def _store(self, place: Index, count: int) -> None:
        shape, buffer = (count,), self.resident.buffer
        if count not in self.fills:
            self.fills[count] = self.emitter.fresh(buffer.dtype, shape)
        self.emitter.add(Store(buffer, (place + lanes(shape)[0],), self.fills[count]))

    def _each(self, size: Index, start: Index, stop: Index) -> Iterator[Index]:
        if start is not stop:
            at = self.emitter.counter(size)
            with self.emitter.loop(at, start, stop):
                yield at
