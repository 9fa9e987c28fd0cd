"""Converters of backward operators that torch does not decompose.

A convolution's gradients are convolutions.  The gradient of a pool or of a resize sums, for each
input element, the gradients of the few results that read it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from tcc.frontends.emit import constant, family, filled, full, size_scalar, widened
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import (
    CallContext,
    Converter,
    Converters,
    Results,
    of_axes,
)
from tcc.frontends.torch.convert.contract import attention_scores
from tcc.frontends.torch.convert.create import counted
from tcc.frontends.torch.convert.resize import (
    INTERPOLATIONS,
    axis_scales,
    interpolation,
    nearest_places,
)
from tcc.frontends.torch.convert.window import (
    adapted,
    adaptive_windows,
    batched,
    pool_attrs,
    window_attrs,
)
from tcc.ir.index import Index, as_int, const, maximum
from tcc.ir.op import Array
from tcc.ir.types import I64, element_count
from tcc.ops import OPS
from tcc.zipped import zip_equal

# ---- convolutions --------------------------------------------------------------------------------


def _convolution(
    ctx: CallContext,
    grad_output: Operand,
    x: Operand,
    weight: Operand,
    transposed: bool,
    groups: int,
) -> Results:
    """Returns the gradients of input, weight and bias; None for each that the call's mask leaves
    out."""
    axes = weight.rank - 2
    attrs = window_attrs(ctx, axes) | {"group": groups}
    for_input, for_weight, for_bias = ctx.arguments["output_mask"]
    results: list[Operand | None] = [None, None, None]
    if for_input:
        back = grad_output.conv(weight, **attrs) if transposed else None
        results[0] = _to_image(x.shape, back or _input_gradient(grad_output, weight, attrs))
    if for_weight:
        pair = (grad_output, x) if transposed else (x, grad_output)
        results[1] = _weight_gradient(*pair, weight.shape, attrs)
    if for_bias:
        results[2] = grad_output.sum([0, *range(2, axes + 2)])
    return results


def _input_gradient(gradient: Operand, weight: Operand, attrs: dict[str, Any]) -> Operand:
    """Returns the transposed convolution of a gradient; it covers at least the image."""
    output_padding = tuple(stride - 1 for stride in attrs["strides"])
    return gradient.conv_transpose(weight, **attrs, output_padding=output_padding)


def _to_image(shape: Sequence[Index], padded_image: Operand) -> Operand:
    """Cuts an image to `shape`."""
    for axis, size in enumerate(shape[2:], 2):
        padded_image = padded_image.slice_axis(axis, 0, size)
    return padded_image


def _weight_gradient(
    image: Operand,
    windows: Operand,
    shape: Sequence[Index],
    attrs: dict[str, Any],
) -> Operand:
    """Returns the gradient of a convolution's weight, which has `shape`.

    `image` is the tensor that the convolution reads, and `windows` has an element for each of its
    results. The gradient is the convolution of `image` with `windows`. The axes of batch and
    channels change roles in it, and strides and dilations change roles too.
    """
    group = attrs["group"]
    batch, channels, *extent = image.shape
    parts = image.reshape((batch, group, channels // group, *extent))
    parts = parts.swap_axes(0, 2).reshape((channels // group, batch * group, *extent))
    swapped = attrs | {"strides": attrs["dilations"], "dilations": attrs["strides"]}
    return _to_image(shape, parts.conv(windows.swap_axes(0, 1), **swapped).swap_axes(0, 1))


# ---- pools ---------------------------------------------------------------------------------------


def _patches(columns: Operand, image: Operand, attrs: dict[str, Any]) -> Operand:
    """Adds up patches to an image.

    `columns` is [batch, channels, element of the window, windows ...].
    """
    kernel, counts = attrs["kernel"], columns.shape[3:]
    axes = zip_equal(
        counts, image.shape[2:], kernel, attrs["strides"], attrs["dilations"], attrs["after"]
    )  # fmt: skip
    after = tuple(
        maximum(pad, (count - 1) * stride + dilation * (size - 1) + 1 - extent - pad)
        for count, extent, size, stride, dilation, pad in axes
    )
    batch, channels, taps = columns.shape[:3]
    return columns.reshape((batch, channels * taps, element_count(counts))).col2im(
        image=image.shape[2:],
        block=kernel,
        strides=attrs["strides"],
        dilations=attrs["dilations"],
        before=attrs["before"],
        after=after,
    )


def _line(values: Operand, axis: int, rank: int) -> Operand:
    """Reshapes a vector to lie along one axis of `rank`."""
    return values.reshape([values.shape[0] if n == axis else 1 for n in range(rank)])


@family
def _average_pool(axes: int, ctx: CallContext) -> Operand:
    gradient, x = batched(ctx, axes, "grad_output", "self")
    attrs = pool_attrs(ctx, axes)
    if ctx.has("divisor_override"):
        gradient = gradient / ctx.real("divisor_override")
    else:
        for n in range(axes):
            lengths = _lengths(ctx, gradient.shape[n + 2], x.shape[n + 2], n, attrs)
            line = _line(lengths.cast(gradient.dtype), n + 2, gradient.rank)
            gradient = gradient / line
    taps = element_count(tuple(map(const, attrs["kernel"])))
    shape = (*gradient.shape[:2], taps, *gradient.shape[2:])
    return _patches(gradient.unsqueeze(2).expand(shape), x, attrs)


def _lengths(
    ctx: CallContext, count: Index, extent: Index, n: int, attrs: dict[str, Any]
) -> Operand:
    """Returns the number of elements by which an average pool divides, for each window of axis `n`.

    The padding counts only if the call's `count_include_pad` is true. The axis has `count` windows
    over `extent` elements.
    """
    pad, padded = attrs["before"][n], ctx.flag("count_include_pad")
    start: Operand = counted(count) * attrs["strides"][n] - as_int(pad)
    end = (start + attrs["kernel"][n]).minimum(size_scalar(extent + pad * padded))
    length: Operand = end - (start if padded else start.maximum(0))
    return length


@family
def _max_pool(axes: int, ctx: CallContext) -> Operand:
    """Adds each window's gradient to the element that was its maximum."""
    gradient, x, maximum_places = batched(ctx, axes, "grad_output", "self", "indices")
    attrs = pool_attrs(ctx, axes)
    place = _places(gradient.shape[2:], x.shape[2:], attrs)
    is_maximum = maximum_places.unsqueeze(2).equals(place)
    return _patches(is_maximum.select(gradient.unsqueeze(2), 0), x, attrs)


