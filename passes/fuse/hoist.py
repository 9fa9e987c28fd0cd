"""Moves the normaliser of weights (one over their sum, as in softmax) out of a weighted sum.

    l[i]    = sum(k) e[i, k]                       l[i]    = sum(k) e[i, k]
    p[i, k] = e[i, k] * (1 / l[i])          ->     s[i, j] = sum(k) e[i, k] * v[k, j]
    o[i, j] = sum(k) p[i, k] * v[k, j]             o[i, j] = s[i, j] * (1 / l[i])

Weights must have the form exp(x - max x), divided by their own sum over the same loop.  Then the
largest weight is 1 and the sum is at least 1, so no new overflow or underflow arises.  The rewrite
saves a pass over the weights, and the weighted sum does not wait for the normaliser.
"""

from collections.abc import Sequence
from dataclasses import replace

from tcc.ir.expr import Expr, Stage, extent, inserted
from tcc.ir.expr.scalar import (
    Apply,
    Const,
    Read,
    Scalar,
    StageRef,
    apply,
    read,
    substitute_indices,
)
from tcc.ir.index import Var, free_vars, of_atom, var_of
from tcc.ops.formula import choose, fn
from tcc.ops.shapes import replaced
from tcc.passes.fuse.rescale import unless_empty
from tcc.zipped import zip_equal


def hoist_normalisers(expr: Expr) -> Expr:
    """Returns `expr` with normalisers of weights applied after the weighted sums.

    Returns `expr` itself if it has no such normaliser.
    """
    number = 0
    while number < len(expr.stages):
        expr, number = _cleaned(expr, number)
        split = _weighted(expr.stages, number)
        if split is not None:
            expr = _behind(expr, number, (), *split)
            number += 1
        number += 1
    return expr


def _weights(stages: Sequence[Stage], number: int) -> tuple[tuple[Scalar, Scalar], ...]:
    """Returns the pairs (weight, other factor) whose product the stage sums along a single loop."""
    match stages[number]:
        case Stage(reduce=(_,), monoid="sum", body=(Apply(function="mul") as body,)):
            return _quotient(body)
    return ()


def _weighted(stages: Sequence[Stage], number: int) -> tuple[Scalar, Scalar] | None:
    """Returns (body, factor): a sum's body without its normaliser, and the factor after the sum.

    Returns None if the stage is not a sum with normalised weights.
    """
    for weight, other in _weights(stages, number):
        over = stages[number].reduce[0]
        for part, factor in _quotient(_element(weight, stages)):
            if _is_normaliser(factor, part, stages, over) and _below_one(part, stages, over):
                return part * other, unless_empty(over, factor)
    return None


# ---- weights with 0 in place of NaN -------------------------------------------------------------


def _cleaned(expr: Expr, number: int) -> tuple[Expr, int]:
    """Hoists the normaliser of weights whose NaNs are replaced by 0.

    The weights of a sum are `select(is_nan(p), 0, p)` with p = e / sum e.  They become e, with 0 in
    place of NaN, and the normaliser is applied after the sum.  For an empty sum, the normaliser is
    1.  Returns the expression and the new number of the stage.
    """
    stages = expr.stages
    for weight, other in _weights(stages, number):
        if not isinstance(weight, Read) or not isinstance(weight.source, StageRef):
            continue
        producer = stages[weight.source.stage]
        over = [
            v
            for v, index in zip_equal(producer.iters, weight.indices)
            if var_of(index) is stages[number].reduce[0]
        ]
        if (
            producer.monoid is not None
            or len(over) != 1
            or weight.indirect
            or weight.fill is not None
        ):
            continue
        share = _clean(producer.body[weight.source.component], stages)
        for part, factor in () if share is None else _quotient(share):
            if _is_normaliser(factor, part, stages, over[0]) and _below_one(part, stages, over[0]):
                clean = choose(apply("is_nan", part), 0, part)
                return _with_clean(expr, number, weight, other, clean, over[0]), number + 3
    return expr, number


