"""The space of a kernel's schedules, with which prices are checked.

a matmul of 384 rows    panels x K-blocks x tiles of rows x order of tiles x prefetch
                        1,440 schedules
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeAlias

from tcc.ir.tile.group import TileGroup
from tcc.schedule.cpu.candidate_space import DIMENSIONS
from tcc.schedule.cpu.candidates import Knob, measured_knobs_of
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.cpu.schedule import Schedule

# A kernel's group and schedule under knobs.
Scheduled: TypeAlias = Callable[[Knobs], tuple[TileGroup, Schedule]]


def space(scheduled: Scheduled) -> list[tuple[TileGroup, Schedule]]:
    """Returns all schedules of a kernel to draw from.

    For each combination of knobs, these are the schedule with those knobs and its variants (see
    `around`). Equal kernels have their schedules in the same order.
    """
    knobs = measured_knobs_of(scheduled(Knobs())[0])
    schedules: dict[tuple[int, Schedule], tuple[TileGroup, Schedule]] = {}
    for combination in _combinations(knobs):
        group, schedule = scheduled(combination)
        for variant in around(group, schedule):
            schedules.setdefault((id(group), variant), (group, variant))
    return list(schedules.values())


def _combinations(knobs: Sequence[Knob]) -> Iterator[Knobs]:
    """Yields all combinations of the knobs' settings, then each setting that stands alone."""
    combined = [knob for knob in knobs if not knob.alone]
    settings = ((getattr(Knobs(), k.name), *k.settings) for k in combined)
    for values in product(*settings):
        yield replace(Knobs(), **dict(zip((k.name for k in combined), values, strict=True)))
    for knob in knobs:
        yield from knob.variants(Knobs()) if knob.alone else ()


def around(group: TileGroup, schedule: Schedule) -> Iterator[Schedule]:
    """Yields `schedule` itself, then its variants.

    A variant has other sizes of tiles, of the streaming loop's blocks or of rows of register
    blocks, another order of tiles, no prefetches, or several of these.
    """
    variants = [schedule]
    for dimension in DIMENSIONS:
        variants = [other for variant in variants for other in dimension(group, variant)]
    yield from variants
