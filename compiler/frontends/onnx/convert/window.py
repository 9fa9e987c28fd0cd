"""Converters of convolutions and pools: strides, dilations and padding of every axis."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tcc.frontends.emit import emit_all, family, p_norm, require
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.index import Index, as_int, ceildiv, const, floordiv, maximum, minimum
from tcc.known import all_known
from tcc.ops.algebra.window import transposed_count, window_count
from tcc.zipped import zip_equal

Pads = tuple[tuple[Index, ...], tuple[Index, ...]]


def _spatial(x: Operand) -> int:
    if x.rank < 3:
        raise Refusal(f"input 0 is {x.type!r}; batch, channel and spatial axes are due")
    return x.rank - 2


def _per_axis(ctx: NodeContext, name: str, axes: int) -> tuple[int, ...]:
    values = ctx.integers(name, (1,) * axes)
    if len(values) != axes or min(values) < 1:
        raise Refusal(f"{name} is {values}; {axes} positive numbers are due")
    return values


def _kernel_of(ctx: NodeContext, weight: Operand, axes: int) -> tuple[int, ...]:
    kernel = all_known(map(as_int, weight.shape[2:]))
    if kernel is None or len(kernel) != axes:
        raise Refusal(f"the weight is {weight.type!r}; {axes} spatial sizes must be known")
    if ctx.has("kernel_shape") and ctx.integers("kernel_shape") != kernel:
        raise Refusal(f"kernel_shape is {ctx.integers('kernel_shape')}, the weight's is {kernel}")
    return kernel


def _explicit(ctx: NodeContext, axes: int) -> Pads:
    pads = ctx.integers("pads", (0,) * 2 * axes)
    if len(pads) != 2 * axes:
        raise Refusal(f"pads has {len(pads)} entries for {axes} spatial axes")
    if min(pads, default=0) < 0:
        raise Refusal(f"pads are {pads}, and none may be below zero")
    return tuple(map(const, pads[:axes])), tuple(map(const, pads[axes:]))


def _halves(padding: Sequence[Index], upper: bool) -> Pads:
    """Returns the padding of each axis in two halves, before and after the axis.

    If the padding of an axis is odd, the half after it is larger if `upper`, else the half before.
    """
    small = tuple(floordiv(t, 2) for t in padding)
    large = tuple(t - s for t, s in zip_equal(padding, small))
    return (small, large) if upper else (large, small)


def _pads(
    ctx: NodeContext,
    x: Operand,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Pads:
    """Returns the padding of a convolution or pool, with `auto_pad` resolved."""
    axes = len(kernel)
    auto = ctx.text("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        return _explicit(ctx, axes)
    if auto == "VALID":
        return (const(0),) * axes, (const(0),) * axes
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise Refusal(f"auto_pad is '{auto[:40]}'")
    padding = []
    for size, k, s, d in zip_equal(x.shape[2:], kernel, strides, dilations):
        window_end = (ceildiv(size, s) - 1) * s + (k - 1) * d + 1
        padding.append(maximum(window_end - size, 0))
    return _halves(padding, auto == "SAME_UPPER")


def _fit(x: Operand, counted: Callable[..., Index], *lists: Sequence[Any]) -> None:
    """Adds checks that a window fits in each spatial axis of `x`.

    `counted(size, *entries)` returns the number of windows along an axis; the entries are those of
    the axis in `lists`. An axis that has windows even with one element needs no check.
    """
    rule = "a window must not be larger than its padded image"
    for size, *window in zip_equal(x.shape[2:], *lists):
        count, count_of_one = counted(size, *window), as_int(counted(const(1), *window))
        needed = maximum(count, minimum(size, 1))
        if count_of_one is None or count_of_one > 0 or needed is count:
            continue
        if as_int(count) is not None:
            raise Refusal(f"{rule}: {x.type!r}")
        require(needed, count, rule)


def window_attrs(ctx: NodeContext, x: Operand, weight: Operand) -> dict[str, Any]:
    """Returns the attributes of a convolution of `x` with `weight`."""
    kernel = _kernel_of(ctx, weight, _spatial(x))
    return _windows(ctx, x, kernel, window_count) | {"group": _group(ctx)}


def _windows(
    ctx: NodeContext,
    x: Operand,
    kernel: Sequence[int],
    counted: Callable[..., Index],
    pads: Callable[..., Pads] = _pads,
    *extra: Sequence[int],
) -> dict[str, Any]:
    """Returns attributes with the strides, dilations and padding of windows over `x`.

    `pads` and `counted` get the lists `extra` as their last arguments.
    """
    strides, dilations = (_per_axis(ctx, name, len(kernel)) for name in ("strides", "dilations"))
    before, after = pads(ctx, x, kernel, strides, dilations, *extra)
    _fit(x, counted, kernel, strides, before, after, dilations, *extra)
    return {"strides": strides, "before": before, "after": after, "dilations": dilations}


def _conv(ctx: NodeContext, x: Operand, weight: Operand) -> Results:
    return emit_all("conv", ctx.inputs, **window_attrs(ctx, x, weight))


def _group(ctx: NodeContext) -> int:
    group = ctx.integer("group", 1)
    if group < 1:
        raise Refusal(f"group is {group}")
    return group


def _conv_transpose(ctx: NodeContext, x: Operand, weight: Operand) -> Results:
    axes = _spatial(x)
    kernel = _kernel_of(ctx, weight, axes)
    extra = ctx.integers("output_padding", (0,) * axes)
    if len(extra) != axes:
        raise Refusal(f"output_padding has {len(extra)} entries for {axes} spatial axes")
    attrs = _windows(ctx, x, kernel, transposed_count, _transposed_pads, extra)
    return emit_all("conv_transpose", ctx.inputs, **attrs, output_padding=extra, group=_group(ctx))


def _transposed_pads(
    ctx: NodeContext,
    x: Operand,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> Pads:
    """Returns the padding that a transposed convolution cuts off.

    It follows from `output_shape` or `auto_pad`, if the node gives one of them. `extra` is the
    node's `output_padding`.
    """
    auto = ctx.text("auto_pad", "NOTSET")
    axes = len(kernel)
    if ctx.has("output_shape"):
        output_sizes: list[Index] = [const(n) for n in ctx.integers("output_shape")]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        output_sizes = [size * s for size, s in zip_equal(x.shape[2:], strides)]
    elif auto == "VALID":
        return (const(0),) * axes, (const(0),) * axes
    else:
        return _explicit(ctx, axes)
    if len(output_sizes) != axes:
        raise Refusal(f"output_shape has {len(output_sizes)} entries for {axes} spatial axes")
    none = (0,) * axes
    full = map(transposed_count, x.shape[2:], kernel, strides, none, none, dilations, extra)
    return _halves([f - w for f, w in zip_equal(full, output_sizes)], auto == "SAME_UPPER")


def _pool_attrs(ctx: NodeContext, x: Operand) -> dict[str, Any]:
    """Returns the attributes of a pool over `x`."""
    axes = _spatial(x)
    kernel = ctx.integers("kernel_shape")
    if len(kernel) != axes or min(kernel) < 1:
        raise Refusal(f"kernel_shape is {kernel}; {axes} positive numbers are due")
    ceil_mode = ctx.flag("ceil_mode")
    windows = _windows(ctx, x, kernel, partial(window_count, ceil_mode=ceil_mode))
    return windows | {"kernel": kernel, "ceil_mode": ceil_mode}


def _max_pool(ctx: NodeContext, x: Operand) -> Results:
    attrs = _pool_attrs(ctx, x)
    if not ctx.wants(1):
        return x.emit_all("max_pool", **attrs)
    return emit_row("max_pool_indices", x, **attrs)


@family
def _pool(op: str, ctx: NodeContext, x: Operand) -> Results:
    return emit_row(op, x, **_pool_attrs(ctx, x))


@family
def _global(op: str, x: Operand) -> Results:
    return x.emit(op, axes=tuple(range(2, 2 + _spatial(x))), keepdims=True)


def _global_lp_pool(x: Operand, *, p: int) -> Results:
    return p_norm(x, p, range(2, 2 + _spatial(x)), True)


def _max_unpool(
    ctx: NodeContext,
    x: Operand,
    indices: Operand,
    shape_operand: Operand | None = None,
    *,
    kernel_shape: tuple[int, ...],
) -> Results:
    """Converts MaxUnpool.

    Positions refer to the shape that follows from the attributes of the pool. An `output_shape`
    only pads the result.
    """
    axes = _spatial(x)
    strides = _per_axis(ctx, "strides", axes)
    before, after = _explicit(ctx, axes)
    if len(kernel_shape) != axes:
        raise Refusal(f"kernel_shape is {kernel_shape}; {axes} numbers are due")
    spatial = [
        (size - 1) * s + k - b - a
        for size, s, k, b, a in zip_equal(x.shape[2:], strides, kernel_shape, before, after)
    ]
    shape = (*x.shape[:2], *spatial)
    result = x.max_unpool(indices, shape=shape)
    target_shape = shape_operand.as_sizes("output_shape") if shape_operand else shape
    if target_shape == shape:
        return result
    if len(target_shape) != x.rank:
        raise Refusal(f"output_shape has {len(target_shape)} entries for {x.type!r}")
    zeros = (const(0),) * x.rank
    more = tuple(w - s for w, s in zip_equal(target_shape, shape))
    return result.pad(before=zeros, after=more, mode="constant")


def _col2_im(ctx: NodeContext, x: Operand, image: Operand, block: Operand) -> Results:
    image_sizes, kernel = image.as_sizes("image_shape"), block.as_sizes("block_shape", lo=1)
    axes = len(kernel)
    before, after = _explicit(ctx, axes)
    return x.col2im(
        image=image_sizes,
        block=kernel,
        strides=_per_axis(ctx, "strides", axes),
        before=before,
        after=after,
        dilations=_per_axis(ctx, "dilations", axes),
    )


CONVERTERS: Converters = {
    **named(
        _conv,
        _conv_transpose,
        _max_pool,
        _global_lp_pool,
        _max_unpool,
        _col2_im,
    ),
    "AveragePool": _pool("average_pool"),
    "LpPool": _pool("lp_pool"),
    "GlobalAveragePool": _global("reduce_mean"),
    "GlobalMaxPool": _global("reduce_max"),
}
