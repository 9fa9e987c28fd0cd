"""What a stage's monoid starts from, how it combines, and the factors of streaming reductions."""

from __future__ import annotations

from tcc.ir.expr import MONOIDS
from tcc.ir.expr.scalar import Scalar, apply, argument, literal
from tcc.ir.tile.group import GroupStage, Rescale
from tcc.ir.types import DType


def identities(stage: GroupStage) -> tuple[Scalar, ...]:
    """The identity of the monoid, one scalar for each component."""
    assert stage.monoid is not None
    return MONOIDS[stage.monoid].identity(tuple(s.dtype for s in stage.body))


def combinations(stage: GroupStage) -> tuple[Scalar, ...]:
    """Each component of two combined: arguments are the components of the first, then the
    second's."""
    assert stage.monoid is not None
    return MONOIDS[stage.monoid].combine(tuple(s.dtype for s in stage.body))


def change(rescale: Rescale, dtype: DType) -> Scalar:
    """The factor that a change of a state from argument 0 to argument 1 brings for what depends on
    it; no change brings none, infinities included."""
    same = apply("eq", *(argument(n, dtype) for n in range(2)))
    return apply("select", same, literal(1, dtype), rescale.factor)
