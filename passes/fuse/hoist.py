"""Takes the total of weights out of a weighted sum.

    l[i]    = sum(k) e[i, k]                       l[i]    = sum(k) e[i, k]
    p[i, k] = e[i, k] * (1 / l[i])          ->     s[i, j] = sum(k) e[i, k] * v[k, j]
    o[i, j] = sum(k) p[i, k] * v[k, j]             o[i, j] = s[i, j] * (1 / l[i])

Only weights that are divided by their own sum over the same loop qualify: no sum of theirs exceeds
the total by more than the other factor, so that nothing overflows that did not before.  It saves a
pass over the weights, and the sums no longer wait for the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcc.ir.expr import Expr, Stage, extent
from tcc.ir.index import Var, free_vars, iterator
from tcc.ir.scalar import (
    Apply,
    Const,
    Read,
    Scalar,
    StageRef,
    apply,
    literal,
    read,
    substitute_indices,
    transform,
)


def hoist_totals(expr: Expr) -> Expr:
    """`expr` with the totals of weights behind the sums; itself where there are none."""
    number = 0
    while number < len(expr.stages):
        found = _weighted(expr.stages, number)
        if found is not None:
            expr = _hoisted(expr, number, *found)
            number += 1
        number += 1
    return expr


def _weighted(stages: Sequence[Stage], number: int) -> tuple[Scalar, Scalar] | None:
    """A sum's body without the total of its weights, and the factor that follows it instead."""
    stage = stages[number]
    (body, *rest) = stage.body
    if rest or stage.monoid != "sum" or len(stage.reduce) != 1:
        return None
    if not isinstance(body, Apply) or body.function != "mul":
        return None
    for weight, other in (body.args, body.args[::-1]):
        share = _element(weight, stages)
        for part, factor in _quotient(share):
            if _is_total(factor, part, stages, stage.reduce[0]):
                return apply("mul", part, other), factor
    return None


def _element(scalar: Scalar, stages: Sequence[Stage]) -> Scalar:
    """What a read of a pointwise stage gives, as that stage computes it."""
    while isinstance(scalar, Read) and isinstance(scalar.source, StageRef):
        stage = stages[scalar.source.stage]
        if stage.monoid is not None or scalar.fill is not None or scalar.indirect:
            break
        at = dict(zip(stage.iters, scalar.indices, strict=True))
        scalar = substitute_indices(stage.body[scalar.source.component], at)
    return scalar


def _quotient(share: Scalar) -> tuple[tuple[Scalar, Scalar], ...]:
    """The ways to see `share` as a part times one over something."""
    if not isinstance(share, Apply) or share.function not in ("mul", "div"):
        return ()
    a, b = share.args
    if share.function == "div":
        return ((a, apply("div", literal(1, b.dtype), b)),)
    return ((a, b), (b, a))


def _is_total(factor: Scalar, part: Scalar, stages: Sequence[Stage], over: Var) -> bool:
    """Whether `factor` is one over the sum of `part` over the loop `over`."""
    if not isinstance(factor, Apply) or factor.function != "div":
        return False
    one, total = factor.args
    if not isinstance(one, Const) or one.value != 1:
        return False
    if not isinstance(total, Read) or not isinstance(total.source, StageRef):
        return False
    if over in {v for i in total.indices for v in free_vars(i)}:
        return False
    stage = stages[total.source.stage]
    if stage.monoid != "sum" or len(stage.reduce) != 1:
        return False
    if extent(stage.reduce[0]) is not extent(over):
        return False
    at = dict(zip(stage.iters, total.indices, strict=True))
    at[stage.reduce[0]] = iterator(over.name, extent(over))
    return substitute_indices(stage.body[total.source.component], at) is part


def _hoisted(expr: Expr, number: int, body: Scalar, factor: Scalar) -> Expr:
    """`expr` with a new stage behind `number` that takes its place for all readers."""
    stage = expr.stages[number]
    at = tuple(iterator(v.name, extent(v)) for v in stage.iters)
    behind = Stage(
        stage.iters,
        (),
        None,
        (apply("mul", read(StageRef(number), at, body.dtype), factor),),
    )

    def later(ref: StageRef) -> StageRef:
        return replace(ref, stage=ref.stage + 1) if ref.stage >= number else ref

    def leaf(scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Read) or not isinstance(scalar.source, StageRef):
            return scalar
        return read(
            later(scalar.source),
            scalar.indices,
            scalar.dtype,
            fill=scalar.fill,
            indirect=scalar.indirect,
        )

    rest = tuple(
        replace(s, body=tuple(transform(b, leaf) for b in s.body))
        for s in expr.stages[number + 1 :]
    )
    stages = (*expr.stages[:number], replace(stage, body=(body,)), behind, *rest)
    return Expr(expr.params, stages, tuple(map(later, expr.outputs)))
