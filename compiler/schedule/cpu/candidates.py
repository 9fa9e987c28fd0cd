"""The knobs that are worth varying for a group, and the cheapest of their settings.

    kernel            knob            settings, besides the rule's
    symbolic dims     fixed           vectors run along a loop of known size
    contraction       tall            2 or 4 register blocks of symbolic rows in a tile
                      copy            the vector operand is copied to scratch
                      panel           panels of 2, 3 or 4 vectors
                      k_block         K-blocks of 128 to 1024 steps
    any other         wide            blocks of 1, 2, 4 or 16 vectors
                      grain           tiles with 2 to 32 times the elements
                      along           pointwise stages are not computed along a reduction
    streaming         direction          vectors along rows or along the streaming loop
    masked streaming  stream_block    32, 64 or 256 steps of the streaming loop in a block

Measuring also tries K-blocks of 64 steps and each loop as the vector loop (`measured_knobs_of`).

A knob is a number of a schedule that rules choose and that a setting may replace. Knobs are varied
one after another, in this order. Each is varied with the best settings of the knobs before it, so
that a handful of schedules are priced, not all combinations. A setting replaces the rule's only if
it saves more than the error of prices for its knob.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from types import MappingProxyType

from tcc.frozen import frozen
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
from tcc.schedule.choice_text import read_object
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.vectors import vector_choices
from tcc.schedule.margins import MARGINS, Margin
from tcc.schedule.masked_terms import limits_of
from tcc.schedule.nest import anchor, contracts, is_open
from tcc.schedule.open_sizes import Times, mean_share

# The knobs of a kernel of fixed sizes are not varied if a launch takes fewer seconds, because then
# no choice matters.
LEAST = Seconds(3e-6)


@frozen
class Knob:
    """A field of `Knobs`, and its `settings` to try.

    `alone`: the settings are not combined with those of other knobs, because they change what the
    other knobs mean.
    """

    name: str
    settings: tuple[int, ...]
    alone: bool = False

    @property
    def margin(self) -> Margin:
        """Returns the fraction of a price that a setting must save to be chosen."""
        return MARGINS[f"knob {self.name}"]

    def variants(self, knobs: Knobs) -> list[Knobs]:
        """Returns `knobs` once for each setting of this knob, with that setting."""
        return [replace(knobs, **{self.name: n}) for n in self.settings]


@frozen
class KnobChoice:
    """The chosen knobs and their price.

    `seconds` is the price of the schedule under `knobs`. `analytic` is the price of the schedule
    that rules choose. `priced` is the number of different schedules that were priced.
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
# Small tiles of symbolic rows keep all cores busy at any size. Large tiles use each panel for more
# rows.
_OPEN_ROWS = (Knob("tall", (2, 4)),)
_PLAIN = (
    Knob("wide", (1, 2, 4, 16)),
    Knob("grain", (2, 4, 8, 16, 32)),
    Knob("along", (0,)),
)
# With small blocks fewer masked steps are computed. With large blocks accumulators are rescaled
# less often.
_STREAMING = (Knob("direction", (1,)),)
_MASKED = (Knob("stream_block", (32, 64, 256)),)
_OPEN = (Knob("fixed", (1,)),)
# Settings that no price is trusted with. Only measuring tries them.
_UNPRICED = MappingProxyType({"k_block": (64,)})


def knobs_of(group: TileGroup) -> tuple[Knob, ...]:
    """Returns the knobs to vary for `group`, in the order in which they are tried."""
    main = anchor(group)
    is_symbolic = any(is_open(v) for v in main.loops)
    size_knobs = _STREAMING if group.stream else _OPEN if is_symbolic else ()
    knobs: tuple[Knob, ...] = _PLAIN
    if contracts(main) and main.reduce:
        knobs = _CONTRACTION
        if any(is_open(v) for v in main.iters):
            knobs = (*_OPEN_ROWS, *knobs)
    return (*size_knobs, *knobs, *(_MASKED if limits_of(group) else ()))


def measured_knobs_of(group: TileGroup) -> tuple[Knob, ...]:
    """Returns the knobs of `knobs_of`, and those that only measuring varies: K-blocks of 64 steps,
    and the vector loop."""
    knobs = (Knob(k.name, (*k.settings, *_UNPRICED.get(k.name, ()))) for k in knobs_of(group))
    loops = vector_choices(group, anchor(group))
    return (*knobs, Knob("vector", tuple(range(len(loops))), alone=True))


def candidates(group: TileGroup, core: CoreModel) -> list[Schedule]:
    """Returns the schedule that rules choose, then those in which a single knob has another
    setting."""
    varied = [knobs for knob in knobs_of(group) for knobs in knob.variants(Knobs())]
    schedules = (choose(group, replace(core, knobs=knobs)) for knobs in (Knobs(), *varied))
    return list(dict.fromkeys(schedules))


def read_knobs(text: str, kernel_knobs: Sequence[Knob]) -> Knobs:
    """Returns the `Knobs` that a text describes.

    Raises ValueError if the text describes other data, or if a setting is not among the settings of
    `kernel_knobs`.
    """
    knobs = read_object(text, Knobs)
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
    """Returns the cheapest knobs, or the knobs that `ledger` forces at `site`.

    `scheduled` returns a kernel's group and schedule under the knobs. `resized` returns the group
    under the knobs at other sets of sizes. Rules choose the analytic schedule. The price of a
    schedule is the mean, over all sets of sizes, of price(schedule) / price(analytic schedule).

    Equal arguments give equal results, and the price is never above the analytic schedule's. A
    kernel of fixed sizes that takes less than `LEAST` keeps the analytic schedule.
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
    if site is not None and ledger.needs(site):
        alternatives = dict.fromkeys((*priced_knobs.values(), best))
        best = ledger.settle(
            site,
            rule,
            [a for a in alternatives if a != rule],
            best,
            reason,
            read=lambda text: priced(read_knobs(text, kernel_knobs)),
        )
    return KnobChoice(best.replacement, best.price, rule.price, len(prices))