def _places(counts: Sequence[Index], extent: Sequence[Index], attrs: dict[str, Any]) -> Operand:
    """Returns each window element's position in its channel: [element, windows ...]."""
    axes, place = len(counts), filled(0, I64)
    for n, (count, size) in enumerate(zip_equal(counts, extent)):
        start = counted(count) * attrs["strides"][n] - as_int(attrs["before"][n])
        tap = counted(const(attrs["kernel"][n])) * attrs["dilations"][n]
        step = _line(tap, n, 2 * axes) + _line(start, axes + n, 2 * axes)
        place = place * size_scalar(size) + step
    return place.reshape((element_count(place.shape[:axes]), *counts))


@family
def _adaptive_average(axes: int, ctx: CallContext) -> Operand:
    """Returns the gradient of adaptive averages.

    If an adaptive pool has m results for n inputs, result i reads the inputs i*n // m to
    ceil((i + 1) * n / m) - 1. The results that read input j are the results j*m // n to
    ceil((j + 1) * m / n) - 1: window j of an adaptive pool from m to n elements. So the gradient is
    this pool, with sums of gradient[i] / (size of window i).
    """
    gradient, x = batched(ctx, axes, "grad_output", "self")
    for axis in range(2, x.rank):
        _, _, length = adaptive_windows(x.shape[axis], gradient.shape[axis])
        gradient = gradient / _line(length.cast(gradient.dtype), axis, gradient.rank)
        gradient = adapted(gradient, axis, x.shape[axis], "sum")
    return gradient


