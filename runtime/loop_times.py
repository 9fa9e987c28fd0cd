"""Times loops over memory, on one core or on all cores, for the constants of a machine.

Every time is the best of several short runs, because a disturbance can only make a run slower.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random
from statistics import median
from threading import Barrier
from typing import Self

# Seconds of one timed run, and how many times each run is repeated.
_RUN, _REPEATS = 0.004, 5
# The median of so many exchanges between two cores counts, and at most so many bytes per second.
_EXCHANGES, _FASTEST = 41, 1e12
_HUGE = 2 << 20
# The vectors that a step of a loop reads or writes.  They are enough independent operations to hide
# the latency of any multiply-add, and they fit in sixteen registers.
UNROLL = 12
# The loop `ahead` reads several pages at a time, so that more banks of memory are busy and the
# hardware prefetcher follows each page.
STREAMS, PAGE = 8, 4096
BLOCK = STREAMS * PAGE

_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_OVER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_STREAM = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

Timed = Callable[[int], None]  # the function repeats its work so many times


@dataclass(frozen=True, slots=True)
class Span:
    """A range of memory, aligned to 2 MiB, on huge pages where the system grants them."""

    mapping: mmap.mmap
    address: int


def take(size: int) -> Span:
    """Returns a new range of `size` bytes; the caller closes its mapping."""
    # The mapping is private, because shared mappings get no huge pages.
    mapping = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    view = (ctypes.c_char * 1).from_buffer(mapping)
    start = ctypes.addressof(view)
    del view
    return Span(mapping, start + -start % _HUGE)


class LoopTimer:
    """Runs and times the loops of a loaded library over a large range of memory.

    `address` returns the address of the loop with a name; the backend that writes the loops says
    what each does.  `caches` are the bytes of L1 and L2 of a core, and of L3.  A vector of the
    loops has `vector` bytes.  Leaving its `with` frees the memory.
    """

    def __init__(
        self, address: Callable[[str], int], caches: tuple[int, int, int], vector: int, cores: int
    ) -> None:
        l1, l2, l3 = caches
        self._address = address
        self._cpus = sorted(os.sched_getaffinity(0))[:cores]
        # Four sizes in bytes: they fit into L1, L2, L3, and into no cache.
        self.first, self.second = l1 // 2, l2 // 2
        self.third = min(l2 * 4, l3 // 2)
        self.beyond = min(max(l3 * 4, 64 << 20), 256 << 20)
        self._step = UNROLL * vector
        self._span = take(self.beyond)
        self._pool = ThreadPoolExecutor(cores)
        ctypes.memset(self._span.address, 0, self.beyond)
        self._spin = _LOOP(address("spin"))
        self._streams = {n: _STREAM(address(n)) for n in ("read", "ahead", "write")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self._span.mapping.close()

    def spin(self, core: int) -> Timed:
        """Returns the loop without memory, which is the same on each core."""
        return lambda n: self._spin(n)

    def over(self, name: str) -> Callable[[int], Timed]:
        """Returns a function that gives the loop `name` over the memory of a core."""
        loop = _OVER(self._address(name))
        return lambda core: partial(loop, self._span.address + core * 4096)

    def rate(self, name: str, size: int, cores: int = 1, shift: int = 0) -> float:
        """Returns the bytes per second of all `cores` together.

        Each core reads or writes its own share of `size` bytes. The share begins `shift` bytes
        after the start of a cache line.
        """
        step = BLOCK if name == "ahead" else self._step
        part = size // cores // step * step
        vectors = part // (self._step // UNROLL)

        def make(core: int) -> Timed:
            start = self._span.address + shift + core * (size // cores // 4096 * 4096)
            return lambda n: self._streams[name](start, vectors, n)

        return part * cores / self.seconds(make, cores)

    def latency(self, size: int) -> float:
        """Returns the seconds of a load that no prefetcher predicts."""
        line, start = 256, self._span.address
        order = list(range(1, size // line))
        Random(0).shuffle(order)
        places = [start + n * line for n in (0, *order[: 1 << 14])]
        for place, following in pairwise((*places, start)):
            ctypes.c_uint64.from_address(place).value = following
        chase = self.over("chase")(0)

        def chased() -> float:
            self._streams["read"](start, size // (self._step // UNROLL) // UNROLL * UNROLL, 1)
            return _seconds(chase, len(places))

        return min(chased() for _ in range(3)) / len(places)

    def exchange(self, size: int) -> float:
        """Returns the bytes per second of `size` bytes that one core writes, another core reads and
        the first one writes again, on top of the time that it takes on one core."""
        vectors = size // self._step * UNROLL
        writer, reader = self._cpus[:2]

        def passed(name: str, cpu: int) -> float:
            # A thread that has just moved to a CPU is slow at first, so it reads other memory
            # before.
            os.sched_setaffinity(0, {cpu})
            self._streams[name](self._span.address + self.third, vectors, 1)
            return _seconds(partial(self._streams[name], self._span.address, vectors), 1)

        def extra() -> float:
            passed("write", writer)
            one_core = passed("read", writer) + passed("write", writer)
            return passed("read", reader) + passed("write", writer) - one_core

        waits = [self._pool.submit(extra).result() for _ in range(_EXCHANGES)]
        return size / max(median(waits), size / _FASTEST)

    def seconds(self, make: Callable[[int], Timed], cores: int = 1) -> float:
        """Returns the best seconds of one repetition while `cores` cores work; the slowest core
        counts."""
        work = [make(core) for core in range(cores)]
        if cores == 1:
            return best_seconds(work[0])
        count = _enough(work[0])
        start = Barrier(cores)

        def run(cpu: int, timed: Timed) -> float:
            # Each thread is bound to its own CPU. Otherwise the system might run two threads on one
            # CPU for all of a short run.
            os.sched_setaffinity(0, {cpu})
            start.wait()
            return _seconds(timed, count)

        runs = (max(self._pool.map(run, self._cpus, work)) for _ in range(_REPEATS))
        return min(runs) / count


def _seconds(work: Timed, count: int) -> float:
    begin = time.perf_counter()
    work(count)
    return time.perf_counter() - begin


def _enough(work: Timed) -> int:
    """Returns how many repetitions take about `_RUN` seconds."""
    count = 1
    while True:
        elapsed = _seconds(work, count)
        if elapsed > _RUN / 4:
            return max(1, round(count * _RUN / elapsed))
        count *= 4


def best_seconds(timed: Timed) -> float:
    """Returns the best seconds of one repetition."""
    count = _enough(timed)
    return min(_seconds(timed, count) for _ in range(_REPEATS)) / count
