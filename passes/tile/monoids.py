"""Scalars for a stage's monoid (sum, max, ...): its identity, the combination of two values, and
the factors that rescale accumulators of a streaming loop."""

from tcc.ir.expr import MONOIDS
from tcc.ir.expr.scalar import Scalar, Scalars, apply, argument, literal
from tcc.ir.tile import Blocks, Compute
from tcc.ir.tile.group import GroupStage, Rescale
from tcc.ir.types import DType
from tcc.passes.tile.emitter import StatementEmitter
from tcc.zipped import zip_equal


def identities(stage: GroupStage) -> Scalars:
    """Returns the identity of a stage's monoid, a scalar for each component."""
    assert stage.monoid is not None
    return MONOIDS[stage.monoid].identity(tuple(s.dtype for s in stage.body))


def identity_blocks(emitter: StatementEmitter, stage: GroupStage, shape: tuple[int, ...]) -> Blocks:
    """Returns blocks of `shape` that hold the identity, one for each component."""
    scalars = identities(stage)
    blocks = tuple(emitter.fresh(s.dtype, shape) for s in scalars)
    emitter.add(*(Compute(b, s, ()) for b, s in zip_equal(blocks, scalars)))
    return blocks


def combinations(stage: GroupStage) -> Scalars:
    """Returns the combination of two values by a stage's monoid, a scalar for each component.

    The scalars' arguments are the components of the first value, then those of the second.
    """
    assert stage.monoid is not None
    return MONOIDS[stage.monoid].combine(tuple(s.dtype for s in stage.body))


def change(rescale: Rescale, dtype: DType) -> Scalar:
    """Returns the factor by which an accumulator is rescaled when a maximum changes.

    Argument 0 of the scalar is the maximum before, and argument 1 the maximum after.  The factor is
    1 if the two are equal, even if they are infinite.
    """
    unchanged = apply("eq", *(argument(n, dtype) for n in range(2)))
    return apply("select", unchanged, literal(1, dtype), rescale.factor)