@family
def _adaptive_max(axes: int, ctx: CallContext) -> Operand:
    gradient, x, maximum_places = batched(ctx, axes, "grad_output", "self", "indices")
    flat = [part.merged(2) for part in (maximum_places, gradient)]
    start = full(0, gradient.dtype, (*x.shape[:2], element_count(x.shape[2:])))
    return start.scatter_elements(*flat, axis=2, reduction="add").reshape(x.shape)


# ---- linear maps along one axis ------------------------------------------------------------------

# The most elements of a resize's matrix, because the importer computes it.
_LARGEST = 1 << 26


# The terms of weighted sums: for each term the position of its sum, the position of its element,
# and its factor.
Terms: TypeAlias = tuple[Array, Array, Array]


def _weighted_sums(x: Operand, axis: int, size: int, terms: Terms) -> Operand:
    """Returns `size` weighted sums of the elements of `x` along an axis, as `terms` give them."""
    order = np.argsort(terms[0], kind="stable")
    to, of, factors = (part[order] for part in terms)
    number = np.arange(len(to)) - np.searchsorted(to, to)
    table = np.zeros((size, int(number.max(initial=0)) + 1), np.int64)
    weights = np.zeros(table.shape, x.dtype.carrier)
    table[to, number], weights[to, number] = of, factors
    gathered = x.gather(constant(table), axis=axis)
    weight = constant(weights.reshape(*table.shape, *[1] * (x.rank - axis - 1)), x.dtype)
    return (~weight.equals(0)).select(gathered * weight, 0).sum(axis + 1)


def _scattered(to: Array) -> Terms:
    """Returns the terms that add element n, with factor 1, to the sum at position `to[n]`."""
    return to, np.arange(len(to)), np.ones(len(to))


def _static(size: Index) -> int:
    number = as_int(size)
    if not number:
        raise Refusal("the sizes of the image must be known, and not zero")
    return number


@family
def _resize(
    terms: Callable[..., Terms],
    ctx: CallContext,
    input_size: tuple[Index, ...],
    grad_output: Operand,
) -> Operand:
    """Returns a resize's gradient.

    `terms(ctx, extent, size, scale)` are the terms of one axis, which the resize maps from `extent`
    to `size` elements.
    """
    gradient = widened(grad_output)
    for axis, scale in enumerate(axis_scales(ctx, gradient.rank - 2), 2):
        extent, size = _static(input_size[axis]), _static(gradient.shape[axis])
        gradient = _weighted_sums(gradient, axis, extent, terms(ctx, extent, size, scale))
    return gradient


def _nearest(exact: bool) -> Converter:
    return _resize(lambda _, n, m, scale: _scattered(nearest_places(n, m, scale, exact)))


def _interpolated(mode: str, smooth: bool = False) -> Converter:
    """Returns a converter of the gradient of an interpolation.

    The matrix of an axis is computed as the resize of an identity matrix.
    """

    def terms(ctx: CallContext, extent: int, size: int, scale: float | None) -> Terms:
        if extent * max(size, extent) > _LARGEST:
            raise Refusal(f"an axis of {extent} elements is too long")
        identity = constant(np.eye(extent)[:, None])
        sizes = tuple(map(const, (extent, 1, size)))
        attributes = interpolation(ctx, identity, sizes, [scale], mode, smooth)
        (resized,) = OPS["resize"].reference([identity.array], OPS["resize"].attrs(**attributes))
        to, of = np.nonzero(resized[:, 0])
        return to, of, resized[to, 0, of]

    return _resize(terms)


