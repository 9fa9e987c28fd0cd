"""Computes the value of a stage at points where a factor has its fill value.

Rules that change the bounds of loops use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from tcc.ir import expr
from tcc.ir.expr import MONOIDS
from tcc.ir.expr.evaluate import evaluate_scalars
from tcc.ir.expr.scalar import (
    Apply,
    Cast,
    Const,
    Scalar,
    Scalars,
    argument,
    children,
    literal,
    transform_all,
)
from tcc.ir.region import Region, RegionStage, shape_of, widens
from tcc.ir.region.affine import Affine, interval, loops_of
from tcc.ir.types import BOOL
from tcc.zipped import zip_equal


def folded(
    body: Scalars, values: Mapping[Scalar, Const], *, absorbs: bool = False, computes: bool = False
) -> Scalars:
    """Returns the body with constants in place of the scalars that are keys of `values`.

    Conditions that the constants decide are removed. With `absorbs`, a factor 0 makes a product 0,
    even if other factors are infinite or NaN. With `computes`, functions of constants are computed
    too.
    """

    def leaf(node: Scalar) -> Scalar:
        if node in values:
            return values[node]
        match node:
            case Cast(arg=Const(value=value)) if widens(node.arg.dtype, node.dtype):
                return literal(value, node.dtype)
            case Apply():
                node = _folded(node, absorbs)
        parts = children(node)
        if computes and parts and all(isinstance(c, Const) for c in parts):
            with np.errstate(all="ignore"):
                (array,) = evaluate_scalars([node], {}, ())
            return literal(array.item(), node.dtype)
        return node

    return transform_all(body, leaf)


def _folded(node: Apply, absorbs: bool) -> Scalar:
    match node.function, node.args:
        case "select", (Const(value=value), yes, no):
            return yes if value else no
        case "select", (_, yes, no) if yes is no:
            return yes
        case ("and" | "or") as function, (Const(value=value), term) | (term, Const(value=value)):
            return literal(value, BOOL) if value == (function == "or") else term
        case "mul", (Const(value=0), _) | (_, Const(value=0)) if absorbs:
            return literal(0, node.dtype)
        case "eq", (Const(value=a), Const(value=b)):
            return literal(a == b, BOOL)
    return node


def value_at(
    body: Scalars | expr.Stage, monoid: str | None, values: Mapping[Scalar, Const]
) -> Const | None:
    """Returns the constant that the body yields if some of its scalars have constant values.

    `values` maps these scalars to their values. Returns None if the body is not constant then. In
    a stage with a monoid, the body is a term of a reduction. A constant term can be left out only
    if it is the monoid's identity (0 of a sum), so None is returned for any other constant.
    """
    if isinstance(body, expr.Stage) or len(body) != 1:
        return None
    value = folded(body, values, absorbs=True)[0]
    if not isinstance(value, Const):
        return None
    neutral = monoid is None or MONOIDS[monoid].identity((value.dtype,))[0] is value
    return value if neutral else None


def filled_value(stage: RegionStage, place: int) -> Const | None:
    """Returns the constant value of the stage where factor number `place` reads outside its source.

    The factor then has its fill value, or 0 if it has none. Returns None if the stage's value is
    not constant there. In a stage with a monoid, the value is a term of a reduction. None is then
    returned for any constant but the monoid's identity (0 of a sum).
    """
    factor = stage.factors[place]
    return _filled(stage.body, stage.monoid, place, factor.fill or literal(0, factor.dtype))


@lru_cache(4096)
def _filled(
    body: Scalars | expr.Stage, monoid: str | None, place: int, fill: Const
) -> Const | None:
    return value_at(body, monoid, {argument(place, fill.dtype): fill})


def inner_range(
    form: Affine, size: object, stage: RegionStage, loop: int
) -> tuple[int, int] | None:
    """Returns the first and the last value of a loop for which `0 <= form < size` is possible.

    Returns None if they are unknown.
    """
    step = form.steps[loop]
    if not isinstance(step, int) or step == 0 or any(loop in loops_of(d.of) for d in form.digits):
        return None
    steps = tuple(s * (k != loop) for k, s in enumerate(form.steps))
    low, high = interval(form._replace(steps=steps), stage.loops)
    if not isinstance(low, int) or not isinstance(high, int) or not isinstance(size, int):
        return None
    first, last = -high, size - 1 - low  # bounds of step * loop
    if step < 0:
        first, last, step = -last, -first, -step
    return -(-first // step), last // step


def needed(region: Region, stage: RegionStage, loop: int) -> tuple[int, int, Const] | None:
    """Returns (first, end, value): the loop needs to run from `first` to `end` - 1 only.

    At all other values of the loop, the stage, or the term of its reduction, has the constant
    `value`, because a factor reads outside its source. Returns None if no factor limits the loop.
    """
    low, high, value = 0, stage.loops[loop], None
    for place, factor in enumerate(stage.factors):
        if factor.fill is None or factor.source is None:
            continue
        fill_value = filled_value(stage, place)
        if fill_value is None or (value is not None and value is not fill_value):
            continue
        for form, size in zip_equal(factor.forms, shape_of(region, factor.source)):
            ends = inner_range(form, size, stage, loop)
            if ends is not None and isinstance(high, int):
                low, high, value = max(low, ends[0]), min(high, ends[1] + 1), fill_value
    return (low, high, value) if value is not None and isinstance(high, int) else None
