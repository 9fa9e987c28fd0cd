"""Windows with weights: convolution, transposed convolution, and col2im.

Tensors are [batch, channel, spatial...]. A read outside the image gives zero, so padding needs no
copy. A transposed convolution finds, for each output, the inputs that contribute to it; it inserts
no zeros.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from operator import and_
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast, index_value
from tcc.ir.index import Index, IndexLike, as_index, as_int, ceildiv, const, minimum
from tcc.ir.layout import row_major_position
from tcc.ir.op import (
    Array,
    Tolerance,
    Trait,
)
from tcc.ir.types import I64, TensorType, element_count
from tcc.ops.algebra.pad import surrounded
from tcc.ops.formula import choose, fn, wide
from tcc.ops.operands import dims, inside, none_negative, require, sizes
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import FLOATS, Point, Shape, agree, same_dtype
from tcc.zipped import zip_equal


@frozen
class WindowAttrs:
    """The strides, padding and dilations of windows, with an entry for each spatial axis.

    `before` and `after` are the numbers of padding elements before and after the image.
    """

    strides: tuple[int, ...]
    before: tuple[IndexLike, ...]
    after: tuple[IndexLike, ...]
    dilations: tuple[int, ...]

    @property
    def lists(self) -> tuple[Sequence[Any], ...]:
        """The strides, `before`, `after` and dilations: the order of `window_count`'s arguments."""
        return self.strides, self.before, self.after, self.dilations

    @property
    def border_fill(self) -> int | None:
        """The fill value for reads of the image, or None if no window leaves the image."""
        return 0 if any(as_index(p) is not const(0) for p in (*self.before, *self.after)) else None


@frozen
class ConvAttrs(WindowAttrs):
    """The attributes of a convolution with zero padding and `group` groups of channels."""

    group: int


@frozen
class ConvTransposeAttrs(WindowAttrs):
    """`output_padding` adds elements at the end of each spatial axis."""

    output_padding: tuple[int, ...]
    group: int


@frozen
class Col2ImAttrs(WindowAttrs):
    """`image` and `block` are the spatial shapes of the output and of one column's patch."""

    image: Shape
    block: tuple[IndexLike, ...]


def window_count(
    extent: Index,
    kernel: IndexLike,
    stride: int,
    before: IndexLike,
    after: IndexLike,
    dilation: int,
    ceil_mode: bool = False,
) -> Index:
    """Returns the number of windows along an axis.

    With `ceil_mode`, a last partial window counts too if it starts inside the padded image.
    """
    span = dilation * (as_index(kernel) - 1) + 1
    room = extent + before + after - span
    if not ceil_mode:
        return room // stride + 1
    return minimum(ceildiv(room, stride) + 1, ceildiv(extent + before, stride))


def transposed_count(
    extent: Index,
    kernel: IndexLike,
    stride: int,
    before: IndexLike,
    after: IndexLike,
    dilation: int,
    extra: int,
) -> Index:
    """Returns the output size of a transposed convolution along an axis.

    `extra` is the axis' output padding.
    """
    span = dilation * (as_index(kernel) - 1) + 1
    return (extent - 1) * stride + span + extra - before - after