@family
def _edge_pad(axes: int, x: Operand, grad_output: Operand, padding: tuple[int, ...]) -> Operand:
    """Returns the gradient of padding that repeats the elements at the border."""
    gradient = widened(grad_output)
    before = padding[::2]
    for n in range(axes):
        axis = x.rank - 1 - n
        extent, size = _static(x.shape[axis]), _static(gradient.shape[axis])
        to = np.clip(np.arange(size) - before[n], 0, extent - 1)
        gradient = _weighted_sums(gradient, axis, extent, _scattered(to))
    return gradient


# ---- attention, activations ----------------------------------------------------------------------


def _attention(ctx: CallContext) -> Results:
    """Returns the gradients of queries, keys and values.

    The weights are computed anew: torch's joint programs pass the logarithms of their sums, not the
    weights.
    """
    names = ("grad_out", "query", "key", "value", "out")
    gradient, q, k, v, out = (widened(ctx.operand(name)) for name in names)
    scores, scale = attention_scores(ctx, q, k)
    weights = scores.equals(-math.inf).select(0, scores.softmax(axis=3))
    shares = gradient @ v.swap_axes(2, 3)
    mean = (gradient * out).sum(3, keepdims=True)
    pull = weights * (shares - mean) * scale
    return pull @ k, pull.swap_axes(2, 3) @ q, weights.swap_axes(2, 3) @ gradient


def _weight_norm(ctx: CallContext) -> Results:
    """Returns the gradients of the vectors' directions and of their lengths.

    The vectors lie along all axes but `dim`.
    """
    names = ("grad_w", "saved_v", "saved_g", "saved_norms")
    gradient, v, g, norms = (widened(ctx.operand(name)) for name in names)
    across = [n for n in range(v.rank) if n != ctx.axis_of("dim", v.rank)]
    along = (gradient * v).sum(across, keepdims=True) / norms
    return (gradient - v * along / norms) * g / norms, along


@family
def _shrink(name: str, ctx: CallContext, x: Operand, lambd: float) -> Operand:
    """Returns a gradient that is zero where the forward result is zero."""
    return (abs(x) <= lambd).select(0, ctx.operand(name))


@family
def _gated(gate: Callable[[Operand], tuple[Operand, Operand]], ctx: CallContext) -> Operand:
    """Returns the gradient of x * g(x); `gate` returns g and its derivative.

    torch's export does not decompose these operators: it has rules for them, but also kernels.
    """
    x = widened(ctx.operand("self"))
    value, slope = gate(x)
    return ctx.operand("grad_output", x.dtype) * (value + x * slope)


def _sigmoid(x: Operand) -> tuple[Operand, Operand]:
    value = x.sigmoid()
    return value, value * (1 - value)


def _soft_tangent(x: Operand) -> tuple[Operand, Operand]:
    value = x.softplus().tanh()
    return value, (1 - value * value) * x.sigmoid()


CONVERTERS: Converters = {
    "convolution_backward": _convolution,
    **of_axes("avg_pool{}d_backward", _average_pool, (2, 3)),
    **of_axes("max_pool{}d_with_indices_backward", _max_pool, (2, 3)),
    **of_axes("_adaptive_avg_pool{}d_backward", _adaptive_average, (2, 3)),
    **of_axes("adaptive_max_pool{}d_backward", _adaptive_max, (2, 3)),
    **of_axes("upsample_nearest{}d_backward", lambda _: _nearest(False)),
    **of_axes("_upsample_nearest_exact{}d_backward", lambda _: _nearest(True)),
    **{
        f"{name}_backward": _interpolated(mode, smooth=smooth)
        for name, (mode, smooth) in INTERPOLATIONS.items()
    },
    **of_axes("replication_pad{}d_backward", _edge_pad),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention,
    "_weight_norm_interface_backward": _weight_norm,
    "silu_backward": _gated(_sigmoid),
    "mish_backward": _gated(_soft_tangent),
    "softshrink_backward": _shrink("grad_output"),
    "hardshrink_backward": _shrink("grad_out"),
}
