"""Converters of convolutions and pools."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tcc.frontends.emit import concat, family, filled, full, size_scalar
from tcc.frontends.operand import Operand
from tcc.frontends.torch.context import CallContext, Converter, Converters, named, of_axes
from tcc.frontends.torch.convert.create import counted
from tcc.ir.index import Index, as_int, ceildiv, const, maximum
from tcc.ir.types import I64, element_count
from tcc.zipped import zip_equal


def batched(ctx: CallContext, axes: int, *names: str) -> list[Operand]:
    """Returns arguments with a batch axis before their channels; adds it where it is absent."""
    return [x.unsqueeze(0) if x.rank == axes + 1 else x for x in map(ctx.operand, names)]


def _image(ctx: CallContext, axes: int) -> Operand:
    """Returns the call's image with a batch axis."""
    return batched(ctx, axes, "self")[0]


def window_attrs(ctx: CallContext, axes: int) -> dict[str, Any]:
    """Returns the strides, padding and dilations of windows over the last axes, as attributes."""
    pads = tuple(map(const, ctx.integers("padding", axes)))
    dilations = ctx.integers("dilation", axes) if ctx.has("dilation") else (1,) * axes
    strides = ctx.integers("stride", axes)
    return {"strides": strides, "before": pads, "after": pads, "dilations": dilations}


# ---- convolutions --------------------------------------------------------------------------------


def _convolution(
    ctx: CallContext,
    x: Operand,
    weight: Operand,
    transposed: bool,
    groups: int,
    bias: Operand | None = None,
) -> Operand:
    axes = weight.rank - 2
    row, attrs = "conv", window_attrs(ctx, axes) | {"group": groups}
    if transposed:
        row, attrs["output_padding"] = "conv_transpose", ctx.integers("output_padding", axes)
    return x.emit(row, weight, bias, **attrs)


# ---- pools ---------------------------------------------------------------------------------------


def pool_attrs(ctx: CallContext, axes: int) -> dict[str, Any]:
    kernel, attrs = ctx.integers("kernel_size", axes), window_attrs(ctx, axes)
    attrs["strides"] = attrs["strides"] or kernel
    return attrs | {"kernel": kernel, "ceil_mode": ctx.flag("ceil_mode")}


def _max_pool(axes: int) -> Converter:
    return lambda ctx: _image(ctx, axes).max_pool(**pool_attrs(ctx, axes))


@family
def _max_pool_indices(axes: int, ctx: CallContext) -> Sequence[Operand]:
    """Returns the maxima, and their positions in the image of their channel."""
    x = _image(ctx, axes)
    maxima, at = x.emit_all("max_pool_indices", **pool_attrs(ctx, axes))
    return maxima, at.mod(size_scalar(element_count(x.shape[2:])), fmod=False)


@family
def _average_pool(
    axes: int, ctx: CallContext, count_include_pad: bool, divisor_override: int | None = None
) -> Operand:
    x = _image(ctx, axes)
    attrs = pool_attrs(ctx, axes)
    if divisor_override is None:
        return x.average_pool(**attrs, count_include_pad=count_include_pad)
    if attrs["ceil_mode"]:
        x, attrs = _whole_windows(ctx, x, attrs)
    mean = x.average_pool(**attrs, count_include_pad=True)
    return mean * (float(np.prod(attrs["kernel"])) / divisor_override)


def _whole_windows(
    ctx: CallContext, x: Operand, attrs: dict[str, Any]
) -> tuple[Operand, dict[str, Any]]:
    """Pads `x` with zeros up to the end of the last windows; returns it and the remaining
    attributes."""
    axes = len(attrs["kernel"])
    out = ctx.result_shape()[-axes:]
    pads = [(const(0), const(0))] * (x.rank - axes)
    for n in range(axes):
        window_end = (out[n] - 1) * attrs["strides"][n] + attrs["kernel"][n]
        before = attrs["before"][n]
        pads.append((before, window_end - x.shape[n + x.rank - axes] - before))
    starts, ends = zip_equal(*pads)
    x = x.pad(x.like(0), before=starts, after=ends, mode="constant")
    zeros = (const(0),) * axes
    return x, {**attrs, "before": zeros, "after": zeros, "ceil_mode": False}


# ---- adaptive pools ------------------------------------------------------------------------------


def adaptive_windows(size: Index, bins: Index) -> tuple[Operand, Operand, Operand]:
    """Returns the windows of an axis, which together cover it.

    There are three results. The positions in each window are [bins, longest window]; shorter
    windows repeat their last position. A mask tells the positions that count. The third result is
    the windows' lengths.
    """
    number, extent = counted(bins), size_scalar(size)
    count = size_scalar(maximum(bins, 1))
    start, end = number * extent / count, ((number + 1) * extent + count - 1) / count
    places = start.unsqueeze(1) + counted(_longest_window(size, bins))
    ends = end.unsqueeze(1)
    return places.minimum(ends - 1), places < ends, end - start


