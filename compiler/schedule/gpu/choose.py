"""Chooses a block schedule for a tile group by price."""

from collections.abc import Iterable

from tcc.frozen import frozen
from tcc.ir.tile.group import TileGroup
from tcc.schedule.alternatives import IMPOSSIBLE, SILENT, Alternative, Ledger, SiteOf, in_order
from tcc.schedule.gpu.candidates import candidates, varied
from tcc.schedule.gpu.cost import BlockPrice, BlockPricer
from tcc.schedule.gpu.schedule import TYPICAL_DEVICE, BlockProfile, BlockSchedule
from tcc.schedule.gpu.warpgroups import warpgroup_schedule

# Other numbers of warps and of loads in flight are tried for this many of the cheapest schedules.
_VARIED = 3


@frozen
class BlockChoice:
    """A schedule and its price."""

    schedule: BlockSchedule
    price: BlockPrice


def choose_blocks(
    group: TileGroup,
    profile: BlockProfile = TYPICAL_DEVICE,
    ledger: Ledger = SILENT,
    site: SiteOf | None = None,
) -> BlockSchedule:
    """Returns a schedule for `group`.

    It is the schedule that `ledger` forces at `site`. If none is forced, it is the schedule for
    warpgroups. If the group has none (`warpgroups`), it is the cheapest schedule. Raises
    `NotBlocks` if no schedule is worth having.
    """
    schedule = warpgroup_schedule(group, profile) if profile.warpgroups else None
    if schedule is not None and not ledger.listens:
        return schedule
    choices = ranked(group, profile)
    if site is None or not ledger.listens:
        return choices[0].schedule
    priced = {c.schedule: Alternative(c.schedule, c.price.seconds) for c in choices}
    best, reason = priced[choices[0].schedule], "it has the lowest price"
    if schedule is not None:
        price = BlockPricer(group, profile).price(schedule).seconds
        best = priced.get(schedule) or Alternative(schedule, price)
        reason = "its warps have roles, which prices do not count"
    rule = priced.get(candidates(group)[0], best)
    alternatives = [a for a in dict.fromkeys((*priced.values(), best)) if a != rule]
    return ledger.settle(site, rule, alternatives, best, reason).replacement


def ranked(group: TileGroup, profile: BlockProfile) -> tuple[BlockChoice, ...]:
    """Returns the schedules for `group`, the cheapest first; equal prices keep their order.

    Schedules that are estimated not to fit the device come last, in the order of their registers.
    Raises `NotBlocks` if there is no schedule.
    """
    pricer = BlockPricer(group, profile)
    choices = _sorted(BlockChoice(s, pricer.price(s)) for s in candidates(group))
    best = [schedule.schedule for schedule in choices[:_VARIED]]
    variants = dict.fromkeys(
        s for schedule in best for s in varied(schedule, pricer.multiplies(schedule))
    )
    return tuple(_sorted((*choices, *(BlockChoice(s, pricer.price(s)) for s in variants))))


def _sorted(choices: Iterable[BlockChoice]) -> list[BlockChoice]:
    alternatives = [Alternative(c, c.price.seconds) for c in sorted(choices, key=_lacking)]
    return [alternative.replacement for alternative in in_order(alternatives)]


def _lacking(choice: BlockChoice) -> int:
    """Returns the registers of a lane if the schedule does not fit the device, else 0."""
    return choice.price.usage.registers if choice.price.seconds == IMPOSSIBLE else 0
