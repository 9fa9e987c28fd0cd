"""Machine: what a processor does in a cycle and a second, as far as prices depend on it.

`MACHINES` is the table of shipped constants. `machine_for` picks a row by the processor's name,
else by its vectors. `tcc doctor --calibrate` measures another machine (see `machine_file`).

Sources of the numbers. *measured*: by the calibration's kernels on the machine in parentheses, on
huge pages. *manual*: the vendor's optimisation manual. *assumed*: taken from the row named.

    icelake-server  measured (Xeon, 2.8 GHz nominal, two cores of a shared host); the clock is that
                    at which prices of matmuls are right: a busy host's calibration finds 2.35
    znver4          measured (EPYC Genoa, two cores of a shared host); what the core hides and
                    `wait`: from the times of 2,000 schedules (`scripts/price_check`); `crossing`
                    assumed to be hidden
    znver5          measured (EPYC Turin, two cores of a shared host); what the core hides and
                    `wait` assumed from znver4; `ahead`: from a matmul of one row with and without
                    hints in turns, on one thread (0.66) and two (0.93)
    sapphirerapids  ports manual, L2 size; all else assumed from icelake-server
    skylake-avx512  ports manual; all else assumed from icelake-server
    x86-64-v4       the lowest of the 512-bit rows, so that no price counts on more than there is
    x86-64-v3       ports manual (Haswell and later, Zen 2 and later); memory assumed from v4;
                    `crossing` measured on icelake-server
    x86-64-v2       ports manual (no fused multiply-add: two instructions each)
    neoverse-n1     ports manual; functions by their vectors' length, all else assumed from v3
    neoverse-v1     ports manual; all else assumed from neoverse-n1
    cortex-a72      ports manual; all else assumed from neoverse-n1
    generic         any 64-bit Arm: assumed from neoverse-n1, with caches as of cortex-a72

The rows' rates of memory are those of prefetched lines in eight streams, as kernels read panels of
weights. The calibration's loop and `scripts/peaks.c` measure the same.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import exp
from types import MappingProxyType

from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.schedule.limits import CORE_LIMITS, FusionLimits, Rates
from tcc.target import Profile

# The share of its size that a cache serves if other data also streams through it.
SHARE = 0.75


@frozen
class Cache:
    """A cache of `size` bytes; one core moves `read` and `write` bytes a cycle to and from it."""

    size: int
    read: float
    write: float

    def lost(self, bytes_: int | None) -> float:
        """Returns the fraction of `bytes_` that the cache does not keep from one pass over them to
        the next, in eighths, so that similar models have equal prices. None: far more than its
        size.

        A new line replaces any other with equal chance: of x times the room, the fraction h is kept
        with h = exp(-(1 - h) x). (Measured on one core of an Ice Lake: 0.7, 0.8, 1 and 1.3 times
        the third cache at 23, 20, 15 and 13 GB/s, where it gives 23 and memory 10.)
        """
        if bytes_ is None:
            return 1.0
        hit_rate, ratio = 0.0, bytes_ / (SHARE * self.size)
        for _ in range(64):
            hit_rate = exp((hit_rate - 1) * ratio)
        return round(8 * (1 - hit_rate)) / 8


@frozen
class Memory:
    """Streaming rates in bytes a second, of one core alone and of all `cores` together.

    `read` and `read_all` are the fastest rates. A prefetched stream reaches the share `ahead` of
    them, and a stream that leaves this to the cache's own prefetcher the share `in_order`.
    `latency` is the seconds until the first byte of an unexpected access arrives.
    """

    read: float
    write: float
    read_all: float
    write_all: float
    latency: float
    in_order: float
    ahead: float

    def reading(self, *, together: bool, ahead: bool = False) -> float:
        """Returns the bytes read a second by one core or all `together`, in order or prefetched
        (`ahead`)."""
        rate = self.read_all if together else self.read
        return rate * (self.ahead if ahead else self.in_order)

    @property
    def hinted(self) -> bool:
        """Returns True if prefetching lines makes a stream faster."""
        return self.ahead >= self.in_order


@frozen
class Machine:
    """`cores` equal cores, the threads that a price counts on. Rates are per core and cycle.

    `ghz` is the clock while vector units are busy, `lanes` the f32 elements of a vector and
    `registers` their number. `fmas`, `loads` and `stores` count vector instructions; a load may
    broadcast. In cycles are `fma_latency`; `loop`, to enter and leave a loop of sums; `wait`, for a
    vector of sums to go to scratch and come back; and `fold`, to add up the lanes of a vector of
    sums.

    The time of resources that are busy at once is the `rivals`-th root of the sum of their times to
    the power of `rivals`: a higher number means that the core overlaps more. Arithmetic does not
    hide the share `l3_exposed` of the traffic from the third cache, and `memory_exposed` of the
    traffic from memory at the pace of one core.

    Vectors that lie in two lines take `crossing` times as long from the second cache as others.

    `functions` are the cycles of one vector of f32 for functions that are no single fast
    instruction; `call` is that of a function that is not listed. `l1` is in bytes; all cores share
    `l3`. `fork` is the seconds of handing a kernel to all threads, `launch` of running one on the
    calling thread.
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

    def rates(self, constants: int | None) -> Rates:
        """Returns the rates of all cores together, for models with `constants` bytes of weights."""
        products, memory, clock = self.peak / 2, self.memory.read_all, self.cores * self.hertz
        weights = self.constants(constants, memory)
        exchanged = clock / (1 / self.l2.read + 1 / self.l2.write)
        return Rates(products, products / self.fmas, memory, weights, exchanged)

    @property
    def limits(self) -> FusionLimits:
        """Returns what bounds a kernel: from the machine's rates, and the usual limits where these
        say nothing."""
        rates = self.rates(None)
        exchange, launch = rates.elementwise / rates.exchanged, self.fork * rates.exchanged
        return replace(CORE_LIMITS, exchange=exchange, launch_bytes=launch)

    def constants(self, bytes_: int | None, memory: float) -> float:
        """Returns the bytes of constants a second that the third cache and `memory` deliver, if
        there are `bytes_` in all."""
        lost = self.l3.lost(bytes_)
        return 1 / (lost / memory + (1 - lost) / (self.cores * self.l3.read * self.hertz))

    def bypasses(self, bytes_: int) -> bool:
        """Returns True if stores past the caches save time in a kernel that touches `bytes_` of
        operands and results.

        They save reading the lines of a result that the last cache does not hold. But the part that
        it would hold goes to memory, and its reader fetches it from there.
        """
        memory = self.memory
        return bytes_ > self.l3.size * (2 + memory.reading(together=True) / memory.write_all)

    def width(self, bytes_: int) -> int:
        """Returns the elements of `bytes_` each in one vector of arithmetic; smaller ones than four
        bytes are widened to f32."""
        return max(1, self.lanes * 4 // max(4, bytes_))


_KIB, _MIB = 1 << 10, 1 << 20

_ICELAKE = Machine(
    name="icelake-server", cores=2, ghz=2.75, lanes=16, registers=32, fmas=2.0, fma_latency=4.0,
    loads=1.3, stores=1.0,
    loop=68.0, wait=0.0, fold=12.0, rivals=4.0, l3_exposed=0.6, memory_exposed=0.0,
    crossing=2.3,
    functions=MappingProxyType(
        {
            **{"div": 7.5, "sqrt": 9.0, "exp": 9.0, "expm1": 12.0, "tanh": 18.0, "log": 16.0},
            **{"log1p": 21.0, "erf": 30.0, "sin": 24.0, "cos": 24.0, "tan": 26.0, "pow": 80.0},
            "gather": 15.0,
        }
    ),
    call=320.0, l1=48 * _KIB, l2=Cache(1280 * _KIB, 47.0, 21.0), l3=Cache(12 * _MIB, 8.5, 6.8),
    memory=Memory(14.5e9, 7.5e9, 27e9, 12.5e9, 180e-9, 0.71, 1.0), fork=0.2e-6, launch=0.015e-6,
)  # fmt: skip
_ZEN4 = Machine(
    name="znver4", cores=2, ghz=3.69, lanes=16, registers=32, fmas=1.0, fma_latency=4.0, loads=1.0,
    stores=0.5,
    loop=0.0, wait=5.0, fold=3.0, rivals=16.0, l3_exposed=0.35, memory_exposed=0.75,
    crossing=1.0,
    functions=MappingProxyType(
        {
            **{"div": 6.0, "sqrt": 10.0, "exp": 10.7, "expm1": 13.5, "tanh": 23.0, "log": 22.0},
            **{"log1p": 31.0, "erf": 30.0, "sin": 35.0, "cos": 34.0, "tan": 37.0, "pow": 95.0},
            "gather": 12.7,
        }
    ),
    call=570.0, l1=32 * _KIB, l2=Cache(_MIB, 30.0, 25.0), l3=Cache(32 * _MIB, 26.0, 24.0),
    memory=Memory(31e9, 24e9, 34e9, 27e9, 165e-9, 1.0, 0.83), fork=0.16e-6, launch=0.015e-6,
)  # fmt: skip
_ZEN5 = replace(
    _ZEN4, name="znver5", ghz=4.1, fmas=2.0, fma_latency=4.0, loads=2.0, stores=1.0, crossing=1.16,
    functions=MappingProxyType(
        {
            **{"div": 2.5, "sqrt": 4.5, "exp": 5.5, "expm1": 8.2, "tanh": 11.6, "log": 13.0},
            **{"log1p": 19.0, "erf": 16.0, "sin": 19.5, "cos": 19.0, "tan": 20.7, "pow": 61.0},
            "gather": 15.3,
        }
    ),
    call=510.0, l1=48 * _KIB, l2=Cache(_MIB, 62.0, 62.0), l3=Cache(32 * _MIB, 27.5, 25.0),
    memory=Memory(42e9, 40e9, 55e9, 41.5e9, 90e-9, 1.0, 0.79), fork=0.126e-6, launch=0.0093e-6,
)  # fmt: skip
_SAPPHIRE = replace(_ICELAKE, name="sapphirerapids", l2=Cache(2 * _MIB, 47.0, 21.0))
_SKYLAKE = replace(_ICELAKE, name="skylake-avx512", l1=32 * _KIB, l2=Cache(_MIB, 47.0, 21.0))
_V4 = replace(
    _ICELAKE, name="x86-64-v4", fmas=1.0, loads=1.0, stores=0.5, functions=_ZEN4.functions,
    l1=32 * _KIB, l2=Cache(_MIB, 27.0, 20.0),
)  # fmt: skip
_V3 = replace(
    _V4, name="x86-64-v3", ghz=3.0, lanes=8, registers=16, fmas=2.0, loads=2.0, stores=1.0,
    crossing=1.1,
    l2=Cache(256 * _KIB, 27.0, 16.0), l3=Cache(8 * _MIB, 10.0, 8.0),
)  # fmt: skip
_V2 = replace(_V3, name="x86-64-v2", lanes=4, fmas=0.5, loads=1.0)

_N1 = replace(
    _V3, name="neoverse-n1", ghz=2.5, lanes=4, registers=32, fmas=2.0, loads=2.0, stores=1.0,
    l1=64 * _KIB, l2=Cache(_MIB, 32.0, 16.0), l3=Cache(32 * _MIB, 16.0, 16.0),
)  # fmt: skip
_NEOVERSE_V1 = replace(_N1, name="neoverse-v1", fmas=4.0, loads=3.0, stores=2.0)
_A72 = replace(
    _N1, name="cortex-a72", ghz=1.5, fmas=1.0, fma_latency=7.0, loads=1.0, l1=32 * _KIB,
    l2=Cache(_MIB, 16.0, 8.0), l3=Cache(2 * _MIB, 8.0, 8.0),
    memory=Memory(4e9, 3e9, 6e9, 5e9, 180e-9, 1.0, 1.0),
)  # fmt: skip
_GENERIC = replace(_N1, name="generic", l1=_A72.l1, l2=_A72.l2, l3=_A72.l3)

MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        m.name: m
        for m in (
            *(_V2, _V3, _V4, _SKYLAKE, _ICELAKE, _SAPPHIRE, _ZEN4, _ZEN5),
            *(_GENERIC, _A72, _N1, _NEOVERSE_V1),
        )
    }
)

