"""Other loops for those of a stage, one to one or into a larger box."""

from __future__ import annotations

from collections.abc import Iterator

from tcc.passes.derive.affine import Affine, unit, units
from tcc.passes.derive.edit import chosen, over, spliced
from tcc.passes.derive.record import Region
from tcc.passes.derive.rules.rule import (
    Arguments,
    Refused,
    extent_of,
    identity_of,
    numbered,
    relaid,
    remade,
    stage_of,
)


def skew(region: Region, number: int, loop: int, by: int, step: int) -> Region:
    """A result loop `loop + step * by`, from 0, for `loop`.

    `y[h, r] = A[h + r]` becomes `x[t, r] = A[t]`, read at `[h + r, r]`: points that are read by
    nobody, and a loop that no longer shares an index.
    """
    stage = stage_of(region, number)
    first = len(stage.iters)
    size, other = extent_of(stage, loop), extent_of(stage, by)
    if loop == by or step == 0 or not (loop < first and by < first):
        raise Refused(f"loops {loop} and {by} are not two of the result, or the step is 0")
    low, wide = min(step * (other - 1), 0), size + abs(step) * (other - 1)
    maps = identity_of(stage)
    steps = tuple((k == loop) - step * (k == by) for k in range(len(stage.loops)))
    maps[loop] = Affine(steps, low)
    iters = (*stage.iters[:loop], wide, *stage.iters[loop + 1 :])
    new = remade(region, stage, iters, stage.sums, maps)
    forward = list(units(first))
    forward[loop] = Affine(tuple((k == loop) + step * (k == by) for k in range(first)), -low)
    return relaid(region, number, new, tuple(forward))


def skews(region: Region, number: int) -> Iterator[Arguments]:
    """By every pair of loops that share an index, with the steps that take one out of it."""
    stage = stage_of(region, number)
    own = {k for k, _ in numbered(stage) if k < len(stage.iters)}
    found: dict[Arguments, None] = {}
    for form in (form for factor in stage.factors for form in factor.forms):
        steps = [(k, s) for k, s in enumerate(form.steps) if k in own and isinstance(s, int) and s]
        pairs = ((a, b) for a in steps for b in steps if a is not b and b[1] % a[1] == 0)
        found.update(((loop, by, other // step), None) for (loop, step), (by, other) in pairs)
    yield from found


def reverse(region: Region, number: int, loop: int) -> Region:
    """The loop from its end to its start."""
    stage = stage_of(region, number)
    size = extent_of(stage, loop)
    maps = identity_of(stage)
    maps[loop] = Affine(tuple(-s for s in maps[loop].steps), size - 1)
    new = over(stage, stage.iters, stage.sums, maps)
    first = len(stage.iters)
    if loop >= first:
        return spliced(region, number, (new,))
    forward = list(units(first))
    forward[loop] = Affine(tuple(-s for s in forward[loop].steps), size - 1)
    return relaid(region, number, new, tuple(forward))


def reversals(region: Region, number: int) -> Iterator[Arguments]:
    return ((k,) for k, _ in numbered(stage_of(region, number)))


def swap(region: Region, number: int, loop: int, other: int) -> Region:
    """Two result loops, each in the other's place."""
    stage = stage_of(region, number)
    first = len(stage.iters)
    if not 0 <= loop < other < first:
        raise Refused(f"loops {loop} and {other} are not two of the result in order")
    order = list(range(first))
    order[loop], order[other] = other, loop
    new = chosen(stage, order, range(first, len(stage.loops)))
    return relaid(region, number, new, tuple(unit(k, first) for k in order))


def swaps(region: Region, number: int) -> Iterator[Arguments]:
    first = len(stage_of(region, number).iters)
    return ((a, b) for b in range(first) for a in range(b))
