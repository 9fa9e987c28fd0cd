"""Traces of takes, gives and resizes for `pool trace`: growing caches, experts, different sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator


def grown_caches(layers: int, steps: int) -> Iterator[str]:
    """Yields a trace of key and value caches that grow by a row per step, beside scores of each
    layer."""
    row = 2048
    for cache in range(2 * layers):
        yield f"take {cache} {64 * row}"
    for step in range(steps):
        for layer in range(layers):
            yield f"take {2 * layers} {(64 + step) * 64}"
            for cache in (2 * layer, 2 * layer + 1):
                yield f"resize {cache} {(65 + step) * row}"
            yield f"give {2 * layers}"


def copied_caches(layers: int, steps: int) -> Iterator[str]:
    """Yields a trace of caches that are concatenated with one more row at every step."""
    row, current, free = 2048, list(range(2 * layers)), [2 * layers]
    for cache in current:
        yield f"take {cache} {64 * row}"
    for step in range(steps):
        for i, old in enumerate(current):
            new = free.pop()
            yield f"take {new} {(65 + step) * row}"
            yield f"give {old}"
            free.append(old)
            current[i] = new


def served_requests(active: int, steps: int) -> Iterator[str]:
    """Yields a trace of requests that come and go with different lengths, and whose caches grow at
    every step."""
    draw, row, caches = random.Random(2), 4096, 4
    free, live = list(range(active * caches)), list[tuple[list[int], int, int]]()
    for _ in range(steps):
        if len(live) < active:
            ids, start = [free.pop(0) for _ in range(caches)], draw.randrange(16, 512)
            live.append((ids, start, start + draw.randrange(16, 400)))
            yield from (f"take {i} {start * row}" for i in ids)
        for at, (ids, length, end) in enumerate(live):
            live[at] = (ids, length + 1, end)
            yield from (f"resize {i} {(length + 1) * row}" for i in ids)
        for ids, length, end in live:
            if length >= end:
                free += ids
                yield from (f"give {i}" for i in ids)
        live = [entry for entry in live if entry[1] < entry[2]]


def experts(layers: int, steps: int) -> Iterator[str]:
    """Yields a trace of a batch whose tokens go to experts by a skewed draw, and come back in
    another order."""
    draw, count, width = random.Random(3), 64, 1024
    for _ in range(steps):
        tokens = draw.randrange(128, 512)
        yield f"take 0 {tokens * width * 4}"
        for _ in range(layers):
            weights = [draw.paretovariate(1.2) for _ in range(count)]
            shares = [int(2 * tokens * w / sum(weights)) for w in weights]
            experts_in_use = [e for e in range(count) if shares[e]]
            yield from (f"take {100 + e} {shares[e] * width * 4}" for e in experts_in_use)
            for e in experts_in_use:
                yield f"take 1 {shares[e] * width * 16}"
                yield f"take {200 + e} {shares[e] * width * 4}"
                yield "give 1"
                yield f"give {100 + e}"
            draw.shuffle(experts_in_use)
            yield from (f"give {200 + e}" for e in experts_in_use)
        yield "give 0"


def unlike_sizes(live: int, steps: int) -> Iterator[str]:
    """Yields a trace of sizes over five decades, freed in any order."""
    draw, free, live_blocks = random.Random(4), list(range(live)), list[int]()
    for _ in range(steps):
        if free and (len(live_blocks) < live // 2 or draw.random() < 0.55):
            live_blocks.append(free.pop())
            yield f"take {live_blocks[-1]} {int(draw.lognormvariate(9, 2))}"
        else:
            free.append(live_blocks.pop(draw.randrange(len(live_blocks))))
            yield f"give {free[-1]}"


TRACES = {
    "grown caches": grown_caches(16, 300),
    "copied caches": copied_caches(16, 200),
    "served requests": served_requests(8, 500),
    "experts": experts(8, 6),
    "unlike sizes": unlike_sizes(300, 6000),
}
