"""The schedule of a block kernel: the decisions about a tile group on a GPU.

A tile computes one block of the parallel axes. Loops with the same role in a stage are merged into
one axis. Its name is the loops' names joined by `+`.
"""

from tcc.errors import TccError
from tcc.frozen import frozen
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits

# The name of all formats of 8-bit floats in `BlockProfile.matrix`.
FLOAT8_NAME = "f8"


class NotBlocks(TccError):
    """The error for a group that cannot be a block kernel; `what` says why."""


@frozen
class BlockSchedule:
    """How a group becomes a block kernel.

    `blocks`: pairs of an axis and the positions of a block along it. The name of an axis has its
    loops, outermost first, joined by `+`. A loop without a block advances one element at a time.
    `parallel`: the axes of the grid, outermost first; their loops are the loops that all stages
    share. `warps`: warps of a tile. `stages`: the number of steps whose loads are in flight at
    once.
    """

    blocks: tuple[tuple[str, int], ...]
    parallel: tuple[str, ...]
    warps: int
    stages: int


@frozen
class BlockProfile:
    """The resources of a device; by default those of a large device.

    Its `processors` run tiles. A processor has `registers` of 32 bits, `threads` lanes, and
    `shared_all` bytes of shared memory for all its tiles. A warp has `lanes` lanes, each with at
    most `lane_registers` registers. A single tile may have `shared` bytes of shared memory.

    `clock`: cycles a second. `bandwidth`: bytes a second of memory. `cache`: bytes of the last
    cache, which all processors share. `flops`: f32 operations a second of the lanes. `matrix`:
    operations a second of matrix units, by the operands' type. `matrix_warps`: the warps that
    execute one matrix instruction together. `terms`: the operand types of which matrix units read
    only neighbouring terms of a sum.

    `warpgroups`: kernels may give warps different roles. `limits` bound what becomes one kernel.
    """

    processors: int = 132
    registers: int = 1 << 16
    lanes: int = 32
    lane_registers: int = 255
    threads: int = 2048
    shared: int = 232448
    shared_all: int = 228 << 10
    cache: int = 50 << 20
    clock: float = 1.98e9
    bandwidth: float = 4.8e12
    flops: float = 67e12
    matrix: tuple[tuple[str, float], ...] = (
        ("bf16", 989.5e12), ("f16", 989.5e12), ("i8", 1979e12), ("f8", 1979e12)
    )  # fmt: skip
    matrix_warps: int = 4
    terms: tuple[str, ...] = ("i8", FLOAT8_NAME)
    warpgroups: bool = False
    limits: FusionLimits = TYPICAL_LIMITS


# The profile of a large device, for callers without a device.
TYPICAL_DEVICE = BlockProfile()
