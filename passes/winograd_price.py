"""What a convolution takes directly and in a Winograd form, in a core's cycles.

The larger of computing and moving data, for each kernel: predictions only have to rank two ways of
computing one thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tcc.passes.winograd_forms import Form


@dataclass(frozen=True, slots=True)
class Rates:
    """One core: f32 operations a cycle (a multiply-add is two), bytes of second-level cache, and
    bytes a cycle from there, from the shared cache, and from memory (its share).  `direct` is how
    many times the operations a direct convolution does in a cycle, in a narrower type."""

    flops: float
    l2: int
    near: float = 32.0
    shared: float = 8.0
    memory: float = 6.0
    direct: float = 1.0


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
