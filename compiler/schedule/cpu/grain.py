"""The grain of a kernel: the fewest tiles that are enough work for a thread of their own.

    softmax, a tile is 1 row of n    ->    ceil(2**28 / max(1, min(n, 2**28) * 1100000))

Work is counted in a unit such that `_WORTH` units are enough for a thread. So the grain is `_WORTH`
divided by the work of a tile.
"""

from collections.abc import Iterator, Sequence
from math import prod

from tcc.ir.expr import extent, known_extent
from tcc.ir.index import Index, Var, as_int, ceildiv, const, maximum, minimum, of_atom
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.schedule.cpu.along import loops_of, nest_along
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.limits import FusionLimits
from tcc.schedule.nest import contracts, weight

# Registers of the host program have 64 bits. A sum of products a * b with a, b <= _WORTH, one for
# each stage of a kernel, fits a register. So the formula overflows at no sizes of a run.
_WORTH = 1 << 28


def least_units(group: TileGroup, schedule: Schedule, limits: FusionLimits) -> Index:
    """Returns the number of tiles that are enough work for a thread, at least 1.

    It is a formula of the sizes if the work of a tile depends on them. A run can compute the
    formula at all sizes, also at 0 and near 2**63.
    """
    loops = [v for v in group.common if v.name in schedule.parallel]
    tiles = prod(-(-n // schedule.tile_size(v.name)) for v in loops for n in [known_extent(v)] if n)
    shares = (
        _share(stage, _sizes(group, schedule, number), tiles, limits)
        for number, stage in enumerate(group.stages)
    )
    return ceildiv(_WORTH, maximum(sum(shares, start=const(0)), 1))


def _share(stage: GroupStage, sizes: list[Index], tiles: int, limits: FusionLimits) -> Index:
    """Returns the work of one tile on a stage, in units of 1/`_WORTH` of what a thread needs.

    It is at most about `_WORTH`. The product of `sizes` is how often all `tiles` together evaluate
    the stage's body.
    """
    is_contraction = contracts(stage)
    rate = limits.contraction_rate if is_contraction else limits.plain_rate
    operations = weight(stage) * prod(n for n in map(as_int, sizes) if n is not None)
    nanoseconds = rate * limits.least_nanoseconds
    share = const(min(-(-_WORTH * operations // (nanoseconds * tiles)), _WORTH))
    return _product(share, [size for size in sizes if as_int(size) is None])


def _product(first: Index, factors: Sequence[Index]) -> Index:
    """Returns the product of `first` and `factors`; each factor is clamped to 0 .. `_WORTH`, and
    each intermediate product to `_WORTH`, so that none overflows a register."""
    for factor in factors:
        first = minimum(first, _WORTH) * minimum(maximum(factor, 0), _WORTH)
    return first


def _sizes(group: TileGroup, schedule: Schedule, number: int) -> list[Index]:
    """Returns the factors of the work on stage `number`, one or more for each loop.

    A loop of known size contributes the number of all its iterations. A parallel loop of symbolic
    size contributes the number of its iterations in one tile.
    """
    nest, stage = schedule.nest(number), group.stages[number]
    if number in nest.along:
        nest = nest_along(nest, loops_of(group, nest))
    sizes: list[Index] = []
    for loop in stage.loops:
        factors, vectors = [*_factors(_size(schedule, stage, loop))], nest.vectors_along(loop.name)
        if vectors is not None and vectors.masked:
            # A partly filled vector takes as long as a full one.
            factors = [maximum(_product(const(1), factors), vectors.lanes)]
        sizes += factors
    return sizes


def _size(schedule: Schedule, stage: GroupStage, loop: Var) -> Index:
    """Returns the trips of a loop; for a parallel loop of symbolic size the trips in one tile."""
    size, strip = extent(loop), stage.strip
    if as_int(size) is not None:
        return size
    if loop.name in schedule.parallel:
        return const(schedule.tile_size(loop.name))
    if strip is not None and strip.rows is loop and strip.loop.name in schedule.parallel:
        return const(strip.count(schedule.tile_size(strip.loop.name)))
    return size


def _factors(size: Index) -> Iterator[Index]:
    """Yields the factors of a product; any other size is its own factor."""
    match size.terms:
        case [(monomial, coeff)] if not size.const:
            yield const(coeff)
            yield from map(of_atom, monomial)
        case _:
            yield size
