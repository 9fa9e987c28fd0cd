"""The cut of a launch grid: the blocks of its tiles, and the distribution of tiles to threads."""

from functools import lru_cache
from itertools import product as combinations
from math import ceil, prod

from tcc.schedule.cpu.schedule import even


def shares_of(counts: list[int], threads: int) -> list[int]:
    """Returns how many trips of each parallel loop one of `threads` threads runs.

    `counts` has the trips of each loop, over all threads. The outermost loop is divided among
    threads first.
    """
    unassigned, shares = threads, []
    for count in counts:
        split = max(1, min(count, unassigned))
        shares.append(ceil(count / split))
        unassigned //= split
    return shares


@lru_cache(1 << 14)
def cuts_of(
    size: int, tile: int, block: int, full_tiles: bool, full_blocks: bool
) -> tuple[tuple[int, int], ...]:
    """Returns pairs (size, count) of the blocks along a loop of `size` elements.

    The loop is cut into tiles of at most `tile` elements, and each tile into blocks of at most
    `block` elements. `full_blocks`: all blocks of a tile but the last are full; otherwise their
    sizes differ by at most one. `full_tiles`: all tiles of the loop but the last are full;
    otherwise their sizes differ by at most one.
    """
    counts: dict[int, int] = {}
    for tile_size, tiles in even(size, tile, full_tiles):
        for piece, count in even(tile_size, block, full_blocks):
            counts[piece] = counts.get(piece, 0) + tiles * count
    return tuple(counts.items())


@lru_cache(1 << 14)
def uneven(
    parts: tuple[tuple[tuple[int, int], ...], ...], shares: tuple[float, ...] | None, threads: int
) -> float:
    """Returns the busiest thread's work divided by the mean work of all `threads`.

    `parts` has for each axis of the grid the pairs (size, count) of its tiles. The work of tile n
    is the product of its sizes times `shares[n]`; with None, times 1.
    """
    axes = ([size for size, count in axis for _ in range(count)] for axis in parts)
    busy = [0.0] * threads
    for number, sizes in enumerate(combinations(*axes)):
        free = min(range(threads), key=busy.__getitem__)
        busy[free] += prod(sizes) * (1.0 if shares is None else shares[number])
    return max(busy) * threads / (sum(busy) or 1.0)
