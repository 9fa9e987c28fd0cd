"""Linear algebra on the last two axes: factorizations and triangular systems.

Importers build solvers, inverses, determinants and pseudo-inverses from these ops and matmuls.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.index import Index, as_int, minimum
from tcc.ir.op import (
    Array,
    NoAttrs,
    OnnxBinding,
    OpSpec,
    OutArrays,
    OutTypes,
    Tolerance,
)
from tcc.ir.types import F32, F64, I32, I64, TensorType
from tcc.ops.operands import integer, require
from tcc.ops.reference import in_f32
from tcc.ops.rows import Function, op_row
from tcc.ops.shapes import agree, agree_shapes


@frozen
class TriangleAttrs:
    """`upper` selects the triangle that is read.

    With `unit`, the diagonal counts as ones and is not read.
    """

    upper: bool
    unit: bool


@frozen
class RowsAttrs:
    """`rows` is the number of rows of the matrix."""

    rows: Index


def _check_matrices(x: TensorType) -> None:
    require(x.rank >= 2, f"{x} holds no matrices")


def _check_square(x: TensorType) -> None:
    _check_matrices(x)
    agree(x.shape[-1], x.shape[-2], "the sides of a square matrix")


def _each(x: Array, count: int) -> Iterator[tuple[int, ...]]:
    """Yields every index into all axes but the last `count`."""
    yield from np.ndindex(x.shape[: x.ndim - count])


# ---- determinant and LU factorization ------------------------------------------------------------


def _det_infer(_attrs: NoAttrs, x: TensorType) -> TensorType:
    _check_square(x)
    return TensorType(x.dtype, x.shape[:-2])


@in_f32
def _det_reference(_attrs: NoAttrs, x: Array) -> Any:
    return np.linalg.det(x.astype(np.float64))


def _lu_infer(_attrs: NoAttrs, x: TensorType) -> OutTypes:
    _check_matrices(x)
    return (x, TensorType(I32, (*x.shape[:-2], minimum(*x.shape[-2:]))))


@in_f32
def _lu_reference(_attrs: NoAttrs, x: Array) -> OutArrays:
    packed = x.astype(np.float64)
    pivots = np.zeros((*x.shape[:-2], min(x.shape[-2:])), np.int32)
    for at in _each(x, 2):
        a = packed[at]
        for step in range(pivots.shape[-1]):
            best = step + int(np.argmax(np.abs(a[step:, step])))
            pivots[(*at, step)] = best + 1
            a[[step, best]] = a[[best, step]]
            if a[step, step] != 0:
                a[step + 1 :, step] /= a[step, step]
                a[step + 1 :, step + 1 :] -= np.outer(a[step + 1 :, step], a[step, step + 1 :])
    return packed, pivots


def _order_infer(attrs: RowsAttrs, pivots: TensorType) -> TensorType:
    require(pivots.rank >= 1, f"{pivots} holds no pivots")
    few, rows = as_int(pivots.shape[-1]), as_int(attrs.rows)
    require(few is None or rows is None or few <= rows, f"{pivots} are more than {rows} rows")
    return TensorType(I64, (*pivots.shape[:-1], attrs.rows))


def _order_reference(attrs: RowsAttrs, pivots: Array) -> Array:
    rows = integer(attrs.rows)
    order = np.broadcast_to(np.arange(rows), (*pivots.shape[:-1], rows)).copy()
    for at in _each(pivots, 1):
        for step, pivot in enumerate(pivots[at]):
            if not 0 < pivot <= rows:
                raise IndexError(f"pivot {pivot} is outside the {rows} rows")
            order[at][[step, pivot - 1]] = order[at][[pivot - 1, step]]
    return order


# ---- triangular systems and Cholesky factorization -----------------------------------------------


def _triangle_infer(_attrs: TriangleAttrs, a: TensorType, b: TensorType) -> TensorType:
    _check_square(a)
    _check_matrices(b)
    compatible = a.rank == b.rank and a.dtype is b.dtype
    require(compatible, f"{a} is no system of equations for {b}")
    agree_shapes(a.shape[:-1], b.shape[:-1], "matrices and right sides")
    return b


@in_f32
def _triangle_reference(attrs: TriangleAttrs, a: Array, b: Array) -> Array:
    a = a.astype(np.float64)
    x, rows = b.astype(np.float64), range(a.shape[-1])
    for row in reversed(rows) if attrs.upper else rows:
        solved = slice(row + 1, None) if attrs.upper else slice(0, row)
        products = a[..., row : row + 1, solved] @ x[..., solved, :]
        x[..., row, :] -= products[..., 0, :]
        if not attrs.unit:
            x[..., row, :] /= a[..., row, row, None]  # of a singular matrix, by zero
    return x


def _cholesky_infer(_attrs: NoAttrs, x: TensorType) -> OutTypes:
    _check_square(x)
    return (x, TensorType(I32, x.shape[:-2]))


@in_f32
def _cholesky_reference(_attrs: NoAttrs, x: Array) -> OutArrays:
    lower, failed = np.tril(x.astype(np.float64)), np.zeros(x.shape[:-2], np.int32)
    for at in _each(x, 2):
        a = lower[at]
        for column in range(x.shape[-1]):
            a[column:, column] -= a[column:, :column] @ a[column, :column]
            if not a[column, column] > 0:
                failed[at] = column + 1
                break
            a[column:, column] /= np.sqrt(a[column, column])
    return lower, failed


# ---- QR and singular value decomposition ---------------------------------------------------------


def _qr_infer(_attrs: NoAttrs, x: TensorType) -> OutTypes:
    _check_matrices(x)
    return (x, TensorType(x.dtype, (*x.shape[:-2], minimum(*x.shape[-2:]))))


@in_f32
def _qr_reference(_attrs: NoAttrs, x: Array) -> OutArrays:
    transposed, tau = np.linalg.qr(x.astype(np.float64), mode="raw")
    return transposed.swapaxes(-1, -2), tau


def _svd_infer(_attrs: NoAttrs, x: TensorType) -> OutTypes:
    _check_matrices(x)
    *outer, rows, columns = x.shape
    few = minimum(rows, columns)
    shapes = ((*outer, rows, few), (*outer, few), (*outer, few, columns))
    return tuple(TensorType(x.dtype, shape) for shape in shapes)


@in_f32
def _svd_reference(_attrs: NoAttrs, x: Array) -> OutArrays:
    is_finite = np.asarray(np.isfinite(x).all((-1, -2), keepdims=True))
    u, s, vt = np.linalg.svd(np.where(is_finite, x, 0).astype(np.float64), full_matrices=False)
    u, s, vt = (
        np.where(w, part, np.nan)
        for w, part in ((is_finite, u), (is_finite[..., 0], s), (is_finite, vt))
    )
    if u.size:
        at = np.argmax(np.abs(u), axis=-2, keepdims=True)
        sign = np.sign(np.take_along_axis(u, at, axis=-2))
        u, vt = u * sign, vt * sign.swapaxes(-1, -2)
    return u, s, vt


# ---- rows of the op table ------------------------------------------------------------------------

_FLOATS = (F32, F64)


def _factorization(
    name: str,
    infer: Function,
    reference: Function,
    doc: str,
    onnx: OnnxBinding | None = None,
) -> OpSpec:
    """Returns the op-table row of a factorization: one operand and no attributes."""
    return op_row(
        name, NoAttrs, infer, reference, _FLOATS, doc, Tolerance.ACCUMULATE, onnx=onnx,
    )  # fmt: skip


OPS = (
    _factorization(
        "det", _det_infer, _det_reference,
        "The determinant of each square matrix, by elimination with partial pivoting.",
        OnnxBinding("Det", since=11),
    ),
    _factorization(
        "lu", _lu_infer, _lu_reference,
        "L and U of each matrix in one, and the row that each step exchanged, counted from 1.",
    ),
    op_row(
        "pivot_order", RowsAttrs, _order_infer, _order_reference, (I32,),
        "The original position of each row after the exchanges of `lu`.",
    ),
    op_row(
        "solve_triangular", TriangleAttrs, _triangle_infer, _triangle_reference,
        _FLOATS,
        "x of a x = b, a being a triangle of each matrix.",
        Tolerance.ACCUMULATE,
    ),
    _factorization(
        "cholesky", _cholesky_infer, _cholesky_reference,
        "The lower factor of each matrix; 0, or the column (from 1) at which it fails.",
    ),
    _factorization(
        "qr", _qr_infer, _qr_reference,
        "R of each matrix above the vectors of its reflections, and the reflections' factors.",
    ),
    _factorization(
        "svd", _svd_infer, _svd_reference,
        "Singular vectors and values; the largest element of a left vector is positive.",
    ),
)  # fmt: skip
