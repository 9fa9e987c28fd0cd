"""A rule, and what rules have in common: other result loops of a stage, with its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from tcc.ir.expr.scalar import Const, argument, literal
from tcc.passes.derive.affine import (
    Affine,
    Affines,
    Size,
    Sizes,
    is_inside,
    is_nonnegative,
    unit,
    units,
)
from tcc.passes.derive.edit import drop_unused, moved, over, readers, spliced
from tcc.passes.derive.record import Factor, Region, Stage, is_leaf, reads_inside

Arguments: TypeAlias = tuple[int, ...]


class Refused(ValueError):
    """A rule does not hold for these arguments; the message says why."""


class Rule(NamedTuple):
    """`apply(region, stage, *arguments)` computes what the region does, or raises `Refused`.

    `moves` gives arguments worth a try without promising that they hold.  `names` are those of the
    arguments; where the last ends in "..." it may be given again.  `strict` rules give every result
    the terms that it had, in their order: they move data and leave out or repeat work.
    """

    apply: Callable[..., Region]
    moves: Callable[[Region, int], Iterable[Arguments]]
    names: tuple[str, ...]
    strict: bool


def stage_of(region: Region, number: int) -> Stage:
    """Stage `number`, which is no leaf; raises Refused."""
    if not 0 <= number < len(region.stages) or is_leaf(region.stages[number]):
        raise Refused(f"stage {number} does not exist or is a leaf")
    return region.stages[number]


def extent_of(stage: Stage, loop: int) -> int:
    """The extent of a loop; raises Refused for none, and for a symbol, which no rule divides."""
    size = stage.loops[loop] if 0 <= loop < len(stage.loops) else None
    if not isinstance(size, int):
        raise Refused(f"loop {loop} has no extent that is a number")
    return size


def numbered(stage: Stage) -> Iterator[tuple[int, int]]:
    """The loops whose extents are numbers over 1, with these."""
    return ((k, e) for k, e in enumerate(stage.loops) if isinstance(e, int) and e > 1)


def remade(
    region: Region, stage: Stage, iters: Sizes, sums: Sizes, maps: Sequence[Affine]
) -> Stage:
    """`over`, with reads of points that the stage did not have.

    Fills go where reads are certain to be inside; a read that was inside and is no longer gets one,
    as its value reaches no result.
    """
    new = over(stage, iters, sums, maps)
    return new._replace(factors=tuple(filled(region, new, f) for f in new.factors))


def filled(region: Region, stage: Stage, factor: Factor) -> Factor:
    """The factor with a fill where, and only where, its reads are not certain to be inside."""
    if factor.source is None:
        return factor
    if reads_inside(region, stage, factor):
        return factor._replace(fill=None)
    return factor._replace(fill=factor.fill or literal(0, factor.dtype))


def relaid(
    region: Region, number: int, new: Stage, forward: Affines, fill: Const | None = None
) -> Region:
    """The region with `new` for stage `number`, whose readers find element x at `forward(x)`, and
    `fill` where that lies outside.

    A copy in the old order stays for results of the region, for leaves, and for reads outside of
    the old extents that `new` might have an element for.
    """
    old = region.stages[number]
    factors = tuple(Factor(~number, c, forward, t, fill) for c, t in enumerate(old.dtypes))
    body = tuple(argument(c, t) for c, t in enumerate(old.dtypes))
    copy = Stage(old.iters, (), None, factors, body)
    whole = spliced(
        region,
        number,
        (new, copy._replace(factors=tuple(_tight(f, new.iters, copy.loops) for f in factors))),
    )
    stages = list(whole.stages)
    for n in readers(whole, number + 1):
        if not is_leaf(stages[n]):
            own = stages[n]
            changed = (
                through(own, f, copy, new.iters) if f.source == ~(number + 1) else f
                for f in own.factors
            )
            stages[n] = own._replace(factors=tuple(changed))
    return drop_unused(whole._replace(stages=tuple(stages)))


def through(stage: Stage, factor: Factor, copy: Stage, sizes: Sizes) -> Factor:
    """A factor of `stage` that reads `copy`, reading instead what the copy is made of, of extents
    `sizes`; itself where it may read outside of the copy and the source have an element there."""
    inner = copy.factors[factor.component]
    fill = inner.fill
    if factor.fill is not None:
        pairs = enumerate(zip(factor.forms, copy.iters, strict=True))
        outside = [d for d, (form, size) in pairs if not is_inside(form, size, stage.loops)]
        if outside:
            fill = factor.fill
            same = inner.fill is None or inner.fill is fill
            if not same or not all(_stays_outside(inner, copy, d, sizes) for d in outside):
                return factor
    new = moved(inner, factor.forms, stage.loops)._replace(fill=fill)
    return _tight(new, sizes, stage.loops)


def _tight(factor: Factor, sizes: Sizes, extents: Sizes) -> Factor:
    """The factor without a fill where no read of these extents is outside."""
    pairs = zip(factor.forms, sizes, strict=True)
    inside = all(is_inside(form, size, extents) for form, size in pairs)
    return factor._replace(fill=None) if inside else factor


def _stays_outside(inner: Factor, copy: Stage, axis: int, sizes: Sizes) -> bool:
    """Whether an index outside of an axis of a copy is outside of what the copy reads."""
    alone = unit(axis, len(copy.iters))
    for form, size in zip(inner.forms, sizes, strict=True):
        if form._replace(offset=0) == alone:
            after: Size = copy.iters[axis] + form.offset - size
            if is_nonnegative(-form.offset) and is_nonnegative(after):
                return True
    return False


def identity_of(stage: Stage) -> list[Affine]:
    """The loops of a stage, each itself."""
    return list(units(len(stage.loops)))