def reaching_taps(
    extent: int, kernel: int, stride: int, before: int, after: int, dilation: int
) -> range:
    """Returns the kernel positions along an axis that are inside the image in some window."""
    windows = (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1
    first = -(((windows - 1) * stride - before) // dilation)
    return range(max(first, 0), min((extent + before - 1) // dilation + 1, kernel))


def window_places(o: Sequence[Index], k: Sequence[Index], attrs: WindowAttrs) -> list[Index]:
    """Returns the position in the image, per spatial axis, of element `k` of the window at `o`."""
    axes = zip_equal(o, k, attrs.strides, attrs.dilations, attrs.before)
    return [p * stride + q * dilation - margin for p, q, stride, dilation, margin in axes]


def patch(padded: Array, k: Sequence[int], counts: Sequence[int], attrs: WindowAttrs) -> Array:
    """Returns a view of element `k` of every window of `padded` [batch, channel, spatial...].

    `counts` are the numbers of windows per spatial axis.
    """
    picks = (
        slice(q * d, q * d + (n - 1) * s + 1 if n else q * d, s)
        for q, n, s, d in zip_equal(k, counts, attrs.strides, attrs.dilations)
    )
    return padded[(slice(None), slice(None), *picks)]


def group_channel(m: Index, c: Index, filters: Index, channels: Index, group: int) -> Index:
    """Returns the channel that filter `m` reads as channel `c` of its group.

    There are `filters` filters, and each group has `channels` channels.
    """
    return c if group == 1 else m // (filters // group) * channels + c


# ---- conv ----------------------------------------------------------------------------------------


def _check_groups(groups: int, x: TensorType, axis: int, what: str) -> None:
    """Checks that `groups` divides the size of an axis of `x`.

    Raises ValueError if it certainly does not, and `UnequalDimsError` if that depends on a symbolic
    size. `what` names the axis in messages.
    """
    size = x.shape[axis]
    number = as_int(size)
    require(
        number is None or number % groups == 0, f"{groups} groups do not divide the {what} of {x}"
    )
    agree(size, size // groups * groups, f"the {what} and those of groups")


def conv_shape(x: TensorType, w: TensorType, attrs: ConvAttrs) -> Shape:
    """Returns the output shape of a convolution; raises ValueError if the operands do not fit."""
    spatial = x.rank - 2
    require(spatial >= 1 and w.rank == x.rank, f"conv of {x} with {w}")
    require(all(len(v) == spatial for v in attrs.lists), f"conv attributes do not fit {x}")
    agree(x.shape[1], w.shape[1] * attrs.group, "the channels of the image and of all groups")
    _check_groups(attrs.group, w, 0, "filters")
    image = tuple(map(window_count, x.shape[2:], w.shape[2:], *attrs.lists))
    none_negative(image, f"the kernel of {w} is larger than the padded image of {x}")
    return (x.shape[0], w.shape[0], *image)


def _conv_infer(
    attrs: ConvAttrs, x: TensorType, w: TensorType, bias: TensorType | None = None
) -> TensorType:
    dtype = same_dtype(x, w, bias)
    shape = conv_shape(x, w, attrs)
    if bias is not None:
        _check_bias(bias, shape[1])
    return TensorType(dtype, shape)


def _check_bias(bias: TensorType, channels: Index) -> None:
    require(bias.rank == 1, f"the bias {bias} must be a vector")
    agree(bias.shape[0], channels, "the channels of the bias")


def convolve(x: Array, w: Array, attrs: ConvAttrs) -> Array:
    """Returns the convolution in the type of `x`, computed one kernel element at a time."""
    before, after = sizes(attrs.before), sizes(attrs.after)
    padded = np.pad(x, ((0, 0), (0, 0), *zip_equal(before, after)))
    image, kernel = dims(*x.shape[2:]), dims(*w.shape[2:])
    counts = sizes(tuple(map(window_count, image, kernel, *attrs.lists)))
    groups = attrs.group
    grouped = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    y = np.zeros((x.shape[0], groups, grouped.shape[1], *counts), x.dtype)
    for k in np.ndindex(*w.shape[2:]):
        part = patch(padded, k, counts, attrs)
        part = part.reshape(x.shape[0], groups, w.shape[1], *counts)
        y += np.einsum("ngc...,gmc->ngm...", part, grouped[(..., *k)])
    return y.reshape(x.shape[0], w.shape[0], *counts)


@in_f32
def _conv_reference(attrs: ConvAttrs, x: Array, w: Array, bias: Array | None) -> Array:
    return with_bias(convolve(x, w, attrs), bias)


def with_bias(y: Array, bias: Array | None) -> Array:
    """Returns `y` plus `bias`, which has one number per channel."""
    return y if bias is None else y + bias.reshape(-1, *([1] * (y.ndim - 2)))


def conv_indices(
    b: ExprBuilder, x: TensorType, w: TensorType, attrs: ConvAttrs
) -> tuple[Point, Point, Point, Point]:
    """Returns (iterators of the output, iterators of the sum, image indices, weight indices)."""
    n, m, *o = i = b.iters(*conv_shape(x, w, attrs))
    c, *k = over = b.iters(*w.shape[1:])
    channel = group_channel(m, c, w.shape[0], w.shape[1], attrs.group)
    return i, over, (n, channel, *window_places(o, k, attrs)), (m, c, *k)


def _conv_expr(
    b: ExprBuilder, attrs: ConvAttrs, x: TensorType, w: TensorType, bias: TensorType | None
) -> StageRef:
    y = _conv_infer(attrs, x, w, bias)
    i, over, at_x, at_w = conv_indices(b, x, w, attrs)
    pixel = wide(b.read(0, *at_x, fill=attrs.border_fill))
    return biased(b, b.sum(i, pixel * wide(b.read(1, *at_w)), over=over), y, bias)


def biased(b: ExprBuilder, sums: StageRef, y: TensorType, bias: TensorType | None) -> StageRef:
    """Returns `sums` plus operand 2, the `bias`, if it is present; `y` is the type of the result.

    The bias has one element per channel.
    """
    if bias is None:
        return sums
    i = b.point(y)
    return b.stage(i, cast(b.read(sums, *i) + wide(b.read(2, i[1])), y.dtype))


# ---- conv transpose ------------------------------------------------------------------------------


def _transposed(image: Shape, kernel: Shape, attrs: ConvTransposeAttrs) -> Shape:
    return tuple(map(transposed_count, image, kernel, *attrs.lists, attrs.output_padding))


def _transpose_infer(
    attrs: ConvTransposeAttrs, x: TensorType, w: TensorType, bias: TensorType | None = None
) -> TensorType:
    dtype = same_dtype(x, w, bias)
    require(x.rank >= 3 and w.rank == x.rank, f"conv_transpose of {x} with {w}")
    agree(x.shape[1], w.shape[0], "the channels of image and filters")
    _check_groups(attrs.group, x, 1, "channels")
    image = _transposed(x.shape[2:], w.shape[2:], attrs)
    shape = (x.shape[0], w.shape[1] * attrs.group, *image)
    if bias is not None:
        _check_bias(bias, shape[1])
    return TensorType(dtype, shape)


@in_f32
def _transpose_reference(
    attrs: ConvTransposeAttrs, x: Array, w: Array, bias: Array | None
) -> Array:
    before, none = sizes(attrs.before), (0,) * (x.ndim - 2)
    image, kernel = dims(*x.shape[2:]), dims(*w.shape[2:])
    # `full_sizes` is the size before cropping by the padding, `result_sizes` the size after it.
    bare = replace(attrs, before=none, after=none, output_padding=none)
    full_sizes, result_sizes = (sizes(_transposed(image, kernel, a)) for a in (bare, attrs))
    full_sizes = tuple(max(n, 0) for n in full_sizes)
    groups = attrs.group
    y = np.zeros((x.shape[0], groups * w.shape[1], *full_sizes), x.dtype)
    grouped_x = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    grouped_w = w.reshape(groups, -1, *w.shape[1:])
    for k in np.ndindex(*w.shape[2:]):
        term = np.einsum("ngc...,gcm->ngm...", grouped_x, grouped_w[(..., *k)])
        spots = patch(y, k, x.shape[2:], attrs)
        spots += term.reshape(spots.shape)
    behind = (b + n - size for b, n, size in zip_equal(before, result_sizes, full_sizes))
    y = surrounded(y, 0, (0, 0, *(-b for b in before)), (0, 0, *behind))
    return with_bias(y, bias)


def _transpose_expr(
    b: ExprBuilder,
    attrs: ConvTransposeAttrs,
    x: TensorType,
    w: TensorType,
    bias: TensorType | None,
) -> StageRef:
    y = _transpose_infer(attrs, x, w, bias)
    n, m, *o = i = b.point(y)
    c, *k = over = b.iters(w.shape[0] // attrs.group, *w.shape[2:])
    group_channels = w.shape[0] // attrs.group
    channel = group_channel(m, c, w.shape[1] * attrs.group, group_channels, attrs.group)
    at, hits = sources(o, k, attrs)
    pixel = wide(b.read(0, n, channel, *at, fill=0))
    weight = wide(b.read(1, channel, m % w.shape[1] if attrs.group > 1 else m, *k))
    return biased(b, b.sum(i, when(hits, pixel * weight), over=over), y, bias)


def sources(
    o: Sequence[Index], k: Sequence[Index], attrs: WindowAttrs
) -> tuple[list[Index], list[Scalar]]:
    """Returns (window, conditions): the index of the window whose element `k` is at output `o`.

    Windows of outputs begin a stride apart, so there is such a window only if all conditions hold.
    In a transposed convolution, input element w is added to window w, times the kernel.
    """
    axes = zip_equal(o, k, attrs.dilations, attrs.before)
    positions = list(zip_equal((p + b - q * d for p, q, d, b in axes), attrs.strides))
    hits: list[Scalar] = [fn("eq", index_value(r % s, I64), 0) for r, s in positions if s > 1]
    return [r // s for r, s in positions], hits


def when(conditions: Sequence[Scalar], value: Scalar) -> Scalar:
    """Returns `value` where all conditions hold, else zero."""
    if not conditions:
        return value
    return choose(reduce(and_, conditions), value, 0)


# ---- col2im --------------------------------------------------------------------------------------


def _col2im_counts(attrs: Col2ImAttrs) -> Shape:
    return tuple(map(window_count, attrs.image, attrs.block, *attrs.lists))


def _col2im_infer(attrs: Col2ImAttrs, x: TensorType) -> TensorType:
    require(x.rank == 3, f"col2im takes [batch, channel * block, columns], not {x}")
    agree(x.shape[2], element_count(_col2im_counts(attrs)), "the columns")
    block_size = element_count(tuple(map(as_index, attrs.block)))
    return TensorType(x.dtype, (x.shape[0], x.shape[1] // block_size, *attrs.image))


@in_f32
def _col2im_reference(attrs: Col2ImAttrs, x: Array) -> Array:
    before, after, image = sizes(attrs.before), sizes(attrs.after), sizes(attrs.image)
    counts, block = sizes(_col2im_counts(attrs)), sizes(attrs.block)
    columns = x.reshape(x.shape[0], x.shape[1] // prod(block), *block, *counts)
    padded_sizes = [b + n + a for b, n, a in zip_equal(before, image, after)]
    y = np.zeros((*columns.shape[:2], *padded_sizes), columns.dtype)
    for k in np.ndindex(*block):
        spots = patch(y, k, counts, attrs)
        spots += columns[(slice(None), slice(None), *k)]
    interior = tuple(slice(b, b + n) for b, n in zip_equal(before, image))
    return y[(slice(None), slice(None), *interior)]


def _col2im_expr(b: ExprBuilder, attrs: Col2ImAttrs, x: TensorType) -> StageRef:
    n, c, *o = i = b.point(_col2im_infer(attrs, x))
    k = b.iters(*attrs.block)
    at, hits = sources(o, k, attrs)
    counts = _col2im_counts(attrs)
    row = row_major_position((c, *k), (x.shape[1], *map(as_index, attrs.block)))
    column = row_major_position(tuple(at), counts)
    hits += (inside(index_value(p, I64), n) for p, n in zip_equal(at, counts))
    return b.sum(i, when(hits, wide(b.read(0, n, row, column, fill=0))), over=k)


# ---- rows of the op table ------------------------------------------------------------------------

OPS = (
    op_row(
        "conv", ConvAttrs, _conv_infer, _conv_reference, FLOATS,
        "Grouped, strided, dilated cross-correlation over 1 to 3 spatial axes, plus a bias.",
        Tolerance.ACCUMULATE,
        expr=_conv_expr, traits=Trait.CONTRACTION | Trait.WINDOW,
    ),
    op_row(
        "conv_transpose", ConvTransposeAttrs, _transpose_infer, _transpose_reference,
        FLOATS,
        "The transpose of a convolution: each input element adds its kernel to the output.",
        Tolerance.ACCUMULATE,
        expr=_transpose_expr, traits=Trait.CONTRACTION | Trait.WINDOW,
    ),
    op_row(
        "col2im", Col2ImAttrs, _col2im_infer, _col2im_reference, FLOATS,
        "Adds the columns of patches up to an image.",
        Tolerance.ACCUMULATE,
        expr=_col2im_expr, traits=Trait.WINDOW,
    ),
)  # fmt: skip
