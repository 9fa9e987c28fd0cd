"""Pooling: windows without weights."""

from dataclasses import replace
from functools import partial, reduce
from math import prod
from operator import and_
from typing import Any, Literal

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast, index_value
from tcc.ir.index import Index, as_index, ceildiv, const, maximum, minimum
from tcc.ir.layout import row_major_position
from tcc.ir.op import (
    Array,
    OutArrays,
    OutTypes,
    Tolerance,
    Trait,
)
from tcc.ir.types import BOOL, I8, I64, U8, TensorType, dtype_of, element_count
from tcc.ops.algebra.pad import surrounded
from tcc.ops.algebra.window import WindowAttrs, patch, window_count, window_places
from tcc.ops.formula import choose, fn, wide
from tcc.ops.operands import dims, inside, none_negative, require, sizes
from tcc.ops.reference import identity_of, in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import FLOATS, Point, Shape
from tcc.zipped import zip_equal


@frozen
class PoolAttrs(WindowAttrs):
    """The attributes of all pools; some fields apply to a single op.

    `count_include_pad` applies to average_pool and counts padding as elements. `p` applies to
    lp_pool and is the order of the norm. `storage_order` applies to max_pool_indices: 0 gives
    row-major positions, 1 column-major positions.
    """

    kernel: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = False
    p: int = 2
    storage_order: int = 0


@frozen
class MaxUnpoolAttrs:
    """`shape` is the complete output shape; the positions are row-major positions in it."""

    shape: Shape


# ---- shared by all pools -------------------------------------------------------------------------


def _shape(x: TensorType, attrs: PoolAttrs) -> Shape:
    numbers = x.rank >= 3 and x.dtype is not BOOL
    require(numbers, f"a pool takes numbers [batch, channel, spatial...], not {x}")
    require(
        all(len(v) == x.rank - 2 for v in (attrs.kernel, *attrs.lists)),
        f"pool attributes do not fit {x}",
    )
    image = _counts(x.shape[2:], attrs)
    none_negative(image, f"the window {attrs.kernel} is larger than the padded image of {x}")
    return (*x.shape[:2], *image)


def _counts(image: Point, attrs: PoolAttrs) -> Shape:
    counted = partial(window_count, ceil_mode=attrs.ceil_mode)
    return tuple(map(counted, image, attrs.kernel, *attrs.lists))


def _infer(attrs: PoolAttrs, x: TensorType) -> TensorType:
    return TensorType(x.dtype, _shape(x, attrs))


def _patches(x: Array, attrs: PoolAttrs, fill: Any) -> Array:
    """Returns the elements of all windows, [elements of a window, batch, channel, windows...].

    Elements outside the image are `fill`.
    """
    before, after = sizes(attrs.before), sizes(attrs.after)
    counts = sizes(_counts(dims(*x.shape[2:]), attrs))
    padding_after = [
        max((n - 1) * s + (k - 1) * d + 1 - size - b, a)
        for n, size, k, s, b, a, d in zip_equal(
            counts, x.shape[2:], attrs.kernel, attrs.strides, before, after, attrs.dilations,
        )
    ]  # fmt: skip
    widths = ((0, 0), (0, 0), *zip_equal(before, padding_after))
    padded = np.pad(x, widths, constant_values=fill)
    elements = np.ndindex(*attrs.kernel)
    return np.stack([patch(padded, k, counts, attrs) for k in elements])


def _window(
    b: ExprBuilder, x: TensorType, attrs: PoolAttrs, outside: float
) -> tuple[Point, Point, Scalar, list[Index]]:
    """Returns (iterators of the output, iterators of the window, element, its spatial position).

    The output's iterators select a window, and the window's iterators an element of it. The
    position is relative to the image; an element outside the image has the value `outside`.
    """
    i = b.iters(*_shape(x, attrs))
    k = b.iters(*attrs.kernel)
    at = window_places(i[2:], k, attrs)
    return i, k, b.read(0, *i[:2], *at, fill=outside if _leaves_image(attrs) else None), at


def _leaves_image(attrs: PoolAttrs) -> bool:
    return attrs.ceil_mode or attrs.border_fill is not None


# ---- max -----------------------------------------------------------------------------------------


def _max_reference(attrs: PoolAttrs, x: Array) -> Any:
    return _patches(x, attrs, identity_of("max", dtype_of(x))).max(axis=0)


def _max_expr(b: ExprBuilder, attrs: PoolAttrs, x: TensorType) -> StageRef:
    i, k, value, _ = _window(b, x, attrs, identity_of("max", x.dtype))
    return b.stage(i, value, over=k, monoid="max")


def _indices_infer(attrs: PoolAttrs, x: TensorType) -> OutTypes:
    y = _infer(attrs, x)
    return y, TensorType(I64, y.shape)


def _indices_reference(attrs: PoolAttrs, x: Array) -> OutArrays:
    image = x.shape[2:]
    order: Literal["F", "C"] = "F" if attrs.storage_order else "C"
    spatial = np.arange(prod(image)).reshape(image, order=order)
    planes = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *([1] * len(image)))
    positions = _patches(planes * prod(image) + spatial, attrs, -1)
    values = _patches(x, attrs, identity_of("max", dtype_of(x)))
    # The first of the largest elements inside the image wins; NaN counts as larger than any number.
    top = values.max(axis=0)
    largest = (values == top) | (np.isnan(values) & np.isnan(top))
    best = np.argmax(largest & (positions >= 0), axis=0)[None]
    first = [np.take_along_axis(a, best, axis=0)[0] for a in (values, positions)]
    return first[0], first[1]


