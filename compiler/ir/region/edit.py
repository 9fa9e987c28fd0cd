"""Edits of regions from which rules are built.

They change the loops of a stage, inline a producer, or replace a stage by several stages.
Functions are pure and keep the computed values unless their text says otherwise.  Functions that
change loops raise ValueError for a leaf, a stage that has no separate accesses (see `RegionStage`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tcc.ir import expr
from tcc.ir.expr.scalar import Arg, Scalar, Scalars, argument, transform_all, walk
from tcc.ir.region import Factor, Factors, Region, RegionStage, constant_of, reads_inside
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
    """Returns the loops, by number, on which the indices of an access depend."""
    return frozenset().union(*map(loops_of, factor.forms))


def mapped(factor: Factor, maps: Sequence[Affine], extents: Sizes) -> Factor:
    """Returns the access with loop k replaced by `maps[k]`, for every k.

    The maps are forms of new loops, whose extents are `extents`.
    """
    return factor._replace(forms=tuple(substitute(f, maps, extents) for f in factor.forms))


def with_loops(
    stage: RegionStage, iters: Sizes, sums: Sizes, maps: Sequence[Affine]
) -> RegionStage:
    """Returns the stage with new loops; `iters` and `sums` are their extents.

    `maps[k]` is the old loop k as a form of the new loops. The caller must ensure that the maps
    give every old point, and that they give each old point of a sum exactly once; then the values
    stay the same. If the result loops change, so does the shape of the stage, and its readers must
    change too.
    """
    if isinstance(stage.body, expr.Stage):
        raise ValueError("a leaf keeps its loops")
    factors = tuple(mapped(f, maps, iters + sums) for f in stage.factors)
    return RegionStage(iters, sums, stage.monoid, factors, stage.body)


def with_loop_order(stage: RegionStage, iters: Sequence[int], sums: Sequence[int]) -> RegionStage:
    """Returns the stage with its loops in another order.

    `iters` and `sums` have the numbers of the old loops that become its result loops and its sum
    loops. So a loop may also move between result and sum. An old loop in neither of them is
    replaced by 0.
    """
    loops = stage.loops
    maps = loop_maps((*iters, *sums), len(loops))
    return with_loops(stage, tuple(loops[k] for k in iters), tuple(loops[k] for k in sums), maps)


def loop_maps(numbers: Sequence[int], count: int) -> list[Affine]:
    """Returns each of `count` old loops as a form of the new loops.

    New loop n is old loop `numbers[n]`. All other old loops become 0.
    """
    place = {old: new for new, old in enumerate(numbers)}
    wide = len(numbers)
    return [unit(place[k], wide) if k in place else constant(0, wide) for k in range(count)]


def with_extra_loop(stage: RegionStage, loop: int, size: Size) -> RegionStage:
    """Returns the stage with a new result loop of extent `size`, on which no access depends yet.

    The loop gets the number `loop`, which is at most the number of result loops.
    """
    results = len(stage.iters) + 1
    maps = [unit(k + (k >= loop), len(stage.loops) + 1) for k in range(len(stage.loops))]
    loops = (*stage.loops[:loop], size, *stage.loops[loop:])
    return with_loops(stage, loops[:results], loops[results:], maps)


# ---- producers ----------------------------------------------------------------------------------


def inlined(region: Region, number: int, place: int) -> RegionStage | None:
    """Returns stage `number` with its factor number `place` replaced by the body of its producer.

    The producer is the stage that the factor reads. Its sum loops become sum loops of the result.
    Returns None if the values would differ. A producer can be inlined in three cases:

    - It has no monoid.
    - It is a sum, and the body of stage `number` is a product of the same type.
    - It has any monoid, and the body of stage `number` is an unchanged factor.

    In the last two cases, stage `number` must have the same monoid as the producer, or none.
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
    """True if each component of a stage is an unchanged factor, so that the stage only copies."""
    return isinstance(stage.body, tuple) and all(isinstance(s, Arg) for s in stage.body)


def _joins(stage: RegionStage, producer: RegionStage) -> bool:
    """True if the sum loops of a producer may become sum loops of its reader `stage`."""
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
    """Returns the body with `Arg` `place[n]` instead of `Arg` n, for every factor n."""
    return transform_all(
        body, lambda n: argument(place[n.number], n.dtype) if isinstance(n, Arg) else n
    )


# ---- regions ------------------------------------------------------------------------------------


def with_sources(stage: RegionStage, of: Callable[[int], int]) -> RegionStage:
    """Returns the stage with `of(source)` in place of every source."""
    return stage._replace(factors=from_sources(stage.factors, of))


def from_sources(factors: Factors, of: Callable[[int], int]) -> Factors:
    """Returns the factors with `of(source)` in place of every source."""
    return tuple(f if f.source is None else f._replace(source=of(f.source)) for f in factors)


def stages_read(stage: RegionStage) -> frozenset[int]:
    """Returns the stages, by number, that a stage reads."""
    return frozenset(~f.source for f in stage.factors if f.source is not None and f.source < 0)


def readers(region: Region, number: int) -> tuple[int, ...]:
    """Returns the stages, by number, that read stage `number`."""
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
