"""What a convolution takes directly and in a Winograd form, in a core's cycles.

The larger of computing and moving data, for each kernel: predictions only have to rank two ways of
computing one thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tcc.passes.winograd_forms import Form
from tcc.schedule.machine import Cache, Machine


@dataclass(frozen=True, slots=True)
class Rates:
    """One core: f32 operations a cycle (a multiply-add is two), bytes of second-level cache, and
    bytes a cycle from there, from the shared cache, and from memory (its share).  `direct` is how
    many times the operations a direct convolution does in a cycle, in a narrower type."""

    flops: float
    l2: int
    near: float = 32.0
    shared: float = 8.0
    memory: float = 4.0
    direct: float = 1.0


def rates_of(machine: Machine, direct: float = 1.0) -> Rates:
    """The rates of one core of `machine` while all of them work; moves read and write."""
    return Rates(
        2 * machine.fmas * machine.lanes,
        machine.l2.size,
        _both(machine.l2),
        _both(machine.l3),
        machine.memory.reading(together=True) / machine.cores / machine.hertz,
        direct,
    )


def _both(cache: Cache) -> float:
    return 2 / (1 / cache.read + 1 / cache.write)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A 3 x 3 convolution of stride 1: `results` along y and x."""

    images: int
    channels: int
    filters: int
    results: tuple[int, int]
    dilations: tuple[int, int]


# Rows of results that a matrix kernel computes at once.
_ROWS = 6


def direct_price(sizes: Sizes, rates: Rates) -> float:
    """Cycles of the direct convolution."""
    places = sizes.images * prod(sizes.results)
    weights = 9 * sizes.channels * sizes.filters
    return max(2 * weights * places / (rates.flops * rates.direct), 4 * weights / rates.memory)


def winograd_price(sizes: Sizes, form: Form, rates: Rates) -> float:
    """Cycles of the transforms and the products of `form`."""
    along = (d * -(-n // (d * form.m)) for n, d in zip(sizes.results, sizes.dilations, strict=True))
    tiles = sizes.images * prod(along)
    values, sums = tiles * form.points * sizes.channels, tiles * form.points * sizes.filters
    weights = form.points * sizes.channels * sizes.filters
    rows = -(-tiles // _ROWS) * _ROWS if tiles > _ROWS else tiles
    multiply = max(
        2 * weights * rows / rates.flops,
        4 * weights / rates.memory,
        _moved(values, rates) + _moved(sums, rates),
    )
    return multiply + _transform(values, rates) + _transform(sums, rates)


def _transform(elements: int, rates: Rates) -> float:
    """About eight additions an element; what the other side holds is less than half."""
    return max(16 * elements / rates.flops, 1.5 * _moved(elements, rates))


def _moved(elements: int, rates: Rates) -> float:
    return 4 * elements / (rates.near if 4 * elements < rates.l2 else rates.shared)
