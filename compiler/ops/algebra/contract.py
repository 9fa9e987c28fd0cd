"""Contractions: sums of products over shared axes.

Products of f16 and bf16 operands are summed in f32. A separate stage after the sum rounds the
result once.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast
from tcc.ir.index import Index, as_int, const
from tcc.ir.op import (
    Array,
    NoAttrs,
    OnnxBinding,
    Tolerance,
    Trait,
)
from tcc.ir.types import I32, I64, U32, U64, TensorType
from tcc.ops.formula import aligned, wide
from tcc.ops.operands import require
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import (
    FLOATS,
    Shape,
    agree,
    broadcast_dims,
    broadcast_shapes,
    check_broadcast,
    present,
    same_dtype,
)
from tcc.zipped import zip_equal

_SUMMED = (*FLOATS, I32, I64, U32, U64)


@frozen
class EinsumAttrs:
    """`equation` like "bij,bjk->bik": one letter per axis, an arrow, no ellipsis or spaces."""

    equation: str


# ---- matmul --------------------------------------------------------------------------------------


def matmul_shape(a: TensorType, c: TensorType) -> Shape:
    """Returns the shape of the matmul of `a` and `c`; raises ValueError if their shapes do not
    fit."""
    require(a.rank > 0 and c.rank > 0, f"matmul takes no scalars: {a}, {c}")
    agree(a.shape[-1], c.shape[-2 if c.rank > 1 else 0], "the summed dims of matmul")
    rows = a.shape[-2:-1]
    columns = c.shape[-1:] if c.rank > 1 else ()
    return (*broadcast_shapes(a.shape[:-2], c.shape[:-2], tail=2), *rows, *columns)


def _matmul_infer(_attrs: NoAttrs, lhs: TensorType, rhs: TensorType) -> TensorType:
    return TensorType(same_dtype(lhs, rhs), matmul_shape(lhs, rhs))


@in_f32
def _matmul_reference(_attrs: NoAttrs, lhs: Array, rhs: Array) -> Any:
    return np.matmul(lhs, rhs)


def matmul_sum(
    b: ExprBuilder, a: TensorType, c: TensorType, term: Callable[[Any, Any], Scalar]
) -> StageRef:
    """Appends the stage that computes the sums of a matmul.

    `term` gets the indices into each operand and returns one product.
    """
    i = b.iters(*matmul_shape(a, c))
    (k,) = b.iters(agree(a.shape[-1], c.shape[-2 if c.rank > 1 else 0], "the summed dims"))
    matrix_axes = (a.rank > 1) + (c.rank > 1)
    batch = i[: len(i) - matrix_axes]
    row = i[len(batch) : len(batch) + (a.rank > 1)]
    column = i[len(i) - 1 :] if c.rank > 1 else ()
    at_a = (*aligned(a.shape[:-2], batch), *row, k)
    at_c = (*aligned(c.shape[:-2], batch), k, *column)
    return b.sum(i, term(at_a, at_c), over=(k,))


def _matmul_expr(b: ExprBuilder, attrs: NoAttrs, lhs: TensorType, rhs: TensorType) -> StageRef:
    return matmul_sum(
        b, lhs, rhs, lambda at_a, at_c: wide(b.read(0, *at_a)) * wide(b.read(1, *at_c))
    )


# ---- gemm ----------------------------------------------------------------------------------------


def _gemm_infer(attrs: NoAttrs, lhs: TensorType, rhs: TensorType, bias: TensorType) -> TensorType:
    check_broadcast(bias.shape, matmul_shape(lhs, rhs), 2)
    same_dtype(lhs, bias)
    return _matmul_infer(attrs, lhs, rhs)


@in_f32
def _gemm_reference(_attrs: NoAttrs, lhs: Array, rhs: Array, bias: Array) -> Any:
    return np.matmul(lhs, rhs) + bias


def _gemm_expr(
    b: ExprBuilder, attrs: NoAttrs, lhs: TensorType, rhs: TensorType, bias: TensorType
) -> StageRef:
    sums = _matmul_expr(b, attrs, lhs, rhs)
    at = b.iters(*matmul_shape(lhs, rhs))
    value = b.read(sums, *at) + wide(b.read(2, *aligned(bias.shape, at)))
    return b.stage(at, cast(value, lhs.dtype))


# ---- einsum --------------------------------------------------------------------------------------


def _einsum_dims(
    operands: Sequence[TensorType], attrs: EinsumAttrs
) -> tuple[list[str], str, dict[str, Index]]:
    inputs, arrow, output = attrs.equation.partition("->")
    terms = inputs.split(",")
    require(bool(arrow), f"the equation {attrs.equation} has no arrow")
    require(len(terms) == len(operands), f"{attrs.equation} names {len(terms)} operands")
    extents: dict[str, Index] = {}
    for x, term in zip_equal(operands, terms):
        require(len(term) == x.rank, f"{term} of {attrs.equation} does not fit {x}")
        for letter, dim in zip_equal(term, x.shape):
            agree(x.shape[term.index(letter)], dim, f"{letter} of {attrs.equation}")
            axes = {
                k: [n - len(t) for n, c in enumerate(t) if c == letter] for k, t in enumerate(terms)
            }
            extents[letter] = broadcast_dims(extents.get(letter, const(1)), dim, axes)
    require(len(dict.fromkeys(output)) == len(output), f"{attrs.equation} repeats an output axis")
    require(all(letter in extents for letter in output), f"{attrs.equation} has a new output axis")
    return terms, output, extents


def _einsum_infer(attrs: EinsumAttrs, *operands: TensorType) -> TensorType:
    dtype = same_dtype(*present(operands))
    _, output, extents = _einsum_dims(operands, attrs)
    return TensorType(dtype, tuple(extents[letter] for letter in output))


@in_f32
def _einsum_reference(attrs: EinsumAttrs, *operands: Array) -> Any:
    return np.einsum(attrs.equation, *operands)


def _einsum_expr(b: ExprBuilder, attrs: EinsumAttrs, *operands: TensorType) -> StageRef:
    terms, output, extents = _einsum_dims(operands, attrs)
    index = {letter: b.iters(size)[0] for letter, size in extents.items()}
    factors: list[Scalar] = []
    for number, term in enumerate(terms):
        at = [
            0 if as_int(dim) == 1 else index[letter]
            for letter, dim in zip_equal(term, operands[number].shape)
        ]
        factors.append(wide(b.read(number, *at)))
    body = reduce(mul, factors)
    outer = tuple(index[letter] for letter in output)
    over = tuple(index[letter] for letter in extents if letter not in output)
    return b.stage(outer, body, over=over, monoid="sum")


# ---- rows of the op table ------------------------------------------------------------------------

_CONTRACTS = Trait.CONTRACTION

OPS = (
    op_row(
        "matmul", NoAttrs, _matmul_infer, _matmul_reference, _SUMMED,
        "Matrix product of the last two axes, the axes before broadcast; vectors as in NumPy.",
        Tolerance.ACCUMULATE,
        expr=_matmul_expr, traits=_CONTRACTS, onnx=OnnxBinding("MatMul"),
    ),
    op_row(
        "gemm", NoAttrs, _gemm_infer, _gemm_reference, _SUMMED,
        "Matrix product plus a bias that broadcasts to it; operands (a, b, bias).",
        Tolerance.ACCUMULATE,
        expr=_gemm_expr, traits=_CONTRACTS,
    ),
    op_row(
        "einsum", EinsumAttrs, _einsum_infer, _einsum_reference, _SUMMED,
        "The sum of products that an explicit equation names.",
        Tolerance.ACCUMULATE,
        expr=_einsum_expr, arity=(1, 26), traits=_CONTRACTS,
    ),
)  # fmt: skip
