"""Operations from which rules are built: new loops for a stage, a producer in place of an access,
several stages in place of one.

Functions are pure.  A function keeps the computed values unless its text says otherwise. Functions
that change loops raise ValueError for a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tcc.ir import expr
from tcc.ir.expr.scalar import Arg, Scalar, Scalars, argument, transform_all, walk
from tcc.ir.region import Factor, Region, RegionStage, constant_of, reads_inside
from tcc.ir.region.affine import (
    Affine,
    Size,
    Sizes,
    constant,
    loops_of,
    substitute,
    unit,
    units,
)

# ---- loops --------------------------------------------------------------------------------------


def depends(factor: Factor) -> frozenset[int]:
    """Returns the loops that an access depends on."""
    return frozenset().union(*map(loops_of, factor.forms))


def mapped(factor: Factor, maps: Sequence[Affine], extents: Sizes) -> Factor:
    """Returns the access with `maps[k]`, a form of the loops over `extents`, in the place of loop
    k."""
    return factor._replace(forms=tuple(substitute(f, maps, extents) for f in factor.forms))


def with_loops(
    stage: RegionStage, iters: Sizes, sums: Sizes, maps: Sequence[Affine]
) -> RegionStage:
    """Returns the stage with loops over `iters` and `sums`.

    `maps[k]` is the old loop k as a form of the new loops. The values stay the same if the maps
    reach every old point, and reach each point of a sum exactly once. A new result loop changes the
    shape of the stage, so its readers must change too.
    """
    if isinstance(stage.body, expr.Stage):
        raise ValueError("a leaf keeps its loops")
    factors = tuple(mapped(f, maps, iters + sums) for f in stage.factors)
    return RegionStage(iters, sums, stage.monoid, factors, stage.body)


def with_loop_order(stage: RegionStage, iters: Sequence[int], sums: Sequence[int]) -> RegionStage:
    """Returns the stage with its loops in another order.

    Its result loops are the old loops numbered `iters`, its sum loops those numbered `sums`. So
    loops may also move between result and sum. A loop that is named in neither is dropped, and
    stays at 0.
    """
    loops = stage.loops
    maps = loop_maps((*iters, *sums), len(loops))
    return with_loops(stage, tuple(loops[k] for k in iters), tuple(loops[k] for k in sums), maps)


def loop_maps(numbers: Sequence[int], count: int) -> list[Affine]:
    """Returns the maps of `count` old loops to new loops.

    The new loops are the old loops numbered `numbers`; the other old loops stay at 0.
    """
    place = {old: new for new, old in enumerate(numbers)}
    wide = len(numbers)
    return [unit(place[k], wide) if k in place else constant(0, wide) for k in range(count)]


def with_extra_loop(stage: RegionStage, loop: int, size: Size, is_sum: bool = False) -> RegionStage:
    """Returns the stage with one more loop at position `loop`, on which nothing depends yet.

    Over a sum the result is `size` times the old result.
    """
    first = len(stage.iters)
    if not (first <= loop if is_sum else loop <= first):
        raise ValueError(f"position {loop} is not among the {'sum' if is_sum else 'result'} loops")
    maps = [unit(k + (k >= loop), len(stage.loops) + 1) for k in range(len(stage.loops))]
    loops = (*stage.loops[:loop], size, *stage.loops[loop:])
    first += not is_sum
    return with_loops(stage, loops[:first], loops[first:], maps)


# ---- producers ----------------------------------------------------------------------------------


def inlined(region: Region, number: int, place: int) -> RegionStage | None:
    """Returns stage `number` with a producer's body in place of its factor `place`, which reads the
    producer. None if the result would differ.

    The producer's sum loops become loops of the stage. A producer may be inlined in three cases:

    - It has no monoid.
    - It is a sum, and the stage is a product of the same type.
    - It has any monoid, and each component of the stage is only a factor.

    In the last two cases the stage combines by the same monoid or by none.
    """
    stage = region.stages[number]
    factor = stage.factors[place]
    if factor.source is None or factor.source >= 0 or not reads_inside(region, stage, factor):
        return None
    producer = region.stages[~factor.source]
    if isinstance(producer.body, expr.Stage) or isinstance(stage.body, expr.Stage):
        return None
    if producer.monoid is not None and not _joins(stage, producer):
        return None
    loops = stage.loops + producer.sums
    all_units = units(len(loops))
    widen = all_units[: len(stage.loops)]
    maps = (
        *(substitute(form, widen, loops) for form in factor.forms),
        *all_units[len(stage.loops) :],
    )
    reader_factors = [mapped(f, widen, loops) for f in stage.factors]
    producer_factors = [mapped(f, maps, loops) for f in producer.factors]
    factors = (*reader_factors[:place], *producer_factors, *reader_factors[place + 1 :])
    body = producer.body[factor.component]
    shifted = transform_all((body,), lambda node: _shifted(node, place))[0]

    def leaf(node: Scalar) -> Scalar:
        if not isinstance(node, Arg) or node.number < place:
            return node
        return shifted if node.number == place else _shifted(node, len(producer_factors) - 1)

    merged = transform_all(stage.body, leaf)
    monoid = stage.monoid or producer.monoid
    return without_unused(
        RegionStage(stage.iters, stage.sums + producer.sums, monoid, factors, merged)
    )


def _shifted(node: Scalar, by: int) -> Scalar:
    return argument(node.number + by, node.dtype) if isinstance(node, Arg) else node


def is_map(stage: RegionStage) -> bool:
    """True where each component of a stage is an unchanged element that it reads."""
    return isinstance(stage.body, tuple) and all(isinstance(s, Arg) for s in stage.body)


def _joins(stage: RegionStage, producer: RegionStage) -> bool:
    """True where the loops of a producer may become loops of its reader."""
    if stage.monoid not in (None, producer.monoid) or stage.dtypes != producer.dtypes:
        return False
    return len(stage.dtypes) == 1 and (
        is_map(stage) or (producer.monoid == "sum" and constant_of(stage) is not None)
    )


def without_unused(stage: RegionStage) -> RegionStage:
    """Returns the stage without factors that its body does not use."""
    assert not isinstance(stage.body, expr.Stage)
    numbers = {node.number for node in walk(*stage.body) if isinstance(node, Arg)}
    body = renumbered(stage.body, {old: new for new, old in enumerate(sorted(numbers))})
    return stage._replace(factors=tuple(stage.factors[n] for n in sorted(numbers)), body=body)


def renumbered(body: Scalars, place: Mapping[int, int]) -> Scalars:
    """Returns the body with factor `place[n]` for factor n."""
    return transform_all(
        body, lambda n: argument(place[n.number], n.dtype) if isinstance(n, Arg) else n
    )


# ---- regions ------------------------------------------------------------------------------------


def with_sources(stage: RegionStage, of: Callable[[int], int]) -> RegionStage:
    """Returns the stage reading `of(source)` for every source."""
    factors = tuple(
        f if f.source is None else f._replace(source=of(f.source)) for f in stage.factors
    )
    return stage if factors == stage.factors else stage._replace(factors=factors)


def stages_read(stage: RegionStage) -> frozenset[int]:
    """Returns the numbers of the stages that a stage reads."""
    return frozenset(~f.source for f in stage.factors if f.source is not None and f.source < 0)


def readers(region: Region, number: int) -> tuple[int, ...]:
    """Returns the stages that read stage `number`."""
    return tuple(n for n, stage in enumerate(region.stages) if number in stages_read(stage))


def spliced(region: Region, number: int, stages: Sequence[RegionStage]) -> Region:
    """Returns the region with `stages` in place of stage `number`; its readers then read the last
    of `stages`.

    The new stages have numbers from `number` on; stages after `number` get higher numbers.
    """
    more = len(stages) - 1

    def later(source: int) -> int:
        return source - more if ~source >= number else source

    after = (with_sources(stage, later) for stage in region.stages[number + 1 :])
    return region._replace(
        stages=(*region.stages[:number], *stages, *after),
        outputs=tuple((n + more if n >= number else n, c) for n, c in region.outputs),
    )


def drop_unused(region: Region) -> Region:
    """Returns the region without stages that no output depends on; parameters keep their
    numbers."""
    needed = {number for number, _ in region.outputs}
    for number in range(len(region.stages) - 1, -1, -1):
        if number in needed:
            needed |= stages_read(region.stages[number])
    if len(needed) == len(region.stages):
        return region
    place = {old: new for new, old in enumerate(sorted(needed))}

    def renumbered_source(source: int) -> int:
        return source if source >= 0 else ~place[~source]

    stages = tuple(with_sources(region.stages[n], renumbered_source) for n in place)
    return Region(region.params, stages, tuple((place[n], c) for n, c in region.outputs))
