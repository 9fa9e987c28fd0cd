"""Wrong regions that a check must detect: named mistakes, and random changes.

The unsound forms come from derivations in the literature: residues in one sequence, over whose
seams windows slide, and a reshape that takes neighbours for residues.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from tcc.ir.expr.scalar import argument, literal
from tcc.ir.region import Factor, Region, RegionStage, product
from tcc.ir.region.affine import Affine, Digit, combine, digit, unit
from tcc.ir.region.edit import spliced, with_loop_order
from tcc.ir.types import F32, tensor
from tcc.passes.derive.derivation import DerivationStep, applied, replay
from tcc.passes.derive.rules.rule import Refused
from tcc.passes.derive.search import search

from tests.ir.region.regions import affine, convolution, operands, values

from .derivations import CASES, band


class Pair(NamedTuple):
    """A region, an equivalent region, and a wrong region."""

    origin: Region
    right: Region
    wrong: Region


def agree(a: Region, b: Region) -> bool:
    """Returns True if two regions give the same integers everywhere, and False if a region reads
    outside."""
    arrays = operands(a)
    try:
        pairs = zip(values(a, arrays), values(b, arrays), strict=True)
        return all(x.shape == y.shape and np.array_equal(x, y) for x, y in pairs)
    except (IndexError, ValueError):
        return False


# ---- by name -------------------------------------------------------------------------------------


def mistakes(size: int) -> Iterator[tuple[str, Pair]]:
    """Yields named mistakes in a convolution of `size` x `size` points and in dilated bands."""
    region = convolution(size)
    (stage,) = region.stages
    image, kernel = stage.factors

    def wrong(**changes: Any) -> Region:
        return spliced(region, 0, (stage._replace(**changes),))

    rows, columns = image.forms
    shifted = image._replace(forms=(rows._replace(offset=0), columns))
    ones = image._replace(fill=literal(1, F32))
    right = offset_add(size, 3)
    yield from (
        (name, Pair(region, right, other))
        for name, other in {
            "swapped kernel indices": convolution(size, swapped=True),
            "a shifted image": wrong(factors=(shifted, kernel)),
            "lost padding": wrong(factors=(image._replace(fill=None), kernel)),
            "padding with ones": wrong(factors=(ones, kernel)),
            "a tap less": wrong(sums=(2, 3)),
            "a tap less along columns": wrong(sums=(3, 2)),
            "the largest term": wrong(monoid="max"),
            "the image twice": wrong(factors=(image, image)),
            "a third": wrong(body=product((F32, F32), F32, 1 / 3)),
            "another size": convolution(size + 1),
            "offsets one too far": offset_add(size, 3, shift=1),
            "offsets one too near": offset_add(size, 3, shift=-1),
        }.items()
    )
    yield (
        "residues in a sequence",
        Pair(residues(False), residues(True, batched=True), residues(True)),
    )
    yield "group edges", group_edges()
    yield "dilation by a reshape", reshaped()


def offset_add(size: int, taps: int, shift: int = 0) -> Region:
    """Returns a convolution as one multiplication per tap, added at an offset."""
    region = convolution(size, taps)
    wide = size + taps - 1
    inner = RegionStage(
        (wide, wide, taps, taps), (), None,
        (
            Factor(0, 0, (affine(1, 0, 0, 0, plus=-(taps // 2)),
                          affine(0, 1, 0, 0, plus=-(taps // 2))), F32, literal(0, F32)),
            Factor(1, 0, (affine(0, 0, 1, 0), affine(0, 0, 0, 1)), F32),
        ),
        product((F32, F32), F32),
    )  # fmt: skip
    at = (
        affine(1, 0, 1, 0, plus=shift), affine(0, 1, 0, 1),
        affine(0, 0, 1, 0), affine(0, 0, 0, 1),
    )  # fmt: skip
    fill = literal(0, F32) if shift else None
    outer = RegionStage(
        (size, size), (taps, taps), "sum", (Factor(~0, 0, at, F32, fill),), product((F32,), F32)
    )
    return Region(region.params, (inner, outer), ((1, 0),))


def residues(grouped: bool, batched: bool = False) -> Region:
    """Returns sum(k) A[m, k] * B[m + 4*w - 8 else 0, k] over 10,000 rows. `grouped` orders B's rows
    by residues modulo 4, in one sequence whose seams the band crosses, or, if `batched`, as a
    batch."""
    zero = literal(0, F32)
    m, _, k = (unit(n, 3) for n in range(3))
    at: tuple[Affine, ...] = (affine(1, 4, 0, plus=-8),)
    stages: list[RegionStage] = []
    if grouped:
        row, residue = Affine((0, 1, 0), -2, digit(m, 4).digits), digit(m, 1, 4)
        at = residue, row
        rows, source = (4, 2500), Affine((1, 4, 0))
        if not batched:
            at = (combine(((2500, residue), (1, row)), (10_000, 5, 8)),)
            row = unit(0, 2)
            rows = (10_000,)
            source = Affine((0, 0), 0, (Digit(4, row, 1, 2500), Digit(1, row, 2500, 0)))
        forms = source, unit(len(rows), len(rows) + 1)
        stages = [
            RegionStage((*rows, 8), (), None, (Factor(1, 0, forms, F32),), product((F32,), F32))
        ]
    factors = Factor(0, 0, (m, k), F32), Factor(~0 if grouped else 1, 0, (*at, k), F32, zero)
    stages.append(RegionStage((10_000, 5), (8,), "sum", factors, product((F32, F32), F32)))
    return Region((tensor(F32, 10_000, 8),) * 2, tuple(stages), ((len(stages) - 1, 0),))


def group_edges() -> Pair:
    """Returns residues in one sequence, where a window reads rows of a neighbouring residue."""
    region = band(2, 24, 3, 2, 4, sums=False)
    right = replay(region, ["split stage=0 loop=1 inner=4 shift=0"])
    stage = region.stages[0]
    left, other = stage.factors
    row = Affine((0, 1, 0, 0))
    moved = row._replace(steps=(0, 1, 1, 0), offset=-2)  # ignores the edges of groups

    def regrouped(form: Affine) -> Affine:
        return Affine((0, 0, 0, 0), 0, (Digit(4, form, 1, 6), Digit(1, form, 6, 0)))

    forms = tuple(map(regrouped, (row, moved)))
    wrong = stage._replace(factors=(
        left._replace(forms=(left.forms[0], forms[0], left.forms[2])),
        other._replace(forms=(other.forms[0], forms[1], other.forms[2])),
    ))  # fmt: skip
    at = Affine((0, 0, 0), 0, (Digit(6, unit(1, 3), 1, 4), Digit(1, unit(1, 3), 4, 0)))
    back = Factor(~0, 0, (unit(0, 3), at, unit(2, 3)), F32)
    outer = RegionStage(stage.iters, (), None, (back,), (argument(0, F32),))
    return Pair(region, right, Region(region.params, (wrong, outer), ((1, 0),)))


def reshaped() -> Pair:
    """Returns dilation 2 by a reshape: rows 2*x + a as [a, x]."""
    dilated = CASES["3x3 d2"].small()
    split = replay(dilated, ["split stage=0 loop=2 inner=2 shift=0"])
    inner, copy = split.stages
    order = list(range(len(inner.iters)))
    order[2], order[3] = 3, 2
    turned = with_loop_order(inner, order, range(len(order), len(inner.loops)))
    return Pair(dilated, split, Region(dilated.params, (turned, copy), split.outputs))


# ---- at random ----------------------------------------------------------------------------------


def mutated(step: DerivationStep, rng: random.Random) -> DerivationStep:
    """Returns a step with one number changed."""
    place = rng.randrange(len(step.arguments) + 1)
    by = rng.choice((-2, -1, 1, 2))
    if place == len(step.arguments):
        return step._replace(stage=step.stage + by)
    arguments = list(step.arguments)
    arguments[place] += by
    return step._replace(arguments=tuple(arguments))


def wrong_chain(seed: int) -> tuple[Region, Region | None]:
    """Returns a region, and its result by a valid chain with one number changed; None if the chain
    is refused."""
    rng = random.Random(seed)
    region = origin = CASES[rng.choice(list(CASES))].small()
    chain = rng.choice(search(region, 40).candidates).chain
    wrong = rng.randrange(len(chain)) if chain else 0
    for number, step in enumerate(chain):
        try:
            region = applied(region, mutated(step, rng) if number == wrong else step)
        except Refused:
            return origin, None
    return origin, region


def wrong_result(seed: int) -> tuple[Region, Region]:
    """Returns a region, and its result by a valid chain with one access changed: its fill, two
    axes, or an offset."""
    rng = random.Random(seed)
    origin = CASES[rng.choice(list(CASES))].small()
    region = rng.choice(search(origin, 40).candidates).region
    number = rng.randrange(len(region.stages))
    stage = region.stages[number]
    place = rng.randrange(len(stage.factors))
    factor = stage.factors[place]
    axis = rng.randrange(len(factor.forms))
    form = factor.forms[axis]
    if rng.random() < 0.3 and factor.fill is not None:
        factor = factor._replace(fill=literal(1, factor.dtype))
    elif rng.random() < 0.5 and len(factor.forms) > 1:
        forms = list(factor.forms)
        forms[axis - 1], forms[axis] = forms[axis], forms[axis - 1]
        factor = factor._replace(forms=tuple(forms))
    else:
        assert isinstance(form.offset, int)
        moved = form._replace(offset=form.offset + rng.choice((-1, 1)))
        forms = [moved if n == axis else f for n, f in enumerate(factor.forms)]
        factor = factor._replace(forms=tuple(forms))
    factors = [factor if n == place else f for n, f in enumerate(stage.factors)]
    stages = list(region.stages)
    stages[number] = stage._replace(factors=tuple(factors))
    return origin, region._replace(stages=tuple(stages))
