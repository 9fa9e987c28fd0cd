"""Matrices by their diagonals: triangles and identities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import apply, index_value, literal
from tcc.ir.index import Index, as_int, const
from tcc.ir.op import Array, OpSpec, Sample, Tolerance, Trait
from tcc.ir.types import BOOL, F16, F32, I64, DType, TensorType
from tcc.ops.formula import fn
from tcc.ops.reference import given
from tcc.ops.sampling import draw
from tcc.ops.shapes import ALL, check_dtype, check_rank, required


@dataclass(frozen=True, slots=True)
class TriluAttrs:
    """Keeps what lies on diagonal `k` and above (`upper`) or below it; 0 is the main diagonal."""

    upper: bool
    k: Index


@dataclass(frozen=True, slots=True)
class EyeLikeAttrs:
    """Ones of type `to` on diagonal `k`."""

    to: DType
    k: int = 0


def _trilu_infer(types: Sequence[TensorType | None], _: TriluAttrs) -> tuple[TensorType, ...]:
    x = required(types, 0)
    check_rank(x, 2)
    return (x,)


def _trilu_expr(types: Sequence[TensorType | None], attrs: TriluAttrs) -> Expr:
    x = required(types, 0)
    b = ExprBuilder(x)
    at = b.iters(*x.shape)
    diagonal = index_value(at[-1] - at[-2] - attrs.k, I64)
    kept = fn("ge" if attrs.upper else "le", diagonal, 0)
    b.stage(at, apply("select", kept, b.read(0, *at), literal(0, x.dtype)))
    return b.done()


def _trilu_reference(arrays: Sequence[Array | None], attrs: TriluAttrs) -> tuple[Array, ...]:
    (x,) = given(arrays)
    k = as_int(attrs.k)
    if k is None:
        raise ValueError(f"diagonal {attrs.k.key} is not bound")
    return ((np.triu if attrs.upper else np.tril)(x, k).astype(x.dtype),)


def _trilu_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = draw(rng, F32, (2, 5, 7), -4, 4)
    for upper in (False, True):
        for k in (-2, 0, 3, 9):
            yield Sample((x,), TriluAttrs(upper, const(k)), f"upper{upper:d}_{k}")
    for dtype in (F16, I64, BOOL):
        yield Sample((draw(rng, dtype, (7, 3), -4, 4),), TriluAttrs(True, const(0)), dtype.name)
    yield Sample((x[:, :0],), TriluAttrs(True, const(0)), "empty")


def _eye_infer(types: Sequence[TensorType | None], attrs: EyeLikeAttrs) -> tuple[TensorType, ...]:
    x = required(types, 0)
    check_dtype(attrs.to, ALL, "the result")
    if x.rank != 2:
        raise ValueError(f"the operand has rank {x.rank}, it needs 2")
    return (TensorType(attrs.to, x.shape),)


def _eye_expr(types: Sequence[TensorType | None], attrs: EyeLikeAttrs) -> Expr:
    x = required(types, 0)
    b = ExprBuilder(x)
    i, j = b.iters(*x.shape)
    on = fn("eq", index_value(j - i, I64), attrs.k)
    b.stage((i, j), apply("select", on, literal(1, attrs.to), literal(0, attrs.to)))
    return b.done()


def _eye_reference(arrays: Sequence[Array | None], attrs: EyeLikeAttrs) -> tuple[Array, ...]:
    (x,) = given(arrays)
    rows, columns = x.shape
    return (np.eye(rows, columns, k=attrs.k, dtype=attrs.to.carrier),)


def _eye_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = draw(rng, F32, (5, 7), -4, 4)
    for k in (-2, 0, 3, 9):
        yield Sample((x,), EyeLikeAttrs(F32, k), f"k_{k}")
    yield Sample((x,), EyeLikeAttrs(I64), "i64")
    yield Sample((x[:0],), EyeLikeAttrs(F32), "empty")


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "trilu", TriluAttrs, (1, 1), _trilu_infer, _trilu_reference, _trilu_samples, ALL,
        Tolerance.EXACT,
        "The upper or lower triangle of matrices, zero elsewhere.",
        _trilu_expr, traits=frozenset((Trait.MOVEMENT,)),
    ),
    OpSpec(
        "eye_like", EyeLikeAttrs, (1, 1), _eye_infer, _eye_reference, _eye_samples, ALL,
        Tolerance.EXACT,
        "A matrix of the operand's shape with ones on one diagonal.",
        _eye_expr, traits=frozenset((Trait.MOVEMENT,)),
    ),
)  # fmt: skip
