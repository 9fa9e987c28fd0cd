"""Chooses a block schedule for a tile group by price."""

from collections.abc import Iterable
from math import inf

from tcc.ir.tile.group import TileGroup
from tcc.record import record
from tcc.schedule.alternatives import Alternative, in_order
from tcc.schedule.gpu.candidates import candidates, varied
from tcc.schedule.gpu.cost import BlockPrice, BlockPricer
from tcc.schedule.gpu.schedule import TYPICAL_DEVICE, BlockProfile, BlockSchedule
from tcc.schedule.gpu.warpgroups import warpgroup_schedule

# Cuts of the loops whose warps and stages are turned.
_TURNED = 3


@record
class BlockChoice:
    """A schedule and what it is thought to take."""

    schedule: BlockSchedule
    price: BlockPrice


def choose_blocks(group: TileGroup, profile: BlockProfile = TYPICAL_DEVICE) -> BlockSchedule:
    """The cheapest schedule for `group`, or that of warpgroups where they have one.

    Raises `NotBlocks` where none is worth having.
    """
    found = warpgroup_schedule(group, profile) if profile.warpgroups else None
    if found is not None:
        return found
    return ranked(group, profile)[0].schedule


def ranked(group: TileGroup, profile: BlockProfile) -> tuple[BlockChoice, ...]:
    """Schedules for `group` from the cheapest on; of equals the one that is listed first.

    At the end are those that do not fit the device as estimates go, by the registers they lack.
    Raises `NotBlocks` where there is none.
    """
    pricer = BlockPricer(group, profile)
    found = _sorted(group, (BlockChoice(s, pricer.price(s)) for s in candidates(group)))
    best = [each.schedule for each in found[:_TURNED]]
    more = dict.fromkeys(s for each in best for s in varied(each, pricer.multiplies(each)))
    return tuple(_sorted(group, (*found, *(BlockChoice(s, pricer.price(s)) for s in more))))


def _sorted(group: TileGroup, choices: Iterable[BlockChoice]) -> list[BlockChoice]:
    alternatives = [Alternative(group, c, c.price.seconds) for c in sorted(choices, key=_lacking)]
    return [each.replacement for each in in_order(alternatives)]


def _lacking(choice: BlockChoice) -> int:
    """The registers of a schedule that does not fit."""
    return choice.price.usage.registers if choice.price.seconds == inf else 0
