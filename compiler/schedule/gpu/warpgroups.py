"""Block schedules for kernels in which two warpgroups multiply and one warp copies.

Each warpgroup has half of a tile's rows. The schedule is chosen without a price, because `cost`
does not model two of its advantages: loads take no time of the lanes that multiply, and one
warpgroup multiplies while the other computes exponentials.
"""

from dataclasses import replace

from tcc.ir.tile.group import TileGroup
from tcc.ir.types import BF16, F16
from tcc.schedule.gpu.matmuls import main_matmul, matmul_schedules
from tcc.schedule.gpu.schedule import BlockProfile, BlockSchedule
from tcc.schedule.nest import contracts, points

# _ROWS: rows of a tile with two warpgroups. _STEPS: the largest block of a streaming loop whose
# results fit their registers.
_ROWS, _STEPS = 128, 128


def warpgroup_schedule(group: TileGroup, profile: BlockProfile) -> BlockSchedule | None:
    """Returns a schedule for two matmuls of f16 or bf16 in a streaming loop; None for other groups.

    Returns None also if there are fewer tiles than half of the processors. Raises `NotBlocks` if a
    tile would have to hold rows that are longer than a block.
    """
    main = main_matmul(group)
    matmuls = [s for s in group.stages if s.reduce and contracts(s)]
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
