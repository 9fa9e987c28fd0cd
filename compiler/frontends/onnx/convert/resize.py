"""Converters of Resize and Upsample: sizes, scales and coordinate rules of every opset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce

import numpy as np
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.scope import LARGEST_SIZE, Operand
from tcc.ir.index import Index, as_int, ceildiv, const, floordiv, maximum
from tcc.ir.types import F32, F64, I64, DType
from tcc.record import record

Scales = tuple["float | None", ...]


def _scaled(ctx: NodeContext, dim: Index, scale: float) -> Index | None:
    """`floor(dim * scale)` in f32, as ONNX's own shape inference has it.

    Of a symbolic size it is the quotient by the fraction that the scale stands for; None where the
    two differ for a size below 2^16.
    """
    if not math.isfinite(scale) or scale <= 0:
        raise ctx.fail(f"a scale is {scale}")
    size = as_int(dim)
    if size is not None:
        with np.errstate(over="ignore"):
            product = float(np.float32(size) * np.float32(scale))
        if not math.isfinite(product):
            raise ctx.fail(f"scale {scale} of {size} elements is too large")
        return const(math.floor(product))
    over, under = Fraction(scale).limit_denominator(1 << 12).as_integer_ratio()
    if over > LARGEST_SIZE:
        raise ctx.fail(f"scale {scale} is too large for any size")
    some = np.arange(1 << 16)
    products = np.floor(some.astype(np.float32) * np.float32(scale))
    same = over and (products == some * over // under).all()
    return floordiv(dim * over, under) if same else None


def _upsample(ctx: NodeContext) -> Results:
    """Upsample, and Resize of opset 10, which scale without shifting the coordinates."""
    x = ctx.input(0)
    if len(ctx.inputs) > 1 and ctx.input(1).array is None:
        return _plain(ctx, _scaled_late(ctx, x, range(x.rank), ctx.input(1)), x)
    if len(ctx.inputs) > 1:
        scales = tuple(float(v) for v in ctx.static(1, "scales").reshape(-1))
    else:
        scales = ctx.reals("scales")
    return upsampled(ctx, scales)


def upsampled(ctx: NodeContext, scales: Sequence[float]) -> Operand:
    """The first operand, each axis scaled."""
    x = ctx.input(0)
    if len(scales) != x.rank:
        raise ctx.fail(f"{len(scales)} scales for a tensor of rank {x.rank}")
    return _plain(ctx, _by_scales(ctx, x, range(x.rank), scales), x)


def _by_scales(
    ctx: NodeContext, x: Operand, axes: Sequence[int], factors: Sequence[float]
) -> _Target:
    sizes, scales = list(x.shape), [1.0] * x.rank
    for axis, factor in zip(axes, factors, strict=True):
        size = _scaled(ctx, x.shape[axis], factor)
        if size is None:
            return _scaled_late(ctx, x, axes, ctx.constant(np.array(factors)))
        sizes[axis], scales[axis] = size, factor
    return _Target(tuple(sizes), tuple(scales))


def _plain(ctx: NodeContext, target: _Target, x: Operand) -> Operand:
    """Scaled without shifting the coordinates; nearest is the next where axes get shorter."""
    mode, late = ctx.text("mode", "nearest").replace("bilinear", "linear"), target.given
    found = target.scales if late is None else () if late.array is None else late.array
    scales = [float(scale or 1) for scale in found]
    shorter = min(scales, default=1) < 1
    if mode == "nearest" and shorter and max(scales) > 1:
        raise ctx.fail("some axes get longer and others shorter", "scale them one after the other")
    return ctx.emit(
        "resize",
        x,
        late,
        sizes=target.sizes,
        scales=target.scales,
        mode=mode,
        coordinate_mode="asymmetric",
        nearest_mode="ceil" if shorter else "floor",
    )


@record
class _Target:
    """What a Resize makes of its operand: the output shape and the scale of each axis.

    A scale is None where it follows from the sizes; `given` holds scales that only the run knows.
    """

    sizes: tuple[Index, ...]
    scales: Scales
    given: Operand | None = None


def _resize(ctx: NodeContext) -> Results:
    if ctx.opset < 11:
        return _upsample(ctx)
    x = ctx.input(0)
    axes = ctx.axes(ctx.integers("axes", range(x.rank)), x.rank)
    target = _target(ctx, x, axes)
    coordinates, mode = ctx.text("coordinate_transformation_mode"), ctx.text("mode")
    antialias = ctx.flag("antialias") and mode in _REACH
    if ctx.session.producer == "pytorch" and (mode, coordinates) == ("linear", "half_pixel"):
        coordinates = "kept_half_pixel"
    late: Operand | None = None
    roi: tuple[tuple[float, float], ...] = ()
    if coordinates == "tf_crop_and_resize":
        late = _every_axis(ctx, x, axes, ctx.input(1), (0.0, 1.0))
        if late.array is not None:
            roi, late = tuple(zip(*late.array.reshape(2, x.rank).tolist(), strict=True)), None
    return ctx.emit(
        "resize",
        x,
        target.given,
        late,
        sizes=target.sizes,
        scales=target.scales,
        mode=mode,
        coordinate_mode=coordinates,
        nearest_mode=ctx.text("nearest_mode"),
        cubic_coeff_a=ctx.real("cubic_coeff_a"),
        exclude_outside=ctx.flag("exclude_outside"),
        extrapolation_value=ctx.real("extrapolation_value"),
        roi=roi,
        taps=_taps(ctx, x, target, _REACH[mode]) if antialias else None,
        fractional=ctx.session.producer in _REFERENCES,
    )


# Producers whose models mean ONNX's reference: corners lie over widths that need not be whole.
_REFERENCES = ("backend-test",)
_REACH = {"linear": 1, "cubic": 2}  # how far a kernel reaches where it is not widened


def _taps(ctx: NodeContext, x: Operand, target: _Target, reach: int) -> Index:
    """How many input elements a kernel that is widened by the scale reaches at most."""
    if target.given is not None:
        least = ctx.reduce("min", target.given, 0, keepdims=True)
        shrunk = ctx.emit("min", least, 1.0)
        half = ctx.emit("ceil", float(reach) / shrunk)
        (bound,) = ctx.sizes(ctx.cast(half, I64), "the kernel", lo=1)
        return 2 * bound
    return widened_taps(x, target.sizes, target.scales, reach)


def widened_taps(x: Operand, sizes: Sequence[Index], scales: Scales, reach: int) -> Index:
    """How many elements of `x` a kernel reaches at most that the known scales widen."""
    halves = [const(reach)]
    for dim, size, scale in zip(x.shape, sizes, scales, strict=True):
        if scale is None:
            halves.append(ceildiv(dim * reach, maximum(size, 1)))
        else:
            halves.append(const(math.ceil(reach / min(scale, 1.0))))
    return 2 * reduce(maximum, halves)


def _every_axis(
    ctx: NodeContext, x: Operand, axes: Sequence[int], given: Operand, others: Sequence[float]
) -> Operand:
    """A vector of f64 that has entries for `axes`, with entries for all axes.

    It may consist of several parts, each of which has its own value for other axes.
    """
    if given.type.static_shape != (len(axes) * len(others),):
        raise ctx.fail(f"{given.type!r} is no vector for {len(axes)} axes")
    given = ctx.cast(given, F64)
    entries = []
    for part, other in enumerate(others):
        places = {axis: part * len(axes) + n for n, axis in enumerate(axes)}
        rest = ctx.constant(np.array([other]))
        entries += [
            ctx.slice_axis(given, 0, places[axis], 1) if axis in places else rest
            for axis in range(x.rank)
        ]
    return ctx.concat(entries, 0)


def _target(ctx: NodeContext, x: Operand, axes: Sequence[int]) -> _Target:
    """By sizes if there are any, else by scales."""
    sizes = list(x.shape)
    given = ctx.optional(3)
    if given is not None and given.type.static_shape != (0,):
        wanted = ctx.sizes(given, "sizes")
        if len(wanted) != len(axes):
            raise ctx.fail(f"{len(wanted)} sizes for {len(axes)} axes")
        policy = ctx.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            return _kept_ratio(ctx, x, axes, wanted, policy)
        free: list[float | None] = [1.0] * x.rank
        for axis, size in zip(axes, wanted, strict=True):
            sizes[axis], free[axis] = size, None
        return _Target(tuple(sizes), tuple(free))
    if ctx.input(2).array is None:
        return _scaled_late(ctx, x, axes, ctx.input(2))
    factors = [float(v) for v in ctx.static(2, "scales").reshape(-1)]
    if len(factors) != len(axes):
        raise ctx.fail(f"{len(factors)} scales for {len(axes)} axes")
    return _by_scales(ctx, x, axes, factors)


def _scaled_late(ctx: NodeContext, x: Operand, axes: Sequence[int], given: Operand) -> _Target:
    """By scales that only the run knows; the sizes too are then known to it alone."""
    scales = _every_axis(ctx, x, axes, given, (1.0,))
    return _Target(_rounded_sizes(ctx, x, axes, scales, F32, 0.0), (None,) * x.rank, scales)


def _rounded_sizes(
    ctx: NodeContext, x: Operand, axes: Sequence[int], scales: Operand, dtype: DType, more: float
) -> tuple[Index, ...]:
    """`floor(size * scale + more)` of the axes that are scaled, computed in `dtype`."""
    own = ctx.cast(ctx.size_vector(x.shape), dtype)
    product = own * ctx.cast(scales, dtype)
    whole = ctx.emit("floor", product + ctx.filled(more, dtype))
    bound = ctx.sizes(ctx.cast(whole, I64), "sizes")
    return tuple(bound[n] if n in axes else x.shape[n] for n in range(x.rank))


def _kept_ratio(
    ctx: NodeContext,
    x: Operand,
    axes: Sequence[int],
    wanted: Sequence[Index],
    policy: str,
) -> _Target:
    """One scale for all axes: the least or largest that the sizes ask for."""
    if policy not in ("not_larger", "not_smaller"):
        raise ctx.fail(f"there is no policy {policy[:40]}")
    own = ctx.cast(ctx.size_vector([x.shape[axis] for axis in axes]), F64)
    ratios = ctx.cast(ctx.size_vector(wanted), F64) / own
    scale = ctx.reduce("min" if policy == "not_larger" else "max", ratios, 0, keepdims=True)
    given = _every_axis(ctx, x, axes, ctx.expand(scale, (len(axes),)), (1.0,))
    sizes = _rounded_sizes(ctx, x, axes, given, F64, 0.5)
    if given.array is None:
        return _Target(sizes, (None,) * x.rank, given)
    return _Target(sizes, tuple(given.array.tolist()))


CONVERTERS: Converters = {
    "Resize": _resize,
    "Upsample": _upsample,
}