def _indices_expr(b: ExprBuilder, attrs: PoolAttrs, x: TensorType) -> tuple[StageRef, StageRef]:
    i, k, value, at = _window(b, x, attrs, identity_of("max", x.dtype))
    position = (i[0] * x.shape[1] + i[1]) * element_count(x.shape[2:])
    axes = list(zip_equal(at, x.shape[2:]))
    order = -1 if attrs.storage_order else 1
    spatial = row_major_position(tuple(at[::order]), x.shape[2:][::order])
    where: Scalar = index_value(position + spatial, I64)
    if _leaves_image(attrs):
        tests = (inside(index_value(index, I64), dim) for index, dim in axes)
        where = choose(reduce(and_, tests), where, (1 << 63) - 1)
    best = b.stage(i, value, where, over=k, monoid="argmax")
    return best, StageRef(best.stage, 1)


# ---- average and lp ------------------------------------------------------------------------------


@in_f32
def _average_reference(attrs: PoolAttrs, x: Array) -> Any:
    window_sum = _patches(x, attrs, 0).sum(axis=0)
    counted, spans = np.ones(x.shape), attrs
    if attrs.count_include_pad:
        before, after = sizes(attrs.before), sizes(attrs.after)
        counted = surrounded(counted, 1, (0, 0, *before), (0, 0, *after))
        none = (0,) * len(before)
        spans = replace(attrs, before=none, after=none)
    counts = _patches(counted, spans, 0).sum(axis=0)[tuple(map(slice, window_sum.shape))]
    return window_sum / counts


def _average_expr(b: ExprBuilder, attrs: PoolAttrs, x: TensorType) -> StageRef:
    i, k, value, _ = _window(b, x, attrs, 0)
    sums = b.sum(i, wide(value), over=k)
    i = b.iters(*_shape(x, attrs))
    window_sum = b.read(sums, *i)
    count = index_value(_counted(i[2:], x, attrs), window_sum.dtype)
    return b.stage(i, cast(window_sum / count, x.dtype))


def _counted(o: Point, x: TensorType, attrs: PoolAttrs) -> Index:
    """Returns the divisor of the average at output `o`.

    It is the number of elements of the window inside the image, or inside the padded image if
    padding counts.
    """
    window_size = prod(attrs.kernel)
    if not _leaves_image(attrs) or (attrs.count_include_pad and not attrs.ceil_mode):
        return const(window_size)
    count = const(1)
    for p, size, kernel, stride, before, after, dilation in zip_equal(
        o, x.shape[2:], attrs.kernel, *attrs.lists
    ):
        start = p * stride - before
        low = -as_index(before) if attrs.count_include_pad else const(0)
        high = size + after if attrs.count_include_pad else size
        end = minimum(ceildiv(high - start, dilation), kernel)
        count = count * (end - maximum(ceildiv(low - start, dilation), 0))
    return count


@in_f32
def _lp_reference(attrs: PoolAttrs, x: Array) -> Any:
    return (np.abs(_patches(x, attrs, 0)) ** attrs.p).sum(axis=0) ** (1 / attrs.p)


def _lp_expr(b: ExprBuilder, attrs: PoolAttrs, x: TensorType) -> StageRef:
    i, k, value, _ = _window(b, x, attrs, 0)
    size = abs(wide(value))
    if attrs.p == 2:
        size = size * size
    elif attrs.p != 1:
        size = fn("pow", size, float(attrs.p))
    sums = b.sum(i, size, over=k)
    if attrs.p == 1:
        return sums
    i = b.iters(*_shape(x, attrs))
    power_sum = b.read(sums, *i)
    root = fn("sqrt", power_sum) if attrs.p == 2 else fn("pow", power_sum, 1.0 / attrs.p)
    return b.stage(i, cast(root, x.dtype))


# ---- max unpool ----------------------------------------------------------------------------------


def _unpool_infer(attrs: MaxUnpoolAttrs, x: TensorType, positions: TensorType) -> TensorType:
    require(x.shape == positions.shape, f"{x} and its positions {positions} differ in shape")
    require(positions.dtype is I64, f"positions are i64, not {positions}")
    return TensorType(x.dtype, attrs.shape)


def _unpool_reference(attrs: MaxUnpoolAttrs, x: Array, positions: Array) -> Array:
    y = np.zeros(sizes(attrs.shape), x.dtype)
    y.reshape(-1)[positions.ravel()] = x.ravel()
    return y


# ---- rows of the op table ------------------------------------------------------------------------


_POOLS = Trait.WINDOW | Trait.REDUCTION
_MAXIMA = (*FLOATS, I8, U8)

OPS = (
    op_row(
        "max_pool", PoolAttrs, _infer, _max_reference, _MAXIMA,
        "The largest element of each window; outside the image stands the lowest value.",
        expr=_max_expr, traits=_POOLS,
    ),
    op_row(
        "max_pool_indices", PoolAttrs, _indices_infer, _indices_reference,
        _MAXIMA,
        "max_pool; a second output has the position of each maximum in the whole input.",
        expr=_indices_expr, traits=_POOLS,
    ),
    op_row(
        "average_pool", PoolAttrs, _infer, _average_reference, FLOATS,
        "The mean of each window, with or without the padding in the count.",
        Tolerance.ACCUMULATE,
        expr=_average_expr, traits=_POOLS,
    ),
    op_row(
        "lp_pool", PoolAttrs, _infer, _lp_reference, FLOATS,
        "The p-norm of each window.",
        Tolerance.ACCUMULATE,
        expr=_lp_expr, traits=_POOLS,
    ),
    op_row(
        "max_unpool", MaxUnpoolAttrs, _unpool_infer, _unpool_reference,
        FLOATS,
        "Zeros with each element of x at its position; positions outside are dropped.",
        traits=Trait.OPAQUE,
    ),
)  # fmt: skip
