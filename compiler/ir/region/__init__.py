"""Region: an expression as a small value, which derivations rewrite.

    Region       = params, stages, outputs
    RegionStage  = iters, sums, monoid, factors, body       one tensor for each scalar of `body`
    Factor       = source, component, forms, dtype, fill    an access: source[forms], or `fill` if
                                                            an index is outside of the source

A 3 x 3 convolution of one channel over 8 x 8, zeros around it,

    y[h, w] = sum(r: 0..3, s: 0..3)  A[h + r - 1, w + s - 1 else 0] * K[r, s]

is one stage, its loops numbered h = 0, w = 1, r = 2, s = 3:

    RegionStage(iters=(8, 8), sums=(3, 3), monoid="sum", body=product((F32, F32), F32), factors=(
        Factor(0, 0, (Affine((1, 0, 1, 0), -1), Affine((0, 1, 0, 1), -1)), F32, literal(0, F32)),
        Factor(1, 0, (Affine((0, 0, 1, 0)), Affine((0, 0, 0, 1))), F32, None)))

A form is an index as an affine function of the stage's loops.  Loops have numbers instead of names,
first the iterators of the result, then the loops of the sum.  So regions that differ only in the
names of loops are equal.  The nodes are named tuples, which are fast to create, compare and hash.
If a rule changes some stages, the new region shares all other stages with the old region.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import NamedTuple, TypeAlias

from tcc.ir import expr
from tcc.ir.expr.scalar import (
    Apply,
    Arg,
    Cast,
    Const,
    Scalar,
    Scalars,
    apply,
    argument,
    cast,
    literal,
)
from tcc.ir.region.affine import Affines, Sizes, is_inside, plain
from tcc.ir.types import DType, DTypeKind, TensorType
from tcc.zipped import zip_equal

Literal: TypeAlias = bool | int | float


class Factor(NamedTuple):
    """An element of type `dtype`: component `component` of `source` at the indices `forms`.

    `forms` has an index for each dimension, as a form of the stage's loops.  `source` is the number
    of a parameter, or `~n` for stage n.  If it is None, the factor is the value of its only form.
    A read outside the source's extents gives `fill`, a node so that 0.0 and -0.0 differ.  If `fill`
    is None, no read is outside, or a `select` drops its value.  A factor of a leaf stage (see
    `RegionStage`) has no forms and stands for the whole source.
    """

    source: int | None
    component: int
    forms: Affines
    dtype: DType
    fill: Const | None = None


Factors: TypeAlias = tuple[Factor, ...]


class RegionStage(NamedTuple):
    """A definition of a tensor, or of a tensor for each component of the monoid.

    `iters` are the extents of the result's loops, `sums` those of the summed loops.  At each point
    of the result, the value is the monoid's combination of `body` over the summed loops, or `body`
    itself where `monoid` is None.  `body` has a scalar for each component, in which `Arg` n stands
    for factor n.

    A stage that these fields cannot express (data-dependent indices, extrema of loops, divisions by
    symbols) is a leaf: its `body` is an `expr.Stage`, whose operand n is factor n.
    """

    iters: Sizes
    sums: Sizes
    monoid: str | None
    factors: Factors
    body: Scalars | expr.Stage

    @property
    def loops(self) -> Sizes:
        """The extents of all loops."""
        return self.iters + self.sums

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The element type of each component."""
        body = self.body.body if isinstance(self.body, expr.Stage) else self.body
        return tuple(scalar.dtype for scalar in body)


class Region(NamedTuple):
    """A list of stages; each reads parameters and earlier stages.

    `params` are the types of the parameters, None for an absent one. `outputs` has a pair (stage,
    component) for each output.
    """

    params: tuple[TensorType | None, ...]
    stages: tuple[RegionStage, ...]
    outputs: tuple[tuple[int, int], ...]


def is_leaf(stage: RegionStage) -> bool:
    """True if the stage is a leaf: an `expr.Stage` that rules cannot look into."""
    return isinstance(stage.body, expr.Stage)


def shape_of(region: Region, source: int) -> Sizes:
    """Returns the extents of a parameter or a stage.  Raises ValueError for an absent parameter."""
    if source < 0:
        return region.stages[~source].iters
    param = region.params[source]
    if param is None:
        raise ValueError(f"operand {source} is absent and cannot be read")
    return tuple(map(plain, param.shape))


def reads_inside(region: Region, stage: RegionStage, factor: Factor) -> bool:
    """True if it is certain that `factor`, a factor of `stage`, never reads outside its source."""
    if factor.source is None:
        return True
    sizes = shape_of(region, factor.source)
    return all(is_inside(form, size, stage.loops) for form, size in zip_equal(factor.forms, sizes))


# ---- products -----------------------------------------------------------------------------------


def product(dtypes: tuple[DType, ...], dtype: DType, constant: Literal = 1) -> Scalars:
    """Returns the body that multiplies `constant` and all factors.

    `dtypes` has the type of each factor; the product is computed in `dtype`.
    """
    if not dtypes:
        return (literal(constant, dtype),)
    scalar = _multiplied(dtypes, dtype)
    return (scalar if constant == 1 else apply("mul", scalar, literal(constant, dtype)),)


@lru_cache(4096)
def _multiplied(dtypes: tuple[DType, ...], dtype: DType) -> Scalar:
    parts = (cast(argument(n, t), dtype) for n, t in enumerate(dtypes))
    return reduce(lambda a, b: apply("mul", a, b), parts)


@lru_cache(4096)
def _constant(body: Scalars, factors: int) -> Literal | None:
    if len(body) != 1:
        return None
    constant: Literal = 1
    visited: set[Scalar] = set()
    pending: list[Scalar] = [body[0]]
    while pending:
        scalar = pending.pop()
        if scalar in visited and not isinstance(scalar, Const):
            return None  # a scalar that is used twice is squared; n squares have 2^n factors
        visited.add(scalar)
        match scalar:
            case Const():
                constant *= scalar.value
            case Arg():
                pass
            case Cast(arg=Arg()) if widens(scalar.arg.dtype, scalar.dtype):
                pending.append(scalar.arg)
            case Apply(function="mul"):
                pending += scalar.args
            case Apply(function="neg"):
                constant = -constant
                pending += scalar.args
            case _:
                return None
    every = sum(isinstance(s, Arg) for s in visited) == factors
    return literal(constant, body[0].dtype).value if every else None


def constant_of(stage: RegionStage) -> Literal | None:
    """Returns c if the body is c times the product of all factors, with each factor once.

    Returns None for other bodies. Casts to a type that holds every value of the source type are
    ignored.
    """
    return None if is_leaf(stage) else _constant(stage.body, len(stage.factors))


_MANTISSA = {"f64": 53, "f32": 24, "bf16": 8, "f16": 11}


def widens(source: DType, result: DType) -> bool:
    """True if type `result` holds every value of type `source`."""
    if source is result:
        return True
    if source.is_float:
        wide = result.name in ("f32", "f64") and source.bits < result.bits
        return result.is_float and wide
    bits = source.bits - (source.kind is DTypeKind.INT)
    if source.kind is DTypeKind.BOOL:
        bits = 1
    if result.is_float:
        return bits <= _MANTISSA.get(result.name, 0)
    signed = result.kind is DTypeKind.INT
    return (
        result.is_integer
        and bits <= result.bits - signed
        and (signed or source.kind is not DTypeKind.INT)
    )