def _with_clean(
    expr: Expr, number: int, weight: Read, other: Scalar, clean: Scalar, over: Var
) -> Expr:
    assert isinstance(weight.source, StageRef)
    iters = expr.stages[weight.source.stage].iters
    at = tuple(map(of_atom, iters))
    values, dtype = Stage(iters, (), None, (clean,)), clean.dtype
    rows = tuple(v for v in iters if v is not over)
    sum_stage = Stage(rows, (over,), "sum", (read(StageRef(number), at, dtype),))
    row = tuple(i for i, v in zip_equal(weight.indices, iters) if v is not over)
    row_sum = read(StageRef(number + 1), row, dtype)
    factor = choose(fn("eq", row_sum, 0), 1, 1 / row_sum)
    body = read(StageRef(number), weight.indices, dtype) * other
    return _behind(expr, number, (values, sum_stage), body, factor)


def _clean(share: Scalar, stages: Sequence[Stage]) -> Scalar | None:
    """Returns x of `select(is_nan(x), 0, x)`; None for any other scalar."""
    match share:
        case Apply("select", (Apply("is_nan", (tested,)), Const(0), value)):
            value = _element(value, stages)
            return value if _element(tested, stages) is value else None
    return None


def _below_one(part: Scalar, stages: Sequence[Stage], over: Var) -> bool:
    """Returns True if `part` is exp(x - max x), with the maximum over the loop `over`.

    Then `part` is 1 somewhere along the loop, or NaN at an x that equals an infinite maximum.  So
    the quotient of `part` by its sum is NaN exactly if the sum is NaN.
    """
    part = _element(part, stages)
    power = _element(part.args[0], stages) if isinstance(part, Apply) else part
    match part, power:
        case Apply(function="exp"), Apply(function="sub", args=(x, top)):
            return _reduces(_element(top, stages), x, stages, over, "max")
    return False


def _element(scalar: Scalar, stages: Sequence[Stage]) -> Scalar:
    """Returns a scalar; a read of a pointwise stage is replaced by the stage's body."""
    while isinstance(scalar, Read) and isinstance(scalar.source, StageRef):
        stage = stages[scalar.source.stage]
        if stage.monoid is not None or scalar.fill is not None or scalar.indirect:
            break
        at = dict(zip_equal(stage.iters, scalar.indices))
        scalar = substitute_indices(stage.body[scalar.source.component], at)
    return scalar


def _quotient(share: Scalar) -> tuple[tuple[Scalar, Scalar], ...]:
    """Returns pairs (part, factor) with part * factor = `share`: (a, b) and (b, a) for a * b, and
    (a, 1 / b) for a / b."""
    match share:
        case Apply(function="mul", args=(a, b)):
            return (a, b), (b, a)
        case Apply(function="div", args=(a, b)):
            return ((a, 1 / b),)
    return ()


def _is_normaliser(factor: Scalar, part: Scalar, stages: Sequence[Stage], over: Var) -> bool:
    """Returns True if `factor` is one over the sum of `part` over the loop `over`."""
    match factor:
        case Apply(function="div", args=(Const(value=1), divisor)):
            return _reduces(divisor, part, stages, over, "sum")
    return False


def _reduces(result: Scalar, part: Scalar, stages: Sequence[Stage], over: Var, monoid: str) -> bool:
    """Returns True if `result` reads a stage that reduces `part` over the loop `over`."""
    if not isinstance(result, Read) or not isinstance(result.source, StageRef):
        return False
    stage = stages[result.source.stage]
    if over in free_vars(*result.indices) or stage.monoid != monoid or len(stage.reduce) != 1:
        return False
    if extent(stage.reduce[0]) is not extent(over):
        return False
    at = dict(zip_equal(stage.iters, result.indices))
    at[stage.reduce[0]] = of_atom(over)
    body = substitute_indices(stage.body[result.source.component], at)
    return body is part or _element(body, stages) is _element(part, stages)


def _behind(
    expr: Expr, number: int, before: tuple[Stage, ...], body: Scalar, factor: Scalar
) -> Expr:
    """Returns `expr` with a factor applied after stage `number`.

    The stages `before` are inserted before the stage, whose body becomes `body`.  A new stage after
    it multiplies by `factor`, and all readers read the new stage instead.
    """
    stage, last = expr.stages[number], number + len(before)
    behind = Stage(stage.iters, (), None, (read(StageRef(last), stage.at, body.dtype) * factor,))

    extended = inserted(expr, number, *before, replace(stage, body=(body,)))
    return replace(extended, stages=replaced(extended.stages, last + 1, behind))
