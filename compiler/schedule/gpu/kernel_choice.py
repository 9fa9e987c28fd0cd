"""The text of a GPU kernel's whole choice: its form and its schedule.

BlockKernel(loops=(64, 64, 32), form=Form(), schedule=BlockSchedule(
    blocks=((l0, 32), (l1, 64), (l2, 32)), parallel=(l0, l1), warps=4, stages=2))

Loops are named by position (`tcc.schedule.loop_positions`). The text may come from a file, so
`check` refuses a choice that does not fit a kernel.
"""

from tcc.frozen import frozen
from tcc.ir.tile.group import TileGroup
from tcc.schedule.alternatives import IMPOSSIBLE
from tcc.schedule.choice_text import read_object
from tcc.schedule.gpu.choose import ranked
from tcc.schedule.gpu.cost import BlockPricer
from tcc.schedule.gpu.schedule import BlockProfile, BlockSchedule
from tcc.schedule.limits import Form
from tcc.schedule.loop_positions import by_name, check_loops

# The positions of a block along an axis, the warps of a tile, and the steps of loads in flight:
# larger numbers fit no GPU.
_POSITIONS, _WARPS, _STAGES = 1 << 20, (1, 2, 4, 8, 16, 32), range(1, 9)


@frozen
class BlockKernel:
    """A kernel's form and schedule.

    `loops` has the extent of each loop by position; 0 is a symbolic extent.
    """

    loops: tuple[int, ...]
    form: Form
    schedule: BlockSchedule


def read_kernel(text: str) -> BlockKernel:
    """Returns the choice of a text; raises ValueError for a text of something else."""
    return read_object(text, BlockKernel, Form, BlockSchedule)


def schedule_of(kernel: BlockKernel, group: TileGroup, profile: BlockProfile) -> BlockSchedule:
    """Returns the schedule of a choice, with the loops of `group`.

    Raises ValueError if it does not fit the group, or takes more registers or shared memory than
    the device has.
    """
    check_loops(kernel.loops, group)
    schedule = by_name(kernel.schedule, group)
    grid = [name for axis in schedule.parallel for name in axis.split("+")]
    if sorted(grid) != sorted(v.name for v in group.common):
        raise ValueError("the axes of its grid are not the loops that all stages have")
    sizes = [size for _, size in schedule.blocks]
    if len(dict(schedule.blocks)) < len(sizes) or any(n < 2 or n & (n - 1) for n in sizes):
        raise ValueError(f"blocks are powers of two, each of another axis: {sizes}")
    if any(n > _POSITIONS for n in sizes):
        raise ValueError(f"a block has more than {_POSITIONS} positions")
    if schedule.warps not in _WARPS or schedule.stages not in _STAGES:
        raise ValueError(f"no tile has {schedule.warps} warps and {schedule.stages} stages")
    if (
        BlockPricer(group, profile).price(schedule).seconds == IMPOSSIBLE
        and ranked(group, profile)[0].price.seconds != IMPOSSIBLE
    ):
        raise ValueError("it takes more registers or shared memory than the device has")
    return schedule
