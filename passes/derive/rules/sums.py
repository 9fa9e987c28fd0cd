"""Rules that change sums: nest computes a sum in two stages, and solve removes a sum loop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import gcd

from tcc.ir import expr
from tcc.ir.expr.scalar import Scalar, apply, argument, literal
from tcc.ir.region import Factor, Region, RegionStage
from tcc.ir.region.affine import Affine, Digit, digit, substitute, unit, units
from tcc.ir.region.edit import spliced, with_loop_order
from tcc.ir.region.neutral import value_at
from tcc.ir.types import BOOL
from tcc.ops.shapes import replaced
from tcc.passes.derive.rules.rule import (
    Arguments,
    Refused,
    extent_of,
    stage_of,
    with_new_loops,
)

# Subsets of the first _MOST_LOOPS sum loops are tried.
_MOST_LOOPS = 4


def nest(region: Region, number: int, *loops: int) -> Region:
    """Sums over `loops` in an inner stage, and over all other sum loops in an outer stage.

    `y[h] = sum(c, r) f` becomes `x[h, r] = sum(c) f` and `y[h] = sum(r) x[h, r]`, for any monoid.
    """
    stage = stage_of(region, number)
    first = len(stage.iters)
    outer_sums = [k for k in range(first, len(stage.loops)) if k not in loops]
    proper = outer_sums and loops and all(first <= k < len(stage.loops) for k in loops)
    if stage.monoid is None or len(stage.dtypes) != 1 or not proper or [*loops] != sorted({*loops}):
        raise Refused(f"loops {loops} are not an ordered proper subset of the sum's loops")
    dtype = stage.dtypes[0]
    if dtype.is_float and dtype.bits < 32:
        raise Refused(f"partial sums of {dtype.name} would be rounded once more")
    inner = with_loop_order(stage, (*range(first), *loops), outer_sums)
    outer = RegionStage(stage.iters, tuple(stage.loops[k] for k in loops), stage.monoid, (), ())
    factor = Factor(~number, 0, units(len(outer.loops)), dtype)
    outer = outer._replace(factors=(factor,), body=(argument(0, dtype),))
    return spliced(region, number, (inner, outer))


def nests(region: Region, number: int) -> Iterator[Arguments]:
    stage = stage_of(region, number)
    numbers = range(len(stage.iters), len(stage.loops))[:_MOST_LOOPS]
    for count in range(1, len(numbers) + 1):
        yield from combinations(numbers, count)


def solve(region: Region, number: int, place: int, loop: int) -> Region:
    """Replaces a sum loop by the only value for which a condition holds.

    `sum(b: 0..2) select((a + b) % 2 == 0, f(b), 0)` becomes `f(a % 2)`, because all other terms are
    neutral.  `place` is the number of the factor that the condition compares with 0, here
    (a + b) % 2.
    """
    stage = stage_of(region, number)
    condition, extent = _condition(stage, place), extent_of(stage, loop)
    step = condition.of.steps[loop] if condition and len(stage.iters) <= loop else 0
    if (
        condition is None
        or not isinstance(step, int)
        or gcd(step, condition.mod) != 1
        or extent != condition.mod
    ):
        raise Refused(f"loop {loop} is not decided by a remainder in factor {place}")
    mod, of = condition.mod, condition.of
    constant_part = of._replace(steps=tuple(0 if k == loop else s for k, s in enumerate(of.steps)))
    maps = [unit(k - (k > loop), len(stage.loops) - 1) for k in range(len(stage.loops))]
    loops = replaced(stage.loops, loop)
    maps[loop] = digit(
        substitute(_modulo(constant_part, -pow(step, -1, mod), mod), maps, loops), 1, mod, loops
    )
    new = with_new_loops(region, stage, loops, len(stage.iters), maps)
    return spliced(region, number, (new,))


def _condition(stage: RegionStage, place: int) -> Digit | None:
    """Returns the remainder f % m that factor number `place` computes, if every term of the sum is
    neutral unless f % m == 0.

    Returns None if the factor is no remainder, or if other terms may be other than neutral.
    """
    if not 0 <= place < len(stage.factors) or stage.factors[place].source is not None:
        return None
    assert not isinstance(stage.body, expr.Stage)
    form, dtype = stage.factors[place].forms[0], stage.factors[place].dtype
    if any(form.steps) or form.offset != 0 or len(form.digits) != 1:
        return None
    (remainder,) = form.digits
    if remainder.step != 1 or remainder.div != 1 or not remainder.mod:
        return None
    test: Scalar = apply("eq", argument(place, dtype), literal(0, dtype))
    outcomes = {test: literal(False, BOOL)}
    neutral = stage.monoid is not None and value_at(stage.body, stage.monoid, outcomes) is not None
    return remainder if neutral else None


def _modulo(form: Affine, factor: int, mod: int) -> Affine:
    """Returns a form equal to `factor * form` modulo `mod`, with its numeric coefficients reduced
    to 0 to `mod - 1`."""
    steps = tuple(s * factor % mod if isinstance(s, int) else s * factor for s in form.steps)
    offset = form.offset * factor
    digits = tuple(d._replace(step=d.step * factor) for d in form.digits)
    return Affine(steps, offset % mod if isinstance(offset, int) else offset, digits)


def solutions(region: Region, number: int) -> Iterator[Arguments]:
    stage = stage_of(region, number)
    places = [place for place, factor in enumerate(stage.factors) if factor.source is None]
    return ((p, loop) for p in places for loop in range(len(stage.iters), len(stage.loops)))