# LLVM's names of processors that use a row of another name.
_ALIKE = MappingProxyType(
    {
        "cascadelake": "skylake-avx512",
        "cooperlake": "skylake-avx512",
        "icelake-client": "icelake-server",
        "tigerlake": "icelake-server",
        "rocketlake": "icelake-server",
        "emeraldrapids": "sapphirerapids",
        "graniterapids": "sapphirerapids",
        "cortex-a76": "neoverse-n1",
        "ampere1": "neoverse-n1",
        "neoverse-v2": "neoverse-v1",
        "neoverse-n2": "neoverse-n1",
        "cortex-a53": "cortex-a72",
        "cortex-a57": "cortex-a72",
    }
)
_BY_VECTOR = MappingProxyType(
    {
        ("x86-64", 512): "x86-64-v4",
        ("x86-64", 256): "x86-64-v3",
        ("x86-64", 128): "x86-64-v2",
        ("aarch64", 128): "generic",
    }
)


def machine_for(profile: Profile) -> Machine:
    """Returns the shipped row for a processor, with the profile's vectors and first two caches.

    The last cache is shared, so it counts with at most the row's size. The result depends on the
    profile alone. Raises InternalError for vectors of a width that no row has.
    """
    vectors = profile.arch, profile.vector_bits
    if vectors not in _BY_VECTOR:
        raise InternalError(f"no machine has vectors of {profile.vector_bits} bits")
    named = MACHINES.get(_ALIKE.get(profile.cpu, profile.cpu))
    fallback = MACHINES[_BY_VECTOR[vectors]]
    # A hypervisor may hide features that the name promises.
    fits = named is not None and named.lanes == profile.lanes(32)
    row = named if named is not None and fits else fallback
    return replace(
        row,
        registers=profile.vector_registers,
        l1=profile.l1,
        l2=replace(row.l2, size=profile.l2),
        l3=replace(row.l3, size=min(row.l3.size, profile.l3)),
    )
