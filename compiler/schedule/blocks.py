"""The schedule of a block kernel: what may be decided about a tile group on a GPU.

A unit makes one block of the parallel axes; loops that have one role in a stage are fused into one
axis, named by the loops' names joined by `+`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tcc.errors import TccError


class NotBlocks(TccError):
    """A group that is no block kernel: `what` says why."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class BlockProfile:
    """What a device offers: `processors` that take units, of which each holds `registers` of 32
    bits for all its warps of `lanes`."""

    processors: int = 132
    registers: int = 1 << 16
    lanes: int = 32


# A large device, for those who only want to see what a model becomes.
TYPICAL_DEVICE = BlockProfile()
