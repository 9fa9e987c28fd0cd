"""Offsets of buffers with given lives: disjoint where they must be, in little more than is live."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tcc.passes.memory.merge_buffers import Life, most_live
from tcc.passes.memory.place_buffers import place_buffers

LINE = 64

# First and last position, and cache lines.
Spans = Sequence[tuple[int, int, int]]


def place(spans: Spans) -> tuple[dict[int, int], int]:
    lives = {n: Life(first, last) for n, (first, last, _) in enumerate(spans)}
    sizes = {n: size * LINE for n, (_, _, size) in enumerate(spans)}
    return place_buffers(lives, sizes)


def live_lines(spans: Spans) -> int:
    """By looking at each position."""
    end = max((last for _, last, _ in spans), default=0)
    return max(
        sum(size for first, last, size in spans if first <= at <= last) for at in range(end + 1)
    )


def check(spans: Spans) -> int:
    """The arena's cache lines, after no two buffers were found in one place at one time."""
    offsets, end = place(spans)
    assert end % LINE == 0
    for at in range(max(last for _, last, _ in spans) + 1):
        taken: set[int] = set()
        for n, (first, last, size) in enumerate(spans):
            if first <= at <= last:
                lines = range(offsets[n] // LINE, offsets[n] // LINE + size)
                assert offsets[n] % LINE == 0
                assert not taken & set(lines)
                taken |= set(lines)
    assert max(offsets[n] + size * LINE for n, (_, _, size) in enumerate(spans)) == end
    return end // LINE


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 0, 1)],
        [(0, 2, 3), (1, 3, 1), (3, 4, 2), (4, 4, 5)],
        [(1, 3, 3), (3, 4, 2), (0, 2, 5), (3, 7, 4)],  # 10 by each order alone
    ],
)
def test_plans_that_need_no_more_than_is_live(spans: Spans) -> None:
    assert check(spans) == live_lines(spans)


def test_random_lives() -> None:
    rng = random.Random(0)
    over = 0
    for _ in range(500):
        spans = []
        for _ in range(rng.randint(1, 12)):
            first = rng.randint(0, 9)
            spans.append((first, min(9, first + rng.randint(0, 5)), rng.randint(1, 5)))
        least, found = live_lines(spans), check(spans)
        lives = {n: Life(first, last) for n, (first, last, _) in enumerate(spans)}
        assert most_live(lives, {n: size for n, (_, _, size) in enumerate(spans)}) == least
        assert least <= found <= 1.25 * least
        over += found > least
    assert over <= 25, "one plan of twenty may be larger than what is live"


def test_what_lies_over_others_has_their_offset() -> None:
    """Buffers cut in two: from some position on only a front of them is needed."""
    rng = random.Random(2)
    spared = 0
    for _ in range(300):
        spans, over = [], {}
        for _ in range(rng.randint(2, 8)):
            first, last = sorted(rng.sample(range(10), 2))
            size = rng.randint(2, 9)
            spans.append((first, last, size))
            if last > first + 1 and rng.random() < 0.5:
                cut = rng.randint(first, last - 1)
                spans[-1] = (first, cut, size)
                over[len(spans) - 1] = len(spans)
                spans.append((cut + 1, last, rng.randint(1, size)))
        lives = {n: Life(first, last) for n, (first, last, _) in enumerate(spans)}
        sizes = {n: size * LINE for n, (_, _, size) in enumerate(spans)}
        offsets, end = place_buffers(lives, sizes, over)
        assert all(offsets[new] == offsets[old] for old, new in over.items())
        for at in range(10):
            live = [n for n, (first, last, _) in enumerate(spans) if first <= at <= last]
            lines = [offsets[n] // LINE + k for n in live for k in range(spans[n][2])]
            assert len(lines) == len(set(lines))
            assert max(lines, default=0) * LINE < end
        whole = {old: Life(lives[old].first, lives[new].last) for old, new in over.items()}
        kept = {n: life for n, life in (lives | whole).items() if n not in over.values()}
        spared += end < place_buffers(kept, {n: sizes[n] for n in kept})[1]
    assert spared > 60, "fronts leave room that others take"


def test_sizes_are_rounded_to_cache_lines() -> None:
    lives = {0: Life(0, 1), 1: Life(0, 1), 2: Life(1, 1)}
    offsets, end = place_buffers(lives, {0: 1, 1: 65, 2: 0})
    assert sorted(offsets.values()) == [0, 2 * LINE, 3 * LINE]
    assert end == 4 * LINE


def test_no_buffers() -> None:
    assert place_buffers({}, {}) == ({}, 0)


class Counted(dict[int, Life]):
    """Lives that count how often they are looked up."""

    looked = 0

    def __getitem__(self, buffer: int) -> Life:
        self.looked += 1
        return super().__getitem__(buffer)


def test_steps_grow_with_buffers_and_not_with_pairs_of_them() -> None:
    rng = random.Random(1)
    count = 20_000
    lives = Counted({n: Life(n // 2, n // 2 + rng.randint(0, 3)) for n in range(count)})
    sizes = {n: rng.randint(1, 9) * LINE for n in range(count)}
    _, end = place_buffers(lives, sizes)
    assert end <= 1.25 * most_live(lives, sizes)
    assert lives.looked <= 16 * count
