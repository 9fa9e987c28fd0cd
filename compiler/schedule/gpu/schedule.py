"""The schedule of a block kernel: what may be decided about a tile group on a GPU.

A unit makes one block of the parallel axes; loops that have one role in a stage are fused into one
axis, named by the loops' names joined by `+`.
"""

from tcc.errors import TccError
from tcc.record import record
from tcc.schedule.limits import TYPICAL_LIMITS, FusionLimits

# What the matrix units' rate of floats of a byte goes by, whichever they are.
FLOAT8_NAME = "f8"


class NotBlocks(TccError):
    """A group that is no block kernel: `what` says why."""


@record
class BlockSchedule:
    """How a group becomes a block kernel.

    `blocks`: positions of a block along an axis; an axis is named by its loops, outermost first,
    joined by `+`.  Loops in none of them go one element at a time.  `parallel`: the axes of the
    grid, outermost first; together they are the loops that all stages share.  `warps` of a unit
    and `stages` of loads in flight.
    """

    blocks: tuple[tuple[str, int], ...]
    parallel: tuple[str, ...]
    warps: int
    stages: int


@record
class BlockProfile:
    """What a device offers; the row of a large one by default.

    `processors` take units.  Each holds `registers` of 32 bits, `threads` lanes (`lanes` to a warp,
    each with `lane_registers` at most) and `shared_all` bytes of shared memory for the units on it,
    of which one may have `shared`.  `clock` is in cycles per second, `bandwidth` that of memory in
    bytes per second, `cache` the bytes of the last cache that all share.  `flops` is the rate of
    f32, `matrix` those of matrix units by the type of the operands; `matrix_warps` share one
    instruction of these.  `warpgroups`: kernels may give warps roles of their own.
    `limits` bound what becomes one kernel.
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


# A large device, for those who only want to see what a model becomes.
TYPICAL_DEVICE = BlockProfile()
