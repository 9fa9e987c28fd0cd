"""The resource that limits a kernel according to its price.

compute 610 us, ports 240 us, memory 90 us of 655 us    ->    compute, 93 %
the same, but 3 equal tiles on 2 threads                ->    imbalance, 23 %
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tcc.ir.tile.group import TileGroup
from tcc.schedule.cpu.cost import Price, Pricer
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.work import group_bytes, group_flops
from tcc.schedule.nest import typical_value

# Threads that wait for less than this fraction of the time are no limit.
_WAITS = 0.1


def limit_of(price: Price) -> tuple[str, float]:
    """Returns the name of the term that binds, and its share of the predicted time.

    The names are `compute`, `ports`, `L2`, `L3`, `memory`, `launch` and `imbalance`. The last binds
    if the busiest thread's arithmetic or its loads and stores take longest, and the other threads
    wait for it; its share is the time that equal shares of the tiles would save.
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
    share = terms[name] / price.seconds
    waits = share * (1 - 1 / max(1, price.imbalance))
    if name in ("compute", "ports") and waits > _WAITS:
        return "imbalance", waits
    return name, share


def limit_lines(pricer: Pricer, schedule: Schedule, groups: Sequence[TileGroup]) -> Iterator[str]:
    """Yields the limit of a kernel as text, for each of its `groups`: the kernel at several sets of
    sizes, or at its known sizes."""
    for group in groups:
        price = pricer.price(group, schedule)
        name, share = limit_of(price)
        sizes = ", ".join(f"{v.name} {typical_value(v)}" for v in group.sizes)
        where = f"limit at {sizes}" if sizes else "limit"
        yield f"{where}: {name}, {share:.0%} of {price.seconds * 1e6:.2f} us"


def predictions(
    pricer: Pricer, schedule: Schedule, groups: Sequence[TileGroup], live: Sequence[int]
) -> dict[str, Any]:
    """Returns the predictions of one launch for a manifest: seconds and limit, at typical sizes.

    For several `groups`, the kernel at several sets of sizes, `times` has for each set: flops,
    bytes, seconds on all cores, seconds on one core; `limits` has for each set the limit and its
    share. `live` has the live bytes of a run for each set.
    """
    several = len(groups) > 1
    pairs = list(zip(groups, live if several else [0], strict=True))
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
            for (group, size), price in zip(pairs, prices, strict=True)
        ]
        facts["limits"] = limits
    return facts


def _rounded(price: Price) -> float:
    """Returns the seconds of a price with four digits."""
    return float(f"{price.seconds:.4g}")
