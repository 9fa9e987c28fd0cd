"""Block schedules for kernels in which two warpgroups multiply and one warp copies.

Each warpgroup has half of a tile's rows. The schedule has no price, because other prices do not
apply to it: its loads take no time of the multiplying lanes, and one warpgroup multiplies while the
other does not.
"""

from dataclasses import replace

from tcc.ir.tile.group import TileGroup
from tcc.ir.types import BF16, F16
from tcc.schedule.gpu.matmuls import main_matmul, matmul_schedules
from tcc.schedule.gpu.schedule import BlockProfile, BlockSchedule
from tcc.schedule.nest import contraction_factors, points

# Rows of a tile with two warpgroups, and the largest block of a streaming loop for which their
# registers hold the results.
_ROWS, _STEPS = 128, 128


def warpgroup_schedule(group: TileGroup, profile: BlockProfile) -> BlockSchedule | None:
    """Returns a schedule of two matmuls of f16 or bf16 along a streaming loop, if there are tiles
    for at least half of the processors; else None.

    Raises `NotBlocks` for rows that a tile must hold and cannot.
    """
    main = main_matmul(group)
    matmuls = [s for s in group.stages if s.reduce and contraction_factors(s) is not None]
    if group.stream is None or main is None or len(matmuls) != 2:
        return None
    if not all(any(n.dtype in (BF16, F16) for n in s.accesses) for s in matmuls):
        return None
    if points(group.common) < _ROWS * profile.processors // 2:
        return None
    best, longest = None, 0
    for schedule in matmul_schedules(group, main):
        blocks = dict(schedule.blocks)
        rows, steps = blocks.get(schedule.parallel[-1]), blocks.get(group.stream.loop.name, 0)
        if rows == _ROWS and longest < steps <= _STEPS:
            best, longest = replace(schedule, warps=8, stages=2), steps
    return best
