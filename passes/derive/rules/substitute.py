"""Rules that replace a loop of a stage by another: skew and reverse."""

from __future__ import annotations

from collections.abc import Iterator

from tcc.ir.region import Region
from tcc.ir.region.affine import plain
from tcc.passes.derive.rules.rule import (
    Arguments,
    Refused,
    extent_of,
    linear,
    long_loops,
    numeric_loops,
    remapped,
    size_of,
    stage_of,
)


def skew(region: Region, number: int, loop: int, by: int, step: int) -> Region:
    """Replaces a result loop `loop` by `loop + step * by`, shifted to begin at 0.

    `y[h, r] = A[h + r]` becomes `x[t, r] = A[t]`, read at `[h + r, r]`.  So the index has one loop
    instead of two.  The new stage has more points than the old stage; nothing reads the added
    points.
    """
    stage = stage_of(region, number)
    first = len(stage.iters)
    size, other = size_of(stage, loop), extent_of(stage, by)
    if loop == by or step == 0 or not (loop < first and by < first):
        raise Refused(f"loops {loop} and {by} are not two of the result, or the step is 0")
    low, extent = min(step * (other - 1), 0), plain(size + abs(step) * (other - 1))
    back = linear(len(stage.loops), {loop: 1, by: -step}, low)
    forward = linear(first, {loop: 1, by: step}, -low)
    return remapped(region, number, {loop: extent}, {loop: back}, {loop: forward})


def skews(region: Region, number: int) -> Iterator[Arguments]:
    """Yields the arguments (loop, by, step) of `skew` that take the loop `by` out of an index: for
    `A[2*h + 4*r]`, loop h, by r, step 2."""
    stage = stage_of(region, number)
    result_loops = {k for k, _ in long_loops(stage) if k < len(stage.iters)}
    numeric = {k for k, _ in numeric_loops(stage)}
    arguments: dict[Arguments, None] = {}
    for form in (form for factor in stage.factors for form in factor.forms):
        steps = [
            (k, s)
            for k, s in enumerate(form.steps)
            if k in result_loops and isinstance(s, int) and s
        ]
        numeric_steps = [pair for pair in steps if pair[0] in numeric]
        pairs = ((a, b) for a in steps for b in numeric_steps if a is not b and b[1] % a[1] == 0)
        arguments.update(((loop, by, other // step), None) for (loop, step), (by, other) in pairs)
    yield from arguments


def reverse(region: Region, number: int, loop: int) -> Region:
    """Replaces a loop i of n iterations by n - 1 - i."""
    stage = stage_of(region, number)
    last = plain(size_of(stage, loop) - 1)
    back, forward = (linear(len(s), {loop: -1}, last) for s in (stage.loops, stage.iters))
    return remapped(region, number, {}, {loop: back}, {loop: forward})
