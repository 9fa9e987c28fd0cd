"""Triangular parts of matrices, and identity matrices."""

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, index_value, literal
from tcc.ir.index import Index, as_int
from tcc.ir.op import Arrays, OutArrays, OutTypes, Trait, Types
from tcc.ir.types import I64, DType, TensorType
from tcc.ops.formula import by_element, choose, fn
from tcc.ops.shapes import ALL, Point, check_dtype, check_rank, present, required


@frozen
class TriluAttrs:
    """Keeps the elements on and above diagonal `k` if `upper`, else those on and below it.

    Diagonal 0 is the main diagonal.
    """

    upper: bool
    k: Index


@frozen
class EyeLikeAttrs:
    """The result has ones of type `to` on diagonal `k`, zeros elsewhere; 0 is the main diagonal."""

    to: DType
    k: int = 0


def _trilu_infer(types: Types, _: TriluAttrs) -> OutTypes:
    x = required(types, 0)
    check_rank(x)
    return (x,)


def _trilu_element(b: ExprBuilder, at: Point, attrs: TriluAttrs) -> Scalar:
    diagonal = index_value(at[-1] - at[-2] - attrs.k, I64)
    is_inside = fn("ge" if attrs.upper else "le", diagonal, 0)
    return choose(is_inside, b.read(0, *at), 0)


def _trilu_reference(arrays: Arrays, attrs: TriluAttrs) -> OutArrays:
    (x,) = present(arrays)
    k = as_int(attrs.k)
    if k is None:
        raise ValueError(f"diagonal {attrs.k.key} is not bound")
    return ((np.triu if attrs.upper else np.tril)(x, k).astype(x.dtype),)


def _eye_infer(types: Types, attrs: EyeLikeAttrs) -> OutTypes:
    x = required(types, 0)
    check_dtype(attrs.to, ALL, "the result")
    if x.rank != 2:
        raise ValueError(f"the operand has rank {x.rank}, it needs 2")
    return (TensorType(attrs.to, x.shape),)


def _eye_element(_: ExprBuilder, at: Point, attrs: EyeLikeAttrs) -> Scalar:
    i, j = at
    on = fn("eq", index_value(j - i, I64), attrs.k)
    return choose(on, literal(1, attrs.to), 0)


def _eye_reference(arrays: Arrays, attrs: EyeLikeAttrs) -> OutArrays:
    (x,) = present(arrays)
    rows, columns = x.shape
    return (np.eye(rows, columns, k=attrs.k, dtype=attrs.to.carrier),)


OPS = (
    by_element(
        "trilu", TriluAttrs, 1, _trilu_infer, _trilu_reference, ALL,
        "The upper or lower triangle of matrices, zero elsewhere.",
        element=_trilu_element, traits=Trait.MOVEMENT,
    ),
    by_element(
        "eye_like", EyeLikeAttrs, 1, _eye_infer, _eye_reference, ALL,
        "A matrix of the operand's shape with ones on one diagonal.",
        element=_eye_element, traits=Trait.MOVEMENT,
    ),
)  # fmt: skip