def _longest_window(size: Index, bins: Index) -> Index:
    extent, count = as_int(size), as_int(bins)
    if extent is None or not count:
        return ceildiv(size, maximum(bins, 1)) + 1
    edges = ((n * extent // count, -(-(n + 1) * extent // count)) for n in range(count))
    return const(max(end - start for start, end in edges))


def adapted(x: Operand, axis: int, bins: Index, how: str) -> Operand:
    """Reduces an axis over `bins` windows; `how` is `sum`, `mean` or `max`."""
    if bins is x.shape[axis]:
        return x
    places, counts, length = adaptive_windows(x.shape[axis], bins)
    gathered = x.gather(places, axis=axis)
    if how == "max":
        return gathered.max(axis + 1)
    behind = x.rank - axis - 1
    window_sum = counts.trailing(behind).select(gathered, 0).sum(axis + 1)
    if how == "sum":
        return window_sum
    return window_sum / length.cast(x.dtype).trailing(behind)


@family
def _adaptive(op: str, reduce: str, axes: int, ctx: CallContext) -> Operand:
    """Returns a pool whose windows follow from the sizes.

    The windows are equal if the input's sizes are multiples of the result's. Otherwise each window
    is a slice if the sizes are constant.
    """
    x = _image(ctx, axes)
    target = ctx.result_shape(0 if isinstance(ctx.result(), tuple) else None)[-axes:]
    if all(as_int(n) == 1 for n in target):
        return x.reduce(reduce, tuple(range(2, 2 + axes)), keepdims=True)
    pairs = [*zip_equal(map(as_int, x.shape[2:]), map(as_int, target))]
    if all(n and size is not None and size % n == 0 for size, n in pairs):
        kernel = tuple(size // n for size, n in pairs if size is not None and n)
        zeros = (const(0),) * axes
        return x.emit(
            op, kernel=kernel, strides=kernel, before=zeros, after=zeros, dilations=(1,) * axes
        )
    for axis, ((size, count), bins) in enumerate(zip_equal(pairs, target), 2):
        if size is None or count is None:
            x = adapted(x, axis, bins, reduce)
        else:
            x = _binned(x, axis, size, count, reduce)
    return x


def _binned(x: Operand, axis: int, size: int, bins: int, reduce: str) -> Operand:
    """Reduces an axis over `bins` slices that together cover it."""
    if bins == size:
        return x
    if not bins:
        return x.slice_axis(axis, 0, 0)
    parts = []
    for n in range(bins):
        start, end = n * size // bins, -(-(n + 1) * size // bins)
        window = x.slice_axis(axis, start, end - start)
        parts.append(window.reduce(reduce, axis, keepdims=True))
    return concat(parts, axis)


def _adaptive_max(axes: int) -> Converter:
    """Returns a converter of the maxima, and of their positions if something reads them."""
    pool = _adaptive("max_pool", "max", axes)

    def convert(ctx: CallContext) -> Any:
        if 1 in ctx.call.used_results:
            return _adaptive_places(ctx, axes)
        return pool(ctx), None

    return convert


def _adaptive_places(ctx: CallContext, axes: int) -> tuple[Operand, Operand]:
    """Returns the maxima of windows, and their positions in the image."""
    x, target = _image(ctx, axes), ctx.result_shape(0)[-axes:]
    shape = (*x.shape[:2], *target)
    if any(as_int(d) == 0 for d in shape):
        return full(0, x.dtype, shape), full(0, I64, shape)
    table = filled(0, I64)
    for n, (size, bins) in enumerate(zip_equal(x.shape[2:], target)):
        line, _, _ = adaptive_windows(size, bins)
        ends = {n: line.shape[0], axes + n: line.shape[1]}
        step = line.reshape([ends.get(axis, const(1)) for axis in range(2 * axes)])
        table = table * size_scalar(size) + step
    counts = element_count(target), element_count(table.shape[axes:])
    table = table.reshape(counts)
    gathered = x.merged(2).gather(table, axis=2)
    maxima = gathered.max(3)
    best = gathered.arg_max(axis=3, keepdims=True)
    at = best.equals(counted(counts[1])).select(table, 0).sum(3)
    return maxima.reshape(shape), at.reshape(shape)


def _col2im(ctx: CallContext, output_size: tuple[Index, ...]) -> Operand:
    return _image(ctx, 1).col2im(
        image=output_size,
        block=ctx.integers("kernel_size", 2),
        **window_attrs(ctx, 2),
    )


CONVERTERS: Converters = {
    **named(_convolution, _col2im),
    **of_axes("max_pool{}d", _max_pool),
    **of_axes("max_pool{}d_with_indices", _max_pool_indices),
    **of_axes("avg_pool{}d", _average_pool),
    "adaptive_avg_pool1d": _adaptive("average_pool", "mean", 1),
    **of_axes("_adaptive_avg_pool{}d", lambda n: _adaptive("average_pool", "mean", n), (2, 3)),
    **of_axes("adaptive_max_pool{}d", _adaptive_max),
}
