"""Which knobs are worth turning for a group, and which turn of them is the cheapest.

    contraction    panels of 2, 3 or 4 vectors     runs of 128 to 1024 steps of the sum
    anything else  blocks of 1 or 2 vectors        2 to 32 times the elements of a unit

Knobs are turned one after another, each at the best of those before it: a handful of prices, not
all combinations.  A turn has to save more than prices err by for that knob.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tcc.ir.tile.group import TileGroup
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.nest import anchor, product

# Seconds of a launch below which nothing is tried: no choice can matter.
LEAST = 3e-6


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to turn: its `settings`, and the part of the price that a turn must save.

    The parts are from measurements (`scripts/price_check`): where a turn was priced to save less,
    it was about as often slower as faster.
    """

    settings: tuple[Callable[[Knobs], Knobs], ...]
    margin: float


@dataclass(frozen=True, slots=True)
class Found:
    """The knobs to take, their price and that of the analytic schedule in seconds, and how many
    different schedules were priced."""

    knobs: Knobs
    seconds: float
    analytic: float
    priced: int


PANELS = (4, 3, 2)  # vectors of a panel, where it is turned


def _panel(n: int) -> Callable[[Knobs], Knobs]:
    return lambda knobs: replace(knobs, panel=n)


def _run(n: int) -> Callable[[Knobs], Knobs]:
    return lambda knobs: replace(knobs, run=n)


def _wide(n: int) -> Callable[[Knobs], Knobs]:
    return lambda knobs: replace(knobs, wide=n)


def _grain(n: int) -> Callable[[Knobs], Knobs]:
    return lambda knobs: replace(knobs, grain=n)


_CONTRACTION = (
    Knob(tuple(map(_panel, PANELS)), 0.08),
    Knob(tuple(map(_run, (128, 192, 384, 512, 1024))), 0.08),
)
_PLAIN = (
    Knob(tuple(map(_wide, (1, 2))), 0.15),
    Knob(tuple(map(_grain, (2, 4, 8, 16, 32))), 0.15),
)


def knobs_of(group: TileGroup) -> tuple[Knob, ...]:
    """What can be turned for `group`, in the order in which it is tried."""
    main = anchor(group)
    return _CONTRACTION if product(main) is not None and main.reduce else _PLAIN


def candidates(group: TileGroup, core: CoreModel) -> list[Schedule]:
    """The analytic schedule, and those that differ from it by one turn of one knob."""
    turned = [turn(Knobs()) for knob in knobs_of(group) for turn in knob.settings]
    made = (choose(group, replace(core, knobs=knobs)) for knobs in (Knobs(), *turned))
    return list(dict.fromkeys(made))


def cheapest(scheduled: Callable[[Knobs], tuple[TileGroup, Schedule]], pricer: Pricer) -> Found:
    """The knobs to take; `scheduled` gives the group and schedule that knobs make of a kernel.

    The same for equal arguments, and never dearer than the analytic schedule by the pricer's own
    account.  That one is kept where sizes are open (prices count on typical ones), and where a
    launch is short.
    """
    best = Knobs()
    group, schedule = scheduled(best)
    analytic = least = pricer.price(group, schedule).seconds
    known = {schedule: analytic}
    if group.sizes or analytic < LEAST:
        return Found(best, analytic, analytic, 1)
    for knob in knobs_of(group):
        most = (1 - knob.margin) * least
        for knobs in [turn(best) for turn in knob.settings]:
            group, schedule = scheduled(knobs)
            if schedule not in known:
                known[schedule] = pricer.price(group, schedule).seconds
            if known[schedule] < min(most, least):
                best, least = knobs, known[schedule]
    return Found(best, least, analytic, len(known))
