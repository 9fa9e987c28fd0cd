"""How the units of a launch grid are cut into blocks and dealt out to threads."""

from functools import lru_cache
from itertools import product as combinations
from math import ceil, prod

from tcc.schedule.cpu.schedule import even


def shares_of(counts: list[int], threads: int) -> list[int]:
    """Trips of each parallel loop that one of `threads` threads walks; outer loops are split."""
    left, found = threads, []
    for count in counts:
        split = max(1, min(count, left))
        found.append(ceil(count / split))
        left //= split
    return found


@lru_cache(1 << 14)
def cuts_of(
    total: int, unit: int, block: int, whole_units: bool, whole: bool
) -> tuple[tuple[int, int], ...]:
    """(size, count) of blocks of at most `block` in units of `unit`: of full size and a rest where
    `whole`, else of sizes that differ by one at most."""
    found: dict[int, int] = {}
    for size, units in even(total, unit, whole_units):
        for piece, count in even(size, block, whole):
            found[piece] = found.get(piece, 0) + units * count
    return tuple(found.items())


@lru_cache(1 << 14)
def uneven(
    parts: tuple[tuple[tuple[int, int], ...], ...], shares: tuple[float, ...] | None, threads: int
) -> float:
    """The busiest of `threads` threads over the mean, for a grid of units of these sizes that do
    these shares of their work."""
    axes = ([size for size, count in axis for _ in range(count)] for axis in parts)
    busy = [0.0] * threads
    for number, sizes in enumerate(combinations(*axes)):
        free = min(range(threads), key=busy.__getitem__)
        busy[free] += prod(sizes) * (1.0 if shares is None else shares[number])
    return max(busy) * threads / (sum(busy) or 1.0)
