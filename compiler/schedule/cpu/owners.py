"""The owners of memory: the core whose cache holds the elements of a buffer, and the time in which
other cores read them.

    y[i, j] of 128 x 768 f32, tiles along i divided between two threads    period 393,216 bytes
    the same, tiles along j                                                 period 3,072 bytes

The runtime gives each thread a contiguous range of a grid's tiles, the same at every launch
(`runtime/src/threads.c`). So the outermost loop with several tiles divides a buffer into periods,
and thread t owns the t-th of N equal parts of each period.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, inf, prod

from tcc.ir.index import as_int
from tcc.ir.tile.group import TileGroup
from tcc.schedule.alternatives import Seconds
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.grain import least_units
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.work import global_touches
from tcc.schedule.footprint import Touch
from tcc.schedule.limits import FusionLimits
from tcc.schedule.nest import contracts, trips
from tcc.zipped import zip_equal


class ThreadTiles:
    """The tiles of a group as the threads of a machine share them."""

    def __init__(
        self, group: TileGroup, schedule: Schedule, pricer: Pricer, limits: FusionLimits
    ) -> None:
        self.group, self.schedule, self.pricer = group, schedule, pricer
        grid = [v for name in schedule.parallel for v in group.common if v.name == name]
        counts = [ceil(trips(v) / schedule.tile_size(v.name)) for v in grid]
        least_count = as_int(least_units(group, schedule, limits)) or 1
        self.threads = max(1, min(pricer.machine.cores, prod(counts) // least_count))
        self.loop = next((v for v, n in zip_equal(grid, counts) if n > 1), None)

    def period(self, touch: Touch) -> float:
        """Returns the bytes of a period of a buffer; 0 if one thread touches all of it. Infinity
        stands for a buffer that every thread touches, and for irregular parts."""
        if self.threads == 1 or self.loop is None:
            return 0.0
        return (touch.step(self.loop) or inf) * touch.size * trips(self.loop)

    def result_periods(self) -> dict[int, float]:
        """Returns the period of each result, by the number of its buffer."""
        return {number: self.period(t) for number, t in self._touches(store=True).items()}

    def seconds(self, periods: Mapping[int, float | None]) -> Seconds:
        """Returns the price of a launch if operand n was written in periods of `periods[n]` bytes.

        Nothing is known about other operands. The mean thread's lines of other cores count, as far
        as the second-level caches still hold them.
        """
        machine, foreign_bytes = self.pricer.machine, 0.0
        spans = {v: trips(v) for stage in self.group.stages for v in stage.loops}
        for number, touch in self._touches(store=False).items():
            writer, reader = periods.get(number), self.period(touch)
            if writer is not None and writer != reader:
                bytes_ = touch.reach(spans)
                # Each period of one division has parts of all threads of the other.
                share = 1 - min(reader, writer) / max(reader, writer)
                share *= 1 - machine.l2.lost(int(bytes_ / machine.cores))
                foreign_bytes += share * bytes_ / (1 if reader == inf else self.threads)
        price = self.pricer.price(self.group, self.schedule, single_core=self.threads == 1)
        foreign_bytes *= 1 - 1 / machine.cores
        return price.seconds + Seconds(foreign_bytes / (machine.foreign * machine.hertz))

    def _touches(self, *, store: bool) -> dict[int, Touch]:
        """Returns the touch of each operand, or of each result if `store`, by its buffer's
        number."""
        group = self.group
        touches = (t for n, s in enumerate(group.stages) for t in global_touches(group, n, s))
        return {number: touch for number, touch in touches if touch.store is store}


def other_grids(group: TileGroup, schedule: Schedule) -> list[Schedule]:
    """Returns the schedule with a grid of one loop, for each common loop, and with one tile.

    A tile has a register block along the loop. There are no other grids if sizes are symbolic, if
    nests exchange values in scratch, or if sums of products have weights that are packed for the
    grid.
    """
    if group.sizes or len(schedule.nests) > 1 or any(map(contracts, group.stages)):
        return []
    blocks = ((v.name, schedule.nests[0].block(v.name)) for v in group.common)
    one_tile = replace(schedule, parallel=(), tile_sizes=())
    return [
        one_tile,
        *(replace(schedule, parallel=(name,), tile_sizes=((name, n),)) for name, n in blocks),
    ]
