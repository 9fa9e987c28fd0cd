"""What a region takes by its work and traffic alone: an estimate that needs no kernels.

Stages of constants are made ahead of the run.  A sum is stored and read again; what is made point
by point is made again wherever it is read.  Symbolic sizes count as typical ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from tcc.ir import expr
from tcc.ir.expr.scalar import Apply, Arg, Scalar, children, walk
from tcc.passes.derive.affine import Size
from tcc.passes.derive.edit import depends, readers
from tcc.passes.derive.record import Factor, Region, Stage, constant_of, shape_of
from tcc.schedule.limits import Rates
from tcc.schedule.nest import typical


def count(sizes: Iterable[Size]) -> int:
    """How many points a box of these extents has."""
    return prod(size if isinstance(size, int) else typical(size) for size in sizes)


def constant_stages(region: Region, constants: Sequence[bool]) -> list[bool]:
    """Of each stage whether it depends on constant parameters alone; `constants` tells of each
    parameter whether it is one."""
    fixed: list[bool] = []
    for stage in region.stages:
        sources = (f.source for f in stage.factors if f.source is not None)
        fixed.append(all(constants[s] if s >= 0 else fixed[~s] for s in sources))
    return fixed


def estimate(region: Region, constants: Sequence[bool], rates: Rates) -> float:
    """Seconds of all stages that are not constant, one after the other."""
    fixed = constant_stages(region, constants)
    total = 0.0
    for number, stage in enumerate(region.stages):
        if not fixed[number]:
            bytes_ = sum(_traffic(region, stage, f, fixed) for f in stage.factors)
            times = 1 if stage.monoid else max(1, len(readers(region, number)))
            total += rates.seconds(products(stage), times * _others(stage), bytes_)
    return total


def products(stage: Stage) -> float:
    """Products that are added up; 0 for a stage that is no sum of products."""
    if stage.monoid != "sum" or constant_of(stage) is None or len(stage.factors) < 2:
        return 0.0
    return float(count(stage.loops)) * (len(stage.factors) - 1)


def least_seconds(region: Region, constants: Sequence[bool], rates: Rates) -> float:
    """Less than which no kernels of a region take: its products at the machine's rate."""
    fixed = constant_stages(region, constants)
    pairs = zip(region.stages, fixed, strict=True)
    return sum(products(stage) for stage, known in pairs if not known) / rates.products


def _others(stage: Stage) -> float:
    """Operations on elements, but for products that are added up: each for every point of the loops
    that it depends on."""
    if products(stage):
        return 0.0
    points = float(count(stage.loops))
    combined = points if stage.monoid is not None else 0.0
    if isinstance(stage.body, expr.Stage):
        return combined + points * sum(isinstance(n, Apply) for n in walk(*stage.body.body))
    loops: dict[Scalar, frozenset[int]] = {}
    for node in walk(*stage.body):
        parts = [loops[c] for c in children(node)]
        own = depends(stage.factors[node.number]) if isinstance(node, Arg) else frozenset[int]()
        loops[node] = own.union(*parts)
        if isinstance(node, Apply):
            combined += count(stage.loops[k] for k in loops[node])
    return combined


def _traffic(region: Region, stage: Stage, factor: Factor, fixed: Sequence[bool]) -> float:
    """Bytes of a source that a stage reads, and of one that was stored for it."""
    if factor.source is None:
        return 0.0
    stored = 1
    if factor.source < 0 and not fixed[~factor.source]:
        if region.stages[~factor.source].monoid is None:
            return 0.0
        stored = 2
    if isinstance(stage.body, expr.Stage):
        elements = count(shape_of(region, factor.source))
    else:
        read = count(stage.loops[k] for k in depends(factor))
        elements = min(read, count(shape_of(region, factor.source)))
    return float(stored * factor.dtype.bits * elements) / 8
