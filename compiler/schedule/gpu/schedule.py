"""The schedule of a block kernel: the decisions about a tile group on a GPU.

A tile computes one block of the parallel axes. Loops that have one role in a stage are fused into
one axis, named by the loops' names joined by `+`.
"""

from tcc.errors import TccError
from tcc.frozen import frozen
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits

# The name under which the rates of matrix units list 8-bit floats, whatever their format.
FLOAT8_NAME = "f8"


class NotBlocks(TccError):
    """A group that cannot be a block kernel; `what` says why."""


@frozen
class BlockSchedule:
    """How a group becomes a block kernel.

    `blocks`: pairs of an axis and the positions of a block along it. An axis is named by its loops,
    outermost first, joined by `+`. Loops without a block advance one element at a time. `parallel`:
    the axes of the grid, outermost first; together they are the loops that all stages share. A tile
    has `warps` warps, and `stages` steps of loads in flight.
    """

    blocks: tuple[tuple[str, int], ...]
    parallel: tuple[str, ...]
    warps: int
    stages: int


@frozen
class BlockProfile:
    """The resources of a device; by default those of a large one.

    There are `processors`, which run tiles. A processor holds `registers` of 32 bits, `threads`
    lanes, and `shared_all` bytes of shared memory for its tiles. A warp has `lanes` lanes, each
    with at most `lane_registers` registers. One tile may have `shared` bytes of shared memory.

    `clock` is in cycles a second, `bandwidth` of memory in bytes a second, `cache` the bytes of the
    last cache that all processors share. `flops` is the rate of f32 in flops a second. `matrix` has
    the same rate of matrix units by the operands' type; `matrix_warps` warps execute one matrix
    instruction together.

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
    warpgroups: bool = False
    limits: FusionLimits = TYPICAL_LIMITS


# A large device, for callers without one.
TYPICAL_DEVICE = BlockProfile()
