"""Computes the value of a stage at the points where a factor reads its fill value.

Rules that change the bounds of a loop need it: there the stage must have a known value.
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


def folded(
    body: Scalars, values: Mapping[Scalar, Const], *, absorbs: bool = False, computes: bool = False
) -> Scalars:
    """Returns the body with each scalar of `values` replaced by its constant, and simplified.

    Selections are simplified where their conditions become constants.  `absorbs` makes a product
    with a factor 0 equal to 0, although another factor may be an infinity or a NaN.  `computes`
    also computes all functions whose arguments are constants.
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
            return _computed(node)
        return node

    return transform_all(body, leaf)


def _folded(node: Apply, absorbs: bool) -> Scalar:
    match node.function, node.args:
        case "select", (Const(value=value), yes, no):
            return yes if value else no
        case "select", (_, yes, no) if yes is no:
            return yes
        case ("and" | "or") as function, (Const(value=value), rest) | (rest, Const(value=value)):
            return literal(value, BOOL) if value == (function == "or") else rest
        case "mul", (Const(value=0), _) | (_, Const(value=0)) if absorbs:
            return literal(0, node.dtype)
        case "eq", (Const(value=a), Const(value=b)):
            return literal(a == b, BOOL)
    return node


def _computed(scalar: Scalar) -> Const:
    """Returns the value of a scalar whose arguments are all constants."""
    with np.errstate(all="ignore"):
        (value,) = evaluate_scalars([scalar], {}, ())
    return literal(value.item(), scalar.dtype)


def value_at(
    body: Scalars | expr.Stage, monoid: str | None, values: Mapping[Scalar, Const]
) -> Const | None:
    """Returns the value of a stage with this body and monoid, where `values` replace scalars.

    None where the body is then not a constant.  Also None where a monoid combines it, and it is not
    the monoid's identity.
    """
    if isinstance(body, expr.Stage) or len(body) != 1:
        return None
    value = folded(body, values, absorbs=True)[0]
    if not isinstance(value, Const):
        return None
    neutral = monoid is None or MONOIDS[monoid].identity((value.dtype,))[0] is value
    return value if neutral else None


def filled_value(stage: RegionStage, place: int) -> Const | None:
    """Returns the value of the stage where factor `place` reads outside its source.

    A factor without a fill value reads 0 there.  None where the value is not a known constant.
    """
    factor = stage.factors[place]
    return _filled(stage.body, stage.monoid, place, factor.fill or literal(0, factor.dtype))


@lru_cache(maxsize=4096)
def _filled(
    body: Scalars | expr.Stage, monoid: str | None, place: int, fill: Const
) -> Const | None:
    return value_at(body, monoid, {argument(place, fill.dtype): fill})


def inner_range(
    form: Affine, size: object, stage: RegionStage, loop: int
) -> tuple[int, int] | None:
    """Returns the first and the last value of a loop at which `form` may lie in 0 <= form < size.

    None where the two values are not known.
    """
    step = form.steps[loop]
    if not isinstance(step, int) or step == 0 or any(loop in loops_of(d.of) for d in form.digits):
        return None
    steps = tuple(s * (k != loop) for k, s in enumerate(form.steps))
    low, high = interval(form._replace(steps=steps), stage.loops)
    if not isinstance(low, int) or not isinstance(high, int) or not isinstance(size, int):
        return None
    first, last = -high, size - 1 - low  # of step * loop
    if step < 0:
        first, last, step = -last, -first, -step
    return -(-first // step), last // step


def needed(region: Region, stage: RegionStage, loop: int) -> tuple[int, int, Const] | None:
    """Returns the range of a loop that must be computed, and the value of the stage outside of it.

    The result is (first, end, value), where `end` is not part of the range.  For a sum loop, the
    value is that of each term.  None where no factor determines a range.
    """
    low, high, value = 0, stage.loops[loop], None
    for place, factor in enumerate(stage.factors):
        if factor.fill is None or factor.source is None:
            continue
        fill_value = filled_value(stage, place)
        if fill_value is None or (value is not None and value is not fill_value):
            continue
        for form, size in zip(factor.forms, shape_of(region, factor.source), strict=True):
            ends = inner_range(form, size, stage, loop)
            if ends is not None and isinstance(high, int):
                low, high, value = max(low, ends[0]), min(high, ends[1] + 1), fill_value
    return (low, high, value) if value is not None and isinstance(high, int) else None
