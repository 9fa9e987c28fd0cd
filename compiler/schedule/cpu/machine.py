"""The rates and cache sizes of a processor, from which kernels are priced.

`shipped_machines` has the machines that come with tcc. `machine_file` reads and writes them.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import exp

from tcc.frozen import frozen
from tcc.schedule.limits import CORE_LIMITS, FusionLimits, Rates

# The fraction of its size that a cache serves, because other data also streams through it.
SHARE = 0.75


@frozen
class Cache:
    """A cache of `size` bytes; one core moves `read` and `write` bytes a cycle to and from it."""

    size: int
    read: float
    write: float

    def lost(self, bytes_: int | None) -> float:
        """Returns the fraction of `bytes_` that the cache loses between two passes over them.

        The fraction is rounded to eighths, so that similar models have equal prices. None stands
        for far more bytes than the cache holds.

        The formula is that of a cache that replaces random lines. If `bytes_` is x times the part
        `SHARE` of the cache, the cache keeps the fraction h with h = exp(-(1 - h) x). Measured on
        one core of an Ice Lake: 0.7, 0.8, 1 and 1.3 times the bytes of L3 are read at 23, 20, 15
        and 13 GB/s. Few bytes are read from L3 at 23 GB/s, and very many from memory at 10 GB/s.
        """
        if bytes_ is None:
            return 1.0
        hit_rate, ratio = 0.0, bytes_ / (SHARE * self.size)
        for _ in range(64):
            hit_rate = exp((hit_rate - 1) * ratio)
        return round(8 * (1 - hit_rate)) / 8


@frozen
class Memory:
    """The rates of streams from and to memory, in bytes a second.

    `read` and `write` are those of one core alone, `read_all` and `write_all` those of all cores
    together. The rates of reading are the fastest ones. A stream of prefetched lines reaches the
    fraction `ahead` of them. A stream that relies on the hardware prefetcher reaches the fraction
    `in_order`. `latency` is the seconds until the first byte of an unexpected access arrives.
    """

    read: float
    write: float
    read_all: float
    write_all: float
    latency: float
    in_order: float
    ahead: float

    def reading(self, *, together: bool, ahead: bool = False) -> float:
        """Returns the bytes read in a second by one core, or by all cores `together`.

        `ahead`: the lines are prefetched; else they are read in order.
        """
        rate = self.read_all if together else self.read
        return rate * (self.ahead if ahead else self.in_order)

    @property
    def hinted(self) -> bool:
        """Returns True if prefetching lines makes a stream faster."""
        return self.ahead >= self.in_order


@frozen
class Machine:
    """The rates of a processor.

    It has `cores` equal cores, and prices assume as many threads. Rates are per core and cycle.
    `ghz` is the clock while vector units are busy. A vector has `lanes` f32 elements, and there are
    `registers` vector registers.

    `fmas`, `loads` and `stores` are the vector instructions that a core executes in a cycle. A load
    may broadcast one element to all lanes.

    Times in cycles: `fma_latency` until the next addition to the same sum; `loop` to enter and
    leave a loop of sums; `wait` to store a vector of sums in scratch and load it again; `fold` to
    add up the lanes of a vector of sums.

    Resources that work at once take the `rivals`-th root of the sum of their times to the power of
    `rivals`. So a higher number means that the core overlaps more. `l3_exposed` is the fraction of
    the traffic from L3 that arithmetic does not hide. `memory_exposed` is the same fraction of the
    traffic from memory, at the rate of one core.

    A vector that crosses a cache line takes `crossing` times as long from L2 as an aligned vector.

    `functions`: for each function that is no single fast instruction, the cycles of a vector of
    f32. `call`: the same number for a function that is not listed. `l1` is in bytes; all cores
    share `l3`. `fork` is the seconds to hand a kernel to all threads, and `launch` the seconds to
    run a kernel on the calling thread.

    `foreign`: the bytes a cycle that a core reads from lines that another core wrote. The time
    comes on top of that of own lines. It contains the time until the next core that writes to
    these lines has them for itself again.
    """

    name: str
    cores: int
    ghz: float
    lanes: int
    registers: int
    fmas: float
    fma_latency: float
    loads: float
    stores: float
    loop: float
    wait: float
    fold: float
    rivals: float
    l3_exposed: float
    memory_exposed: float
    crossing: float
    functions: Mapping[str, float]
    call: float
    l1: int
    l2: Cache
    l3: Cache
    memory: Memory
    foreign: float
    fork: float
    launch: float

    @property
    def hertz(self) -> float:
        """Returns the cycles a second."""
        return self.ghz * 1e9

    @property
    def peak(self) -> float:
        """Returns the f32 operations a second of all cores; a multiply-add counts as two."""
        return 2 * self.cores * self.fmas * self.lanes * self.hertz

    @property
    def caches(self) -> list[tuple[int, float]]:
        """Returns (bytes, bytes read in a second by all cores) of a core's L1 and L2, and of L3."""
        l1 = Cache(self.l1, 4 * self.loads * self.lanes, 0)
        return [(c.size, c.read * self.cores * self.hertz) for c in (l1, self.l2, self.l3)]

    def rates(self, constants: int | None) -> Rates:
        """Returns the rates of all cores together, for models with `constants` bytes of weights."""
        products, memory, clock = self.peak / 2, self.memory.read_all, self.cores * self.hertz
        weights = self.constants(constants, memory)
        exchanged = clock / (1 / self.l2.read + 1 / self.l2.write)
        return Rates(products, products / self.fmas, memory, weights, exchanged)

    @property
    def limits(self) -> FusionLimits:
        """Returns `CORE_LIMITS` with `exchange` and `launch_bytes` computed from the rates."""
        rates = self.rates(None)
        exchange, launch = rates.elementwise / rates.exchanged, self.fork * rates.exchanged
        return replace(CORE_LIMITS, exchange=exchange, launch_bytes=launch)

    def constants(self, bytes_: int | None, memory: float) -> float:
        """Returns the bytes of constants a second that L3 and memory deliver together.

        The model has `bytes_` bytes of constants, and memory delivers `memory` bytes a second.
        """
        lost = self.l3.lost(bytes_)
        return 1 / (lost / memory + (1 - lost) / (self.cores * self.l3.read * self.hertz))

    def bypasses(self, bytes_: int) -> bool:
        """Returns True if stores that bypass the caches save time.

        `bytes_` is the size of the kernel's operands and results. A bypassing store does not read
        the line of the result first, which saves traffic if the last cache does not hold that line.
        But it also sends the lines that the cache would hold to memory, from where their reader
        must fetch them.
        """
        memory = self.memory
        return bytes_ > self.l3.size * (2 + memory.reading(together=True) / memory.write_all)

    def width(self, bytes_: int) -> int:
        """Returns the elements in one vector of arithmetic, for elements of `bytes_` bytes.

        Elements of fewer than four bytes are widened to f32.
        """
        return max(1, self.lanes * 4 // max(4, bytes_))
