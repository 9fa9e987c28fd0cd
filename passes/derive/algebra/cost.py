"""Estimates the time of a region from its work and traffic alone, without kernels.

Stages of constants are computed at compile time and cost nothing.  The result of a sum is stored
and loaded again.  A stage without a monoid is computed again by each of its readers.  Symbolic
sizes count as typical sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from tcc.ir import expr
from tcc.ir.expr.scalar import Apply, Arg, Scalar, children, walk
from tcc.ir.region import Factor, Region, RegionStage, constant_of, shape_of
from tcc.ir.region.affine import Size
from tcc.ir.region.edit import depends, readers
from tcc.schedule.alternatives import NO_TIME, Seconds
from tcc.schedule.limits import Rates
from tcc.schedule.nest import typical
from tcc.zipped import zip_equal


def count(sizes: Iterable[Size]) -> int:
    """Returns the product of extents, with typical sizes in place of symbols."""
    return prod(size if isinstance(size, int) else typical(size) for size in sizes)


def constant_stages(region: Region, constants: Sequence[bool]) -> list[bool]:
    """Returns for each stage True if it depends on constant parameters alone.

    `constants` says for each parameter if it is constant.
    """
    fixed: list[bool] = []
    for stage in region.stages:
        sources = (f.source for f in stage.factors if f.source is not None)
        fixed.append(all(constants[s] if s >= 0 else fixed[~s] for s in sources))
    return fixed


def estimate(region: Region, constants: Sequence[bool], rates: Rates) -> Seconds:
    """Returns the seconds of all stages that are not constant, one after the other.

    `constants` says for each parameter if it is constant.
    """
    fixed = constant_stages(region, constants)
    seconds = NO_TIME
    for number, stage in enumerate(region.stages):
        if not fixed[number]:
            bytes_ = sum(_traffic(region, stage, f, fixed) for f in stage.factors)
            times = 1 if stage.monoid else max(1, len(readers(region, number)))
            seconds += rates.seconds(products(stage), times * _elementwise(stage), bytes_)
    return seconds


def products(stage: RegionStage) -> float:
    """Returns the number of multiplications in a sum of products; 0 for a stage of another kind."""
    if stage.monoid != "sum" or constant_of(stage) is None or len(stage.factors) < 2:
        return 0.0
    return float(count(stage.loops)) * (len(stage.factors) - 1)


def least_seconds(region: Region, constants: Sequence[bool], rates: Rates) -> Seconds:
    """Returns the seconds of a region's multiplications at peak rate, a lower bound of its time."""
    fixed = constant_stages(region, constants)
    pairs = zip_equal(region.stages, fixed)
    total_products = sum(products(stage) for stage, is_constant in pairs if not is_constant)
    return Seconds(total_products / rates.products)


def _elementwise(stage: RegionStage) -> float:
    """Returns the number of elementwise operations of a stage; 0 for a sum of products.

    Each operation counts once for every point of the loops that it depends on.
    """
    if products(stage):
        return 0.0
    points = float(count(stage.loops))
    combined = points if stage.monoid is not None else 0.0
    if isinstance(stage.body, expr.Stage):
        return combined + points * sum(isinstance(n, Apply) for n in walk(*stage.body.body))
    loops: dict[Scalar, frozenset[int]] = {}
    for node in walk(*stage.body):
        parts = [loops[c] for c in children(node)]
        factor_loops = (
            depends(stage.factors[node.number]) if isinstance(node, Arg) else frozenset[int]()
        )
        loops[node] = factor_loops.union(*parts)
        if isinstance(node, Apply):
            combined += count(stage.loops[k] for k in loops[node])
    return combined


def _traffic(region: Region, stage: RegionStage, factor: Factor, fixed: Sequence[bool]) -> float:
    """Returns the bytes of traffic that `factor`, an access of `stage`, causes.

    A result of another stage counts twice: it is stored, and loaded here.
    """
    if factor.source is None:
        return 0.0
    transfers = 1
    if factor.source < 0 and not fixed[~factor.source]:
        if region.stages[~factor.source].monoid is None:
            return 0.0
        transfers = 2
    if isinstance(stage.body, expr.Stage):
        elements = count(shape_of(region, factor.source))
    else:
        reads = count(stage.loops[k] for k in depends(factor))
        elements = min(reads, count(shape_of(region, factor.source)))
    return float(transfers * factor.dtype.bits * elements) / 8
