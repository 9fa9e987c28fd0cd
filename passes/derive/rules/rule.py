"""Defines the type of a rule, and helpers of rules that give a stage new loops.

A form is an affine function of a stage's loops.  A factor is an access: it reads an element of a
parameter or stage at an index whose entries are forms.  A leaf is a stage whose indices are not
affine; rules leave it alone.  See `tcc.ir.region`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tcc.ir.expr.scalar import Const, Scalar, argument, literal
from tcc.ir.region import Factor, Region, RegionStage, is_leaf, reads_inside
from tcc.ir.region.affine import (
    Affine,
    Affines,
    Size,
    Sizes,
    is_inside,
    is_nonnegative,
    loops_of,
    unit,
    units,
)
from tcc.ir.region.edit import drop_unused, mapped, readers, spliced, with_loops, without_unused
from tcc.ir.region.neutral import folded
from tcc.zipped import zip_equal

Arguments: TypeAlias = tuple[int, ...]


class Refused(ValueError):
    """Raised by a rule whose conditions do not hold for its arguments; the message says why."""


class DerivationRule(NamedTuple):
    """A rule of derivations.

    `apply(region, stage, *arguments)` returns a region with equal outputs, or raises `Refused`.
    `names`: the names of the arguments; a single name may stand for several arguments.
    `strict`: True if the rule keeps the terms of every result and their order.
    """

    apply: Callable[..., Region]
    names: tuple[str, ...]
    strict: bool


def stage_of(region: Region, number: int) -> RegionStage:
    """Returns stage `number`.

    Raises Refused for an absent stage, and for a leaf, which has no affine indices.
    """
    if not 0 <= number < len(region.stages) or is_leaf(region.stages[number]):
        raise Refused(f"stage {number} does not exist or is a leaf")
    return region.stages[number]


def size_of(stage: RegionStage, loop: int) -> Size:
    """Returns the extent of a loop: a number or symbolic.  Raises Refused for an absent loop."""
    if not 0 <= loop < len(stage.loops):
        raise Refused(f"loop {loop} has no extent")
    return stage.loops[loop]


def extent_of(stage: RegionStage, loop: int) -> int:
    """Returns the extent of a loop.  Raises Refused if it is symbolic."""
    size = size_of(stage, loop)
    if not isinstance(size, int):
        raise Refused(f"loop {loop} has no extent that is a number")
    return size


def numeric_loops(stage: RegionStage) -> Iterator[tuple[int, int]]:
    """Yields the loops whose extents are numbers above 1, with their extents."""
    return ((k, e) for k, e in long_loops(stage) if isinstance(e, int))


def long_loops(stage: RegionStage) -> Iterator[tuple[int, Size]]:
    """Yields the loops that may have several points, with their extents."""
    return ((k, e) for k, e in enumerate(stage.loops) if not isinstance(e, int) or e > 1)


def linear(loops: int, steps: Mapping[int, int], offset: Size = 0) -> Affine:
    """Returns the form `offset + sum(k) steps[k] * loop k` of a stage with `loops` loops."""
    return Affine(tuple(steps.get(k, 0) for k in range(loops)), offset)


def with_new_loops(
    region: Region, stage: RegionStage, loops: Sizes, results: int, maps: Sequence[Affine]
) -> RegionStage:
    """Returns the stage with the new loops `loops`, of which the first `results` are result loops.

    `maps[k]` is the value of old loop k as a form of the new loops.  A factor without a fill value
    gets the fill value 0 if one of its reads may be outside of the source.  Only points that the
    old stage did not have can read outside, and no result depends on them.  Indices that are
    numbers become literals of the body, which is then simplified.
    """
    new = with_loops(stage, loops[:results], loops[results:], maps)
    new = new._replace(factors=tuple(filled(region, new, f) for f in new.factors))
    literals: dict[Scalar, Const] = {}
    for place, factor in enumerate(new.factors):
        form = factor.forms[0] if factor.source is None else None
        if form is not None and not loops_of(form) and isinstance(form.offset, int):
            literals[argument(place, factor.dtype)] = literal(form.offset, factor.dtype)
    assert isinstance(new.body, tuple)
    return without_unused(new._replace(body=folded(new.body, literals))) if literals else new


def filled(region: Region, stage: RegionStage, factor: Factor) -> Factor:
    """Returns the factor with a fill value if a read of it may be outside of the source, otherwise
    without a fill value."""
    if factor.source is None:
        return factor
    fill = None if reads_inside(region, stage, factor) else factor.fill or literal(0, factor.dtype)
    return factor._replace(fill=fill)


def remapped(
    region: Region,
    number: int,
    extents: Mapping[int, Size],
    maps: Mapping[int, Affine],
    forward: Mapping[int, Affine],
    fill: Const | None = None,
) -> Region:
    """Returns the region in which some loops of stage `number` are replaced; `extents` maps the
    number of a replaced loop to its new extent.

    `maps[k]` is the value of old loop k as a form of the new loops, and `forward[k]` the value of
    new result loop k as a form of the old result loops.  Loops that are in neither stay.  A reader
    gets `fill` if `forward` gives an index outside of the new loops, as in `relaid`.
    """
    stage = region.stages[number]
    first, every = len(stage.iters), units(len(stage.loops))
    loops = tuple(extents.get(k, size) for k, size in enumerate(stage.loops))
    new = with_new_loops(region, stage, loops, first, [maps.get(k, u) for k, u in enumerate(every)])
    if min(maps) >= first:
        return spliced(region, number, (new,))
    at = tuple(forward.get(k, u) for k, u in enumerate(units(first)))
    return relaid(region, number, new, at, fill)


def relaid(
    region: Region, number: int, new: RegionStage, forward: Affines, fill: Const | None = None
) -> Region:
    """Returns the region with the stage `new` in place of stage `number`.

    The old element with index x has the index `forward(x)` in `new`.  A reader of x reads there, or
    gets `fill` if `forward(x)` is outside of `new`.  Three kinds of readers still need a copy in
    the old order: outputs of the region, leaf stages, and reads with an index x outside of the old
    extents if `forward(x)` may be inside of `new`, where the reader must get its own fill value.
    """
    old = region.stages[number]
    factors = tuple(Factor(~number, c, forward, t, fill) for c, t in enumerate(old.dtypes))
    body = tuple(argument(c, t) for c, t in enumerate(old.dtypes))
    copy = RegionStage(old.iters, (), None, factors, body)
    extended = spliced(region, number, (new, copy))
    stages = list(extended.stages)
    for n in (number + 1, *readers(extended, number + 1)):
        reader = stages[n]
        if not is_leaf(reader):
            new_factors = (_through(reader, f, number, copy, new.iters) for f in reader.factors)
            stages[n] = reader._replace(
                factors=tuple(filled(extended, reader, f) for f in new_factors)
            )
    return drop_unused(extended._replace(stages=tuple(stages)))


def _through(
    stage: RegionStage, factor: Factor, number: int, copy: RegionStage, sizes: Sizes
) -> Factor:
    """Returns an access of `stage` that reads stage `number` in place of `copy`, its copy.

    `sizes` are the extents of stage `number`.  Returns `factor` unchanged in two cases: it does not
    read the copy, or it may read outside of the copy.  In the second case it must get its own fill,
    and a read of stage `number` might give an element or another fill instead.
    """
    if factor.source != ~(number + 1):
        return factor
    inner = copy.factors[factor.component]
    fill = inner.fill
    if factor.fill is not None:
        pairs = enumerate(zip_equal(factor.forms, copy.iters))
        outside = [d for d, (form, size) in pairs if not is_inside(form, size, stage.loops)]
        if outside:
            fill = factor.fill
            is_same_fill = inner.fill is None or inner.fill is fill
            if not is_same_fill or not all(_stays_outside(inner, copy, d, sizes) for d in outside):
                return factor
    return mapped(inner, factor.forms, stage.loops)._replace(fill=fill)


def _stays_outside(inner: Factor, copy: RegionStage, axis: int, sizes: Sizes) -> bool:
    """Returns True if an index outside of an axis of a copy is outside of the copy's source too."""
    axis_form = unit(axis, len(copy.iters))
    for form, size in zip_equal(inner.forms, sizes):
        if form._replace(offset=0) == axis_form:
            after: Size = copy.iters[axis] + form.offset - size
            if is_nonnegative(-form.offset) and is_nonnegative(after):
                return True
    return False
