"""Chooses a block schedule for a tile group by price."""

from collections.abc import Iterable
from math import inf

from tcc.frozen import frozen
from tcc.ir.tile.group import TileGroup
from tcc.schedule.alternatives import Alternative, in_order
from tcc.schedule.gpu.candidates import candidates, varied
from tcc.schedule.gpu.cost import BlockPrice, BlockPricer
from tcc.schedule.gpu.schedule import TYPICAL_DEVICE, BlockProfile, BlockSchedule
from tcc.schedule.gpu.warpgroups import warpgroup_schedule

# The number of cheapest cuts of the loops for which other warps and stages are tried.
_VARIED = 3


@frozen
class BlockChoice:
    """A schedule and its price."""

    schedule: BlockSchedule
    price: BlockPrice


def choose_blocks(group: TileGroup, profile: BlockProfile = TYPICAL_DEVICE) -> BlockSchedule:
    """Returns the cheapest schedule for `group`, or the one for warpgroups if there is one.

    Raises `NotBlocks` where none is worth having.
    """
    schedule = warpgroup_schedule(group, profile) if profile.warpgroups else None
    if schedule is not None:
        return schedule
    return ranked(group, profile)[0].schedule


def ranked(group: TileGroup, profile: BlockProfile) -> tuple[BlockChoice, ...]:
    """Returns the schedules for `group`, the cheapest first; equal prices keep their order.

    Schedules that do not fit the device by estimate come last, those that lack the fewest registers
    first. Raises `NotBlocks` where there is none.
    """
    pricer = BlockPricer(group, profile)
    choices = _sorted(group, (BlockChoice(s, pricer.price(s)) for s in candidates(group)))
    best = [schedule.schedule for schedule in choices[:_VARIED]]
    variants = dict.fromkeys(
        s for schedule in best for s in varied(schedule, pricer.multiplies(schedule))
    )
    return tuple(_sorted(group, (*choices, *(BlockChoice(s, pricer.price(s)) for s in variants))))


def _sorted(group: TileGroup, choices: Iterable[BlockChoice]) -> list[BlockChoice]:
    alternatives = [Alternative(group, c, c.price.seconds) for c in sorted(choices, key=_lacking)]
    return [alternative.replacement for alternative in in_order(alternatives)]


def _lacking(choice: BlockChoice) -> int:
    """Returns the registers of a schedule that does not fit, else 0."""
    return choice.price.usage.registers if choice.price.seconds == inf else 0
