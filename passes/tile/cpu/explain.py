"""Explains a kernel: what limits its speed, and which rule set each field of its schedule.

compute 610 us, ports 240 us, memory 90 us of 655 us    ->    compute, 93 %
the same times, but 3 equal tiles on 2 threads          ->    imbalance, 23 %
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tcc.frozen import field_names
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.passes.tile.plan import Bound
from tcc.schedule.alternatives import number
from tcc.schedule.cpu.choose import choose, deciding_stage
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Price, Pricer
from tcc.schedule.cpu.reasons import Reasons
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.cpu.work import group_bytes, group_flops
from tcc.schedule.nest import typical_value
from tcc.zipped import zip_equal

# The schedule fields that have an entry for each loop. A rule sets a single entry.
_BY_LOOP = ("tile_sizes", "blocks")
# Imbalance is not the limit if threads wait for less than this fraction of the time.
_WAITS = 0.1


def limit_of(price: Price) -> tuple[str, float]:
    """Returns the resource that limits a kernel, and its fraction of the predicted time.

    The names are `compute`, `ports` (loads and stores), `L2`, `L3`, `memory`, `launch` and
    `imbalance`.  `imbalance` is the limit if `compute` or `ports` takes longest, and if it would
    take less time with equal work for all threads.  Its fraction is the time that equal work would
    save.
    """
    terms = {
        "compute": price.compute,
        "ports": price.ports,
        "L2": price.l2,
        "L3": price.l3,
        "memory": price.dram,
        "launch": price.launch,
    }
    name = max(terms, key=terms.__getitem__)
    share = terms[name] / number(price.seconds)
    waits = share * (1 - 1 / max(1, price.imbalance))
    if name in ("compute", "ports") and waits > _WAITS:
        return "imbalance", waits
    return name, share


def limit_lines(pricer: Pricer, bound: Bound) -> Iterator[str]:
    """Yields the limit of a kernel as text: one line, or one for each priced set of sizes."""
    assert isinstance(bound.schedule, Schedule)
    for group in (bound.group, *bound.tabulated):
        price = pricer.price(group, bound.schedule)
        name, share = limit_of(price)
        sizes = ", ".join(f"{v.name} {typical_value(v)}" for v in group.sizes)
        where = f"limit at {sizes}" if sizes else "limit"
        yield f"{where}: {name}, {share:.0%} of {price.seconds * 1e6:.2f} us"


def predictions(pricer: Pricer, bound: Bound, live: Sequence[int]) -> dict[str, Any]:
    """Returns the predictions of one launch for a manifest: seconds and limit, at typical sizes.

    With symbolic sizes, there are two more entries, each with a list over the sets of sizes.  An
    element of `times` is (flops, bytes, seconds on all cores, seconds on one core).  An element of
    `limits` is (limit, fraction).  `live` has the live bytes of a run at each set of sizes.
    """
    schedule, several = bound.schedule, bool(bound.tabulated)
    assert isinstance(schedule, Schedule)
    pairs = list(zip_equal((bound.group, *bound.tabulated), live if several else [0]))
    prices = [pricer.price(group, schedule, live=size) for group, size in pairs]
    limits = [(name, round(share, 3)) for name, share in map(limit_of, prices)]
    facts: dict[str, Any] = {"seconds": _rounded(prices[0])}
    facts["limit"], facts["limit_share"] = limits[0]
    if several:
        facts["times"] = [
            [
                group_flops(group),
                group_bytes(group),
                _rounded(price),
                _rounded(pricer.price(group, schedule, single_core=True, live=size)),
            ]
            for (group, size), price in zip_equal(pairs, prices)
        ]
        facts["limits"] = limits
    return facts


def _rounded(price: Price) -> float:
    """Returns the seconds of a price, rounded to four digits."""
    return float(f"{price.seconds:.4g}")


def rule_lines(group: TileGroup, core: CoreModel) -> Iterator[str]:
    """Yields a line for each nonempty field of a group's schedule: its value, and the rule that set
    it.

    The schedule is chosen again, because only then are rules recorded.
    """
    reasons = Reasons()
    schedule = choose(group, replace(core, because=reasons.record))
    yield from _field_lines(schedule, reasons, None)
    for place, nest in enumerate(schedule.nests):
        for line in _field_lines(nest, reasons, deciding_stage(group, nest.stages)):
            yield f"nest {place}  {line}"


def _field_lines(
    item: Schedule | Nest, reasons: Reasons, stage: GroupStage | None
) -> Iterator[str]:
    body = None if stage is None else stage.body
    for field in field_names(item):
        value = getattr(item, field)
        if not value or field == "nests" or (field == "stages" and len(value) == 1):
            continue
        for name, part in value if field in _BY_LOOP else [("", value)]:
            rule = reasons.rules.get((body, field, name), f"{field}: no named rule")
            text = f"{name} {part}" if name else _text(part)
            yield f"{field} {text}{rule.removeprefix(field)}"


def _text(value: object) -> str:
    """Returns a value as text, with the parts of tuples separated by spaces."""
    return " ".join(map(_text, value)) if isinstance(value, tuple) else str(value)
