"""Offsets in one arena for buffers of known size and life.

Buffers are placed best-fit in a few orders: largest first (the greedy-by-size order of Pisarchyk
and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020), by size and life,
longest life first.  Where that takes more than what is live at one time, an order is mended: a
buffer at the arena's end found its gaps taken, so it moves before one of those that took them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from types import MappingProxyType
from typing import TypeAlias

from tcc.ir.program import BufferId
from tcc.passes.memory.merge_buffers import Life, most_live
from tcc.record import record

# Bytes of a cache line, which no two buffers have in common.
ALIGN = 64
# Orders that are looked at to mend one.
_TRIES = 64

# What comes first in an order; equals are placed as they are born.
_ORDERS: tuple[Callable[[Life, int], int], ...] = (
    lambda life, size: size,
    lambda life, size: size * (life.last - life.first + 1),
    lambda life, size: life.last - life.first,
)

_Sizes: TypeAlias = Mapping[BufferId, int]


# Buffers that lie at the front of another, which dies where they are born.
_Over: TypeAlias = Mapping[BufferId, BufferId]
_NONE: _Over = MappingProxyType({})


@record
class _Task:
    """What is to be placed: rounded sizes, who must not meet whom, and who lies over whom."""

    sizes: _Sizes
    others: Mapping[BufferId, Sequence[BufferId]]
    over: _Over


@record
class _Plan:
    """Offsets by an order, and where the last buffer ends."""

    order: tuple[BufferId, ...]
    offsets: dict[BufferId, int]
    end: int

    def at_end(self, sizes: _Sizes) -> list[BufferId]:
        """The buffers that no plan of a smaller arena may leave where they are."""
        return [n for n in self.order if self.offsets[n] + sizes[n] == self.end]


def place_buffers(
    lives: Mapping[BufferId, Life], sizes: _Sizes, over: _Over = _NONE
) -> tuple[dict[BufferId, int], int]:
    """A 64-byte aligned offset for each buffer of `sizes` (bytes), and the bytes of the arena.

    Buffers whose lives have a position in common get disjoint ranges.  The values of `over`, which
    are no larger than their keys, get the offsets of those.
    """
    rounded = {n: aligned(size) for n, size in sizes.items()}
    least = most_live(lives, rounded)
    others = _live_together(lives, rounded)
    for number in sorted(over, key=lambda n: -lives[n].first):
        others[number] = tuple(dict.fromkeys((*others[number], *others[over[number]])))
    task, laid = _Task(rounded, others, over), set(over.values())
    best: _Plan | None = None
    for first in _ORDERS:
        free = (n for n in rounded if n not in laid)
        order = sorted(free, key=lambda n: (-first(lives[n], rounded[n]), lives[n].first, n))
        found = _mended(_placed(tuple(order), task), task, least)
        if best is None or found.end < best.end:
            best = found
        if best.end == least:
            break
    assert best is not None
    return best.offsets, best.end


def aligned(size: int) -> int:
    """The bytes that a buffer takes, for an empty one has an address too."""
    return -(-max(size, 1) // ALIGN) * ALIGN


def _live_together(
    lives: Mapping[BufferId, Life], sizes: _Sizes
) -> dict[BufferId, tuple[BufferId, ...]]:
    """For each buffer those that live with it, in the order of `sizes`: one sweep over the births,
    with what still lives then at hand."""
    found: dict[BufferId, list[BufferId]] = {n: [] for n in sizes}
    alive: list[tuple[int, BufferId]] = []  # a heap: what dies first is in front
    for number in sorted(sizes, key=lambda n: lives[n].first):
        while alive and alive[0][0] < lives[number].first:
            heappop(alive)
        for _, other in alive:
            found[number].append(other)
            found[other].append(number)
        heappush(alive, (lives[number].last, number))
    places = {n: place for place, n in enumerate(sizes)}
    return {n: tuple(sorted(others, key=places.__getitem__)) for n, others in found.items()}


def _placed(order: tuple[BufferId, ...], task: _Task) -> _Plan:
    offsets: dict[BufferId, int] = {}
    sizes = task.sizes
    for number in order:
        near = (m for m in task.others[number] if m in offsets)
        offset = _best_gap(sorted((offsets[m], offsets[m] + sizes[m]) for m in near), sizes[number])
        laid: BufferId | None = number
        while laid is not None:
            offsets[laid] = offset
            laid = task.over.get(laid)
    return _Plan(order, offsets, max((offsets[n] + sizes[n] for n in order), default=0))


def _best_gap(busy: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap between busy ranges that holds `size`, else their end."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in busy:
        gap = start - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, stop)
    return end if best is None else best[1]


def _mended(plan: _Plan, task: _Task, least: int) -> _Plan:
    """A plan of no larger arena, better by one move of one buffer after another."""
    tries = 0
    while plan.end > least:
        for order in _moves(plan, task):
            tries += 1
            found = _placed(order, task)
            if _rank(found, task.sizes) < _rank(plan, task.sizes):
                plan = found
                break
            if tries == _TRIES:
                return plan
        else:
            return plan
    return plan


def _rank(plan: _Plan, sizes: _Sizes) -> tuple[int, int]:
    return plan.end, len(plan.at_end(sizes))


def _moves(plan: _Plan, task: _Task) -> list[tuple[BufferId, ...]]:
    """Orders in which the first buffer at the arena's end comes before one that it lives with."""
    late = plan.at_end(task.sizes)[0]
    rest = [n for n in plan.order if n != late]
    spots = [i for i in range(plan.order.index(late)) if plan.order[i] in task.others[late]]
    return [(*rest[:i], late, *rest[i:]) for i in spots]
