"""Which knobs are worth turning for a group, and which turn of them is the cheapest.

    contraction    panel 1..4 vectors    rows of a unit 48..all    run 128..all    panels outside or not
    anything else  block 1..4 vectors    unit times 1..32

Knobs are turned one after another, each at the best of those before it: tens of prices, not the
hundreds of all combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tcc.ir.group import TileGroup
from tcc.schedule.cost import Pricer
from tcc.schedule.nest import anchor, product
from tcc.schedule.registers import Knobs
from tcc.schedule.schedule import Schedule

# The part of an analytic schedule's price by which another must be cheaper to be taken.
MARGIN = 0.01
# Seconds of a launch below which nothing is tried.
LEAST = 3e-6

_PANELS = (4, 3, 2)
_RUNS = (128, 192, 384, 512, 1024)
_WIDE = (1, 2)
_GRAINS = (2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Found:
    """The cheapest setting of the knobs, its price and that of the analytic one in seconds, and how
    many different schedules were priced."""

    knobs: Knobs
    seconds: float
    analytic: float
    priced: int


def turns(group: TileGroup) -> tuple[tuple[Callable[[Knobs], Knobs], ...], ...]:
    """For each knob that matters to `group`, its settings."""
    if product(anchor(group)) is not None and anchor(group).reduce:
        return (
            tuple(_panel(n) for n in _PANELS),
            tuple(_run(n) for n in _RUNS),
        )
    return tuple(_wide(n) for n in _WIDE), tuple(_grain(n) for n in _GRAINS)


def every(group: TileGroup) -> Iterator[Knobs]:
    """All combinations, the analytic one first."""
    found = [Knobs()]
    for settings in turns(group):
        found += [turn(knobs) for turn in settings for knobs in found]
    yield from dict.fromkeys(found)


def cheapest(scheduled: Callable[[Knobs], tuple[TileGroup, Schedule]], pricer: Pricer) -> Found:
    """The cheapest setting; `scheduled` gives the group and schedule that knobs make of a kernel.

    The same for equal arguments.  The analytic schedule is kept where it is within `MARGIN` of the
    cheapest, where sizes are open (prices count on typical ones), and where a launch is so short
    that no choice can matter.
    """
    best = Knobs()
    group, schedule = scheduled(best)
    analytic = least = pricer.price(group, schedule).seconds
    known = {schedule: analytic}
    if group.sizes or analytic < LEAST:
        return Found(best, analytic, analytic, 1)
    for settings in turns(group):
        for knobs in [turn(best) for turn in settings]:
            group, schedule = scheduled(knobs)
            seconds = known.get(schedule)
            if seconds is None:
                seconds = known[schedule] = pricer.price(group, schedule).seconds
            if seconds < least:
                best, least = knobs, seconds
    if least > (1 - MARGIN) * analytic:
        return Found(Knobs(), analytic, analytic, len(known))
    return Found(best, least, analytic, len(known))


def _panel(n: int) -> Callable[[Knobs], Knobs]:
    return lambda knobs: replace(knobs, panel=n)


def _run(n: int) -> Callable[[Knobs], Knobs]:
    return lambda knobs: replace(knobs, run=n)


def _wide(n: int) -> Callable[[Knobs], Knobs]:
    return lambda knobs: replace(knobs, wide=n)


def _grain(n: int) -> Callable[[Knobs], Knobs]:
    return lambda knobs: replace(knobs, grain=n)
