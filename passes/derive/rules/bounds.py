"""Rules that change the bounds of a loop: tighten and relax."""

from __future__ import annotations

from collections.abc import Iterator

from tcc.ir.region import Region
from tcc.ir.region.affine import units
from tcc.ir.region.edit import spliced
from tcc.ir.region.neutral import needed
from tcc.ops.shapes import replaced
from tcc.passes.derive.rules.rule import (
    Arguments,
    Refused,
    extent_of,
    linear,
    numeric_loops,
    remapped,
    stage_of,
    with_new_loops,
)


def tighten(region: Region, number: int, loop: int, low: int, high: int) -> Region:
    """Restricts a loop to `low..high`; requires that the value at every other point is known.

    A range `low..high` excludes `high`, and `A[i, c else 0]` is 0 where (i, c) is outside A.  If
    the loop is a result loop, readers get the known value as their fill value.  For example, let A
    have four rows.  Then `y[t] = sum(c) A[t - 1, c else 0] * B[c]` is 0 at t = 0 and t = 5, so the
    loop t in 0..6 becomes 1..5.
    """
    stage = stage_of(region, number)
    size, bounds = extent_of(stage, loop), needed(region, stage, loop)
    if bounds is None or not 0 <= low <= bounds[0] < bounds[1] <= high <= size:
        raise Refused(f"points of loop {loop} outside of {low}..{high} may have any value")
    back, forward = (linear(len(s), {loop: 1}) for s in (stage.loops, stage.iters))
    back, forward = back._replace(offset=low), forward._replace(offset=-low)
    return remapped(region, number, {loop: high - low}, {loop: back}, {loop: forward}, bounds[2])


def tightenings(region: Region, number: int) -> Iterator[Arguments]:
    stage = stage_of(region, number)
    for loop, size in numeric_loops(stage):
        bounds = needed(region, stage, loop)
        if bounds is not None and 0 < bounds[1] - bounds[0] < size:
            yield loop, *bounds[:2]


def relax(region: Region, number: int, loop: int, extent: int) -> Region:
    """Extends a sum loop to `extent` points.

    At each new point, a factor must read outside of its source and make the term neutral (0 in a
    sum).  For example, `sum(r: 0..5) A[r] * K[r]` becomes `sum(r: 0..6) A[r else 0] * K[r else 0]`.
    A range excludes its end, and `A[r else 0]` is 0 where r is outside A.
    """
    stage = stage_of(region, number)
    size = extent_of(stage, loop)
    if loop < len(stage.iters) or extent <= size:
        raise Refused(f"loop {loop} is no sum loop of less than {extent} points")
    loops = replaced(stage.loops, loop, extent)
    new = with_new_loops(region, stage, loops, len(stage.iters), units(len(loops)))
    bounds = needed(region, new, loop)
    if bounds is None or bounds[1] > size:
        raise Refused(f"terms of loop {loop} from {size} on may not be neutral")
    return spliced(region, number, (new,))
