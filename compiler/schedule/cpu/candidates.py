"""Which knobs are worth turning for a group, and which turn of them is the cheapest.

    contraction    a copy of the vector operand    panels of 2, 3 or 4 vectors
                   runs of 128 to 1024 steps of the sum
                   2 or 4 register blocks of open rows in a unit
    anything else  blocks of 1, 2, 4 or 16 vectors 2 to 32 times the elements of a unit
                   a walk of its own for each stage in front of a reduction
    masked walk    32 to 256 steps of the streaming loop at a time, besides
    open sizes     vectors along a loop of known size, before all others

Knobs are turned one after another, each at the best of those before it: a handful of prices, not
all combinations.  A turn has to save more than prices err by for that knob.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tcc.ir.expr import known_extent
from tcc.ir.tile.group import TileGroup
from tcc.record import record
from tcc.schedule.alternatives import Alternative, preferred
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.masked_terms import limits_of
from tcc.schedule.nest import anchor, contraction_factors
from tcc.schedule.open_sizes import Times, mean_share

# Seconds of a launch of fixed sizes below which nothing is tried: no choice can matter.
LEAST = 3e-6


@record
class Knob:
    """A field of `Knobs` to turn: its `settings`, and the part of the price that a turn must save.

    The parts are from measurements (`scripts/price_check`): where a turn was priced to save less,
    it was about as often slower as faster.
    """

    name: str
    settings: tuple[int, ...]
    margin: float

    def variants(self, knobs: Knobs) -> list[Knobs]:
        """`knobs` under each setting."""
        return [replace(knobs, **{self.name: n}) for n in self.settings]


@record
class Found:
    """The knobs to take, their price and that of the analytic schedule in seconds, and how many
    different schedules were priced."""

    knobs: Knobs
    seconds: float
    analytic: float
    priced: int


PANELS = (4, 3, 2)  # vectors of a panel, where it is turned


_CONTRACTION = (
    Knob("copy", (1,), 0.03),
    Knob("panel", PANELS, 0.08),
    Knob("k_block", (128, 192, 384, 512, 1024), 0.08),
)
# Small units of open rows keep all cores busy whatever the size; large ones use a panel longer.
_OPEN_ROWS = (Knob("tall", (2, 4), 0.04),)
_PLAIN = (
    Knob("wide", (1, 2, 4, 16), 0.15),
    Knob("grain", (2, 4, 8, 16, 32), 0.15),
    Knob("along", (0,), 0.08),
)
# Blocks of few steps follow a mask closely, those of many rescale their totals less often.
_MASKED = (Knob("stream_block", (32, 64, 256), 0.08),)
_OPEN = (Knob("known", (1,), 0.08),)


def knobs_of(group: TileGroup) -> tuple[Knob, ...]:
    """What can be turned for `group`, in the order in which it is tried."""
    main = anchor(group)
    is_open = any(known_extent(v) is None for v in main.loops)
    first = _OPEN if is_open and group.stream is None else ()
    own: tuple[Knob, ...] = _PLAIN
    if contraction_factors(main) is not None and main.reduce:
        own = _CONTRACTION
        if any(known_extent(v) is None for v in main.iters):
            own = (*_OPEN_ROWS, *own)
    return (*first, *own, *(_MASKED if limits_of(group) else ()))


def candidates(group: TileGroup, core: CoreModel) -> list[Schedule]:
    """The analytic schedule, and those that differ from it by one turn of one knob."""
    varied = [knobs for knob in knobs_of(group) for knobs in knob.variants(Knobs())]
    made = (choose(group, replace(core, knobs=knobs)) for knobs in (Knobs(), *varied))
    return list(dict.fromkeys(made))


def cheapest(
    scheduled: Callable[[Knobs], tuple[TileGroup, Schedule]],
    pricer: Pricer,
    resized: Callable[[Knobs], Sequence[TileGroup]] = lambda _: (),
) -> Found:
    """The knobs to take; `scheduled` gives the group and schedule that knobs make of a kernel,
    `resized` that group at other sizes.

    The same for equal arguments, and never dearer than the analytic schedule by the pricer's own
    account.  At several sizes a schedule's price is its mean share of the analytic schedule's.
    The analytic schedule is kept where a launch of fixed sizes is short.
    """
    known: dict[Schedule, float] = {}
    analytic: Times = ()

    def priced(knobs: Knobs) -> Alternative[TileGroup, Knobs]:
        nonlocal analytic
        group, schedule = scheduled(knobs)
        if schedule not in known:
            groups = (group, *resized(knobs))
            times = tuple(pricer.price(each, schedule).seconds for each in groups)
            analytic = analytic or times
            known[schedule] = mean_share(times, analytic)
        return Alternative(group, knobs, known[schedule])

    best = priced(Knobs())
    rule = best.price
    if rule < LEAST and len(analytic) == 1:
        return Found(best.replacement, rule, rule, 1)
    for knob in knobs_of(best.region):
        variants = list(map(priced, knob.variants(best.replacement)))
        best = preferred(best, variants, knob.margin)
    return Found(best.replacement, best.price, rule, len(known))
