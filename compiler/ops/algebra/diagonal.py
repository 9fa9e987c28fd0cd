"""Triangular parts of matrices."""

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, index_value
from tcc.ir.index import Index, as_int
from tcc.ir.op import Array, Trait
from tcc.ir.types import I64, TensorType
from tcc.ops.formula import choose, fn
from tcc.ops.rows import op_row
from tcc.ops.shapes import ALL, Point, check_rank


@frozen
class TriluAttrs:
    """Keeps the elements on and above diagonal `k` if `upper`, else those on and below it.

    Diagonal 0 is the main diagonal.
    """

    upper: bool
    k: Index


def _trilu_infer(_: TriluAttrs, x: TensorType) -> TensorType:
    check_rank(x)
    return x


def _trilu_element(b: ExprBuilder, at: Point, attrs: TriluAttrs, x: TensorType) -> Scalar:
    diagonal = index_value(at[-1] - at[-2] - attrs.k, I64)
    is_inside = fn("ge" if attrs.upper else "le", diagonal, 0)
    return choose(is_inside, b.read(0, *at), 0)


def _trilu_reference(attrs: TriluAttrs, x: Array) -> Array:
    k = as_int(attrs.k)
    if k is None:
        raise ValueError(f"diagonal {attrs.k.key} is not bound")
    return (np.triu if attrs.upper else np.tril)(x, k).astype(x.dtype)


OPS = (
    op_row(
        "trilu", TriluAttrs, _trilu_infer, _trilu_reference, ALL,
        "The upper or lower triangle of matrices, zero elsewhere.",
        element=_trilu_element, traits=Trait.MOVEMENT,
    ),
)  # fmt: skip
