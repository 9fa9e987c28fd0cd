"""The schedules around a kernel's schedule, which measuring tries.

A dimension is a function from a schedule to that schedule and its variants, which differ from it in
one respect. All variants have the vector loops of the schedule, because constants are packed for
these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product
from math import ceil
from typing import TypeAlias

from tcc.ir.tile.group import TileGroup
from tcc.schedule.cpu.candidates import Knob
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.nest import is_open, trips
from tcc.zipped import zip_equal

# Variants of a schedule multiply its tile sizes by a factor of UNITS, the block of its streaming
# loop by a factor of STREAM, and the rows of its register blocks by a factor of ROWS. ROWS has no
# factor above 1, because there are few registers.
UNITS, STREAM, ROWS = (1, 4, 2, 0.5, 0.25), (1, 2, 0.5), (1, 0.5)

Dimension: TypeAlias = Callable[[TileGroup, Schedule], list[Schedule]]


def knobs_beside(knobs: Knobs, kernel_knobs: Sequence[Knob]) -> list[Knobs]:
    """Returns `knobs` with one knob at another setting, for each knob and setting.

    The default is a setting too.
    """
    variants = []
    for knob in kernel_knobs:
        default = getattr(Knobs(), knob.name)
        for setting in (default, *knob.settings):
            base = Knobs() if knob.alone and setting != default else knobs
            variants.append(replace(base, **{knob.name: setting}))
    return [other for other in dict.fromkeys(variants) if other != knobs]


def beside(group: TileGroup, schedule: Schedule) -> list[Schedule]:
    """Returns the variants of `schedule` that differ from it in one dimension."""
    variants = (other for dimension in DIMENSIONS for other in dimension(group, schedule))
    return [other for other in dict.fromkeys(variants) if other != schedule]


# ---- dimensions ---------------------------------------------------------------------------------


def _tile_sizes(group: TileGroup, schedule: Schedule) -> list[Schedule]:
    """Varies the tile sizes along the loops of the grid that no vectors run along."""
    counts = _counts(group)
    vectors = {nest.vector for nest in schedule.nests}
    free = [n for n in schedule.parallel if n not in vectors and counts[n] > 1]
    scaled = (_scaled(schedule.tile_size(n), counts[n], UNITS) for n in free)
    variants = [schedule]
    for sizes in product(*scaled):
        named = {**dict(schedule.tile_sizes), **dict(zip_equal(free, sizes))}
        if named == dict(schedule.tile_sizes):
            continue  # it has the same sizes, perhaps in another order
        tile_sizes = tuple((n, named[n]) for n in counts if named.get(n, 1) > 1)
        variants.append(replace(schedule, tile_sizes=tile_sizes))
    return variants


def _orders(group: TileGroup, schedule: Schedule) -> list[Schedule]:
    """Permutes the loops of the grid that have several tiles.

    The remaining loops keep their positions.
    """
    counts = _counts(group)
    several = [n for n in schedule.parallel if ceil(counts[n] / schedule.tile_size(n)) > 1]
    variants = []
    for order in permutations(several):
        remaining = iter(order)
        loops = (next(remaining) if n in several else n for n in schedule.parallel)
        variants.append(replace(schedule, parallel=tuple(loops)))
    return variants


def _rows(group: TileGroup, schedule: Schedule) -> list[Schedule]:
    """Varies the rows of all register blocks."""
    scaled = (tuple(_scaled_rows(group, nest, scale) for nest in schedule.nests) for scale in ROWS)
    return [replace(schedule, nests=nests) for nests in dict.fromkeys(scaled)]


def _scaled_rows(group: TileGroup, nest: Nest, scale: float) -> Nest:
    rows = {v.name for n in nest.stages for v in group.stages[n].iters} - {nest.vector}
    blocks = ((n, max(1, int(size * (scale if n in rows else 1)))) for n, size in nest.blocks)
    return replace(nest, blocks=tuple((n, size) for n, size in blocks if size > 1))


def _prefetches(group: TileGroup, schedule: Schedule) -> list[Schedule]:
    """Leaves out all prefetches."""
    without = tuple(replace(nest, ahead=0) for nest in schedule.nests)
    return [replace(schedule, nests=nests) for nests in dict.fromkeys((schedule.nests, without))]


def _streams(group: TileGroup, schedule: Schedule) -> list[Schedule]:
    """Varies the block of the streaming loop, if that loop has a known size."""
    if group.stream is None or is_open(group.stream.loop):
        return [schedule]
    sizes = _scaled(schedule.stream_block, trips(group.stream.loop), STREAM)
    return [replace(schedule, stream_block=size) for size in sizes]


# A dimension whose variants depend on other fields comes after those that set them.
DIMENSIONS: tuple[Dimension, ...] = (_tile_sizes, _orders, _rows, _prefetches, _streams)


def _counts(group: TileGroup) -> Mapping[str, int]:
    return {v.name: trips(v) for v in group.common}


def _scaled(size: int, limit: int, scales: Sequence[float]) -> list[int]:
    """Returns `size`, then its multiples by `scales`, clamped to [1, limit]."""
    return list(dict.fromkeys(min(max(int(size * scale), 1), limit) for scale in scales))
