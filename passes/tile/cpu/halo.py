"""Strips of rows: which rows of a stage a unit makes, and what lies around them in scratch.

fills  # # # # #        rows before the first of the loop, and after its last
       # a a a #        rows of the stage, with what later windows see beside them
       # a a a #
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Protocol

from tcc.ir.expr.scalar import literal
from tcc.ir.index import Index, Var, as_int, const, free_vars, maximum, minimum
from tcc.ir.tile import Block, Compute, Loop, Stmt, Stmts, Store, lanes
from tcc.ir.tile.group import Strip, TileGroup
from tcc.ir.types import DType
from tcc.passes.tile.cpu.ranges import BlockRange, Regions, TileRange, tiles
from tcc.passes.tile.cpu.scratch import Held
from tcc.record import record

# Elements of a store: four vectors of f32 on the widest machine.
_BLOCK = 64


def strip_regions(group: TileGroup, regions: Regions) -> dict[Var, TileRange]:
    """The rows of each strip that a unit covering `regions` of the common loops makes.

    They may begin before the loop's first row and end after its last."""
    found: dict[Var, TileRange] = {}
    for stage in group.stages:
        strip = stage.strip
        if strip is None or strip.rows is strip.loop:
            continue
        unit = regions[strip.loop]
        size = as_int(unit.size)
        assert size is not None
        base = unit.base * strip.scale + strip.low
        found[strip.rows] = TileRange(strip.rows, base, const(strip.count(size)))
    return found


class Makes(Protocol):
    """Names for what a kernel defines: see `tcc.passes.tile.cpu.lower`."""

    def block(self, dtype: DType, shape: tuple[int, ...]) -> Block: ...

    def counter(self, size: Index) -> Index: ...


@record
class Edges:
    """Stores the fill of one component of a stage wherever later stages look beyond its rows."""

    held: Held
    component: int
    regions: Regions
    names: Makes

    def run(self, dtype: DType) -> Stmts:
        """The stores; none where nobody looks."""
        strip = self.held.strip
        assert strip is not None
        fill = strip.fills[self.component]
        if fill is None:
            return []
        value = literal(fill, dtype)
        made: dict[int, Block] = {}

        def block(size: int) -> Block:
            if size not in made:
                made[size] = self.names.block(dtype, (size,))
            return made[size]

        # Lanes of the vector loop lie side by side: all of them are filled at once.
        lanes_of = {
            v: self.regions[v].base for v, step in self.held.steps if step < self.held.inner
        }
        others = [v for v, _ in self.held.steps if v not in lanes_of]
        stores = self._units(others, lanes_of, strip, block)
        return [*(Compute(b, value, ()) for b in made.values()), *stores]

    def _units(
        self,
        loops: list[Var],
        mapping: Mapping[Var, Index],
        strip: Strip,
        block: Callable[[int], Block],
    ) -> Stmts:
        """For each element of the common loops that the scratch has an axis for."""
        if not loops:
            return self._rows(mapping, strip, block)

        def emit(span: BlockRange) -> Stmts:
            return self._units(loops[1:], {**mapping, span.var: span.base}, strip, block)

        return tiles(self.regions[loops[0]], 1, False, self.names.counter, emit)

    def _rows(
        self, mapping: Mapping[Var, Index], strip: Strip, block: Callable[[int], Block]
    ) -> Stmts:
        region, width = self.regions[strip.rows], strip.width
        line = width * self.held.inner
        extent = const(0) if strip.rows.extent is None else strip.rows.extent
        first = minimum(region.size, maximum(0, -region.base))
        last = maximum(0, minimum(region.size, extent - region.base))

        start = self.held.offset(mapping, region.base * width, self.regions)

        def at(place: Index) -> Index:
            return start + place

        def outside(row: Index) -> Stmts:
            return self._segment(row * line, line, at, block)

        def beside(row: Index) -> Stmts:
            return self._gaps(strip.row, row * line, at, block)

        return [
            *self._loop(region.size, const(0), first, outside),
            *self._loop(region.size, const(0), region.size, beside),
            *self._loop(region.size, last, region.size, outside),
        ]

    def _gaps(
        self,
        axes: tuple[tuple[int, int, int], ...],
        place: Index,
        at: Callable[[Index], Index],
        block: Callable[[int], Block],
    ) -> Stmts:
        """What is before and after the elements of a row, axis by axis."""
        if not any(before or after for before, _, after in axes):
            return []
        (before, size, after), *rest = axes
        inner = prod(sum(axis) for axis in rest) * self.held.inner
        return [
            *self._segment(place, before * inner, at, block),
            *self._segment(place + (before + size) * inner, after * inner, at, block),
            *self._loop(
                const(size),
                const(0),
                const(size),
                lambda n: self._gaps(tuple(rest), place + (n + before) * inner, at, block),
            ),
        ]

    def _segment(
        self,
        place: Index,
        size: int,
        at: Callable[[Index], Index],
        block: Callable[[int], Block],
    ) -> Stmts:
        """Stores to `size` elements one after the other."""

        def store(start: Index, count: int) -> Stmt:
            made = block(count)
            return Store(self.held.buffer, (at(start + lanes((count,))[0]),), made)

        whole, left = size - size % _BLOCK, size % _BLOCK
        stmts: Stmts = []
        if whole == _BLOCK:
            stmts.append(store(place, _BLOCK))
        elif whole:
            counter = self.names.counter(const(whole))
            (var,) = free_vars(counter)
            body = (store(place + counter, _BLOCK),)
            stmts.append(Loop(var, const(0), const(whole), _BLOCK, (), (), body, (), ()))
        if left:
            stmts.append(store(place + whole, left))
        return stmts

    def _loop(
        self, size: Index, start: Index, stop: Index, emit: Callable[[Index], Stmts]
    ) -> Stmts:
        if start is stop:
            return []
        counter = self.names.counter(size)
        (var,) = free_vars(counter)
        body = tuple(emit(counter))
        return [Loop(var, start, stop, 1, (), (), body, (), ())] if body else []
