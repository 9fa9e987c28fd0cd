"""The knobs that are worth varying for a group, and the cheapest of their settings.

    contraction    a copy of the vector operand    panels of 2, 3 or 4 vectors
                   K-blocks of 128 to 1024 steps
                   2 or 4 register blocks of symbolic rows in a tile
    anything else  blocks of 1, 2, 4 or 16 vectors 2 to 32 times the elements of a tile
                   a pass of its own for each stage in front of a reduction
    masked loop    32 to 256 steps of the streaming loop at a time, besides
    symbolic dims  vectors along a loop of known size, before all others

Knobs are varied one after another, each with the best settings of those before it: a handful of
prices, not all combinations. A setting has to save more than the prices' error for that knob.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from tcc.frozen import frozen
from tcc.ir.expr import known_extent
from tcc.ir.tile.group import TileGroup
from tcc.schedule.alternatives import (
    SILENT,
    Alternative,
    Ledger,
    Seconds,
    SiteOf,
    number,
    preferred,
    saves,
    share_saved,
)
from tcc.schedule.choice_text import read_data
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.margins import MARGINS, Margin
from tcc.schedule.masked_terms import limits_of
from tcc.schedule.nest import anchor, contraction_factors
from tcc.schedule.open_sizes import Times, mean_share

# A launch of fixed sizes that takes fewer seconds is not varied, because no choice can matter.
LEAST = Seconds(3e-6)


@frozen
class Knob:
    """A field of `Knobs`, and its `settings` to try."""

    name: str
    settings: tuple[int, ...]

    @property
    def margin(self) -> Margin:
        """Returns the margin that a setting must save."""
        return MARGINS[f"knob {self.name}"]

    def variants(self, knobs: Knobs) -> list[Knobs]:
        """Returns `knobs` with each setting of this knob."""
        return [replace(knobs, **{self.name: n}) for n in self.settings]


@frozen
class KnobChoice:
    """The chosen knobs and their price.

    `seconds` is the price of their schedule, `analytic` that of the analytic schedule, and `priced`
    the number of different schedules that were priced.
    """

    knobs: Knobs
    seconds: Seconds
    analytic: Seconds
    priced: int


PANELS = (4, 3, 2)  # candidates for the number of vectors across a panel


_CONTRACTION = (
    Knob("copy", (1,)),
    Knob("panel", PANELS),
    Knob("k_block", (128, 192, 384, 512, 1024)),
)
# Small tiles of symbolic rows keep all cores busy at any size; large tiles use a panel for more
# rows.
_OPEN_ROWS = (Knob("tall", (2, 4)),)
_PLAIN = (
    Knob("wide", (1, 2, 4, 16)),
    Knob("grain", (2, 4, 8, 16, 32)),
    Knob("along", (0,)),
)
# Small blocks of steps follow a mask closely; large ones rescale their accumulators less often.
_MASKED = (Knob("stream_block", (32, 64, 256)),)
_OPEN = (Knob("fixed", (1,)),)


def knobs_of(group: TileGroup) -> tuple[Knob, ...]:
    """Returns the knobs to vary for `group`, in the order in which they are tried."""
    main = anchor(group)
    is_open = any(known_extent(v) is None for v in main.loops)
    size_knobs = _OPEN if is_open and group.stream is None else ()
    knobs: tuple[Knob, ...] = _PLAIN
    if contraction_factors(main) is not None and main.reduce:
        knobs = _CONTRACTION
        if any(known_extent(v) is None for v in main.iters):
            knobs = (*_OPEN_ROWS, *knobs)
    return (*size_knobs, *knobs, *(_MASKED if limits_of(group) else ()))


def candidates(group: TileGroup, core: CoreModel) -> list[Schedule]:
    """Returns the analytic schedule, then the schedules in which one knob has another setting."""
    varied = [knobs for knob in knobs_of(group) for knobs in knob.variants(Knobs())]
    schedules = (choose(group, replace(core, knobs=knobs)) for knobs in (Knobs(), *varied))
    return list(dict.fromkeys(schedules))


def read_knobs(text: str, kernel_knobs: Sequence[Knob]) -> Knobs:
    """Returns the knobs of a text; raises ValueError for other texts, and for settings that
    `kernel_knobs` do not have."""
    knobs = read_data(text, Knobs)
    if not isinstance(knobs, Knobs):
        raise ValueError("it is no text of Knobs")
    settings = {knob.name: knob.settings for knob in kernel_knobs}
    for field in fields(Knobs):
        setting = getattr(knobs, field.name)
        if setting != field.default and setting not in settings.get(field.name, ()):
            raise ValueError(f"{field.name} has no setting {setting} for this kernel")
    return knobs


def cheapest(
    scheduled: Callable[[Knobs], tuple[TileGroup, Schedule]],
    pricer: Pricer,
    resized: Callable[[Knobs], Sequence[TileGroup]] = lambda _: (),
    ledger: Ledger = SILENT,
    site: SiteOf | None = None,
) -> KnobChoice:
    """Returns the cheapest knobs, or those that `ledger` forces at `site`.

    `scheduled` returns the group and schedule that knobs make of a kernel; `resized` returns that
    group at other sizes. At several sizes, the price of a schedule is the mean of its ratios to the
    analytic schedule's prices.

    Equal arguments give equal results, and the price is never above the analytic schedule's. A
    launch of fixed sizes that takes less than `LEAST` keeps the analytic schedule.
    """
    prices: dict[Schedule, Seconds] = {}
    priced_knobs: dict[Schedule, Alternative[Knobs]] = {}
    analytic: Times = ()

    def priced(knobs: Knobs) -> Alternative[Knobs]:
        nonlocal analytic
        group, schedule = scheduled(knobs)
        if schedule not in prices:
            groups = (group, *resized(knobs))
            times = tuple(pricer.price(resized_group, schedule).seconds for resized_group in groups)
            analytic = analytic or times
            prices[schedule] = mean_share(times, analytic)
        alternative = Alternative(knobs, prices[schedule])
        priced_knobs.setdefault(schedule, alternative)
        return alternative

    rule = best = priced(Knobs())
    kernel_knobs = knobs_of(scheduled(Knobs())[0])
    reason = f"other schedules are not priced below {number(LEAST) * 1e6:.0f} us"
    if len(analytic) > 1 or not saves(rule.price, LEAST):
        reason = "no setting of a knob saves its margin"
        for knob in kernel_knobs:
            variants = list(map(priced, knob.variants(best.replacement)))
            changed = preferred(best, variants, knob.margin)
            if changed is not best:
                saved = share_saved(changed.price, best.price)
                reason = f"{knob.name} saves {saved:.1%} (margin {knob.margin.saves:.0%})"
            best = changed
    if ledger.listens and site is not None:
        others = dict.fromkeys((*priced_knobs.values(), best))
        best = ledger.settle(
            site,
            rule,
            [a for a in others if a != rule],
            best,
            reason,
            read=lambda text: priced(read_knobs(text, kernel_knobs)),
        )
    return KnobChoice(best.replacement, best.price, rule.price, len(prices))
