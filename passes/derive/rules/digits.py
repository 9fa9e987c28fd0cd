"""Rules of digits: a loop split into two loops, and two loops merged into one.

If i = 4*a + b with 0 <= b < 4, a and b are the digits i // 4 and i % 4 of i.
"""

from __future__ import annotations

from tcc.ir.region import Region
from tcc.ir.region.affine import digit, is_multiple, plain, unit, units
from tcc.ir.region.edit import loop_maps, spliced
from tcc.ops.shapes import replaced
from tcc.passes.derive.rules.rule import (
    Refused,
    extent_of,
    linear,
    relaid,
    size_of,
    stage_of,
    with_new_loops,
)


def split(region: Region, number: int, loop: int, inner: int, shift: int = 0) -> Region:
    """Splits a loop into an outer loop and a loop of `inner` iterations.

    `loop + shift` becomes `inner` * outer loop + inner loop.  `inner` need not divide a result
    loop, because nothing reads the points beyond its end.  `shift` removes the offset of an index:
    with inner=4 and shift=1, (i + 1) // 4 becomes the outer loop, and (i + 1) % 4 the inner loop.
    """
    stage = stage_of(region, number)
    size, first = size_of(stage, loop), len(stage.iters)
    few = isinstance(size, int) and inner >= size + shift
    if few or not inner > 1 or not 0 <= shift < inner:
        raise Refused(f"loop {loop} of {size} points has no digit of {inner} shifted by {shift}")
    if loop >= first and (shift or not is_multiple(size, inner)):
        raise Refused(f"{inner} does not divide loop {loop} of a sum of {size} points")
    count = len(stage.loops) + 1
    maps = [unit(k + (k > loop), count) for k in range(count - 1)]
    maps[loop] = linear(count, {loop: inner, loop + 1: 1}, -shift)
    outer = plain((size - 1 + shift) // inner + 1)
    loops = replaced(stage.loops, loop, outer, inner)
    new = with_new_loops(region, stage, loops, first + (loop < first), maps)
    if loop >= first:
        return spliced(region, number, (new,))
    forward, shifted = list(units(first)), linear(first, {loop: 1}, shift)
    parts = digit(shifted, inner, 0, stage.iters), digit(shifted, 1, inner, stage.iters)
    forward[loop : loop + 1] = parts
    return relaid(region, number, new, tuple(forward))


def merge(region: Region, number: int, loop: int, other: int) -> Region:
    """Merges two result loops, or two sum loops, into one loop.

    The merged loop is extent(other) * loop + other.
    """
    stage = stage_of(region, number)
    first, extents = len(stage.iters), (size_of(stage, loop), extent_of(stage, other))
    if loop == other or (loop < first) != (other < first):
        raise Refused(f"loops {loop} and {other} are not two of the result or two of the sum")
    remaining = [k for k in range(len(stage.loops)) if k != other]
    maps = loop_maps(remaining, len(stage.loops))
    merged = maps[loop]
    maps[loop], maps[other] = digit(merged, extents[1]), digit(merged, 1, extents[1])
    loops = tuple(
        plain(extents[0] * extents[1]) if k == loop else stage.loops[k] for k in remaining
    )
    new = with_new_loops(region, stage, loops, first - (other < first), maps)
    if loop >= first:
        return spliced(region, number, (new,))
    forward = list(units(first))
    forward[loop] = linear(first, {loop: extents[1], other: 1})
    del forward[other]
    return relaid(region, number, new, tuple(forward))
