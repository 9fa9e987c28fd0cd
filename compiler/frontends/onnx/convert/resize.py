"""Converters of Resize and Upsample: sizes, scales and coordinate rules of every opset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from tcc.frontends.emit import checked_axes, concat, constant, filled, size_vector
from tcc.frontends.extents import Scales, widened_taps
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named, static
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import LARGEST_SIZE, Operand, Refusal
from tcc.frozen import frozen
from tcc.ir.index import Index, as_int, const, floordiv
from tcc.ir.types import F32, F64, I64, DType
from tcc.zipped import zip_equal


def _scaled(dim: Index, scale: float) -> Index | None:
    """Returns `floor(dim * scale)` in f32, as ONNX's shape inference computes it.

    A symbolic size is multiplied by the nearest fraction with a denominator up to 2^12, and the
    product is rounded down. Returns None if any size below 2^16 would differ from the f32 result.
    """
    if not math.isfinite(scale) or scale <= 0:
        raise Refusal(f"a scale is {scale}")
    size = as_int(dim)
    if size is not None:
        with np.errstate(over="ignore"):
            scaled_size = float(np.float32(size) * np.float32(scale))
        if not math.isfinite(scaled_size):
            raise Refusal(f"scale {scale} of {size} elements is too large")
        return const(math.floor(scaled_size))
    over, under = Fraction(scale).limit_denominator(1 << 12).as_integer_ratio()
    if over > LARGEST_SIZE:
        raise Refusal(f"scale {scale} is too large for any size")
    some = np.arange(1 << 16)
    products = np.floor(some.astype(np.float32) * np.float32(scale))
    agree = over and (products == some * over // under).all()
    return floordiv(dim * over, under) if agree else None


def _upsample(ctx: NodeContext, x: Operand, scales: Operand) -> Results:
    """Converts Upsample, and Resize of opset 10, which scale without shifting the coordinates."""
    if scales.array is None:
        return _plain(ctx, _scaled_late(x, range(x.rank), scales), x)
    return upsampled(ctx, x, scales.array.reshape(-1).tolist())


def upsampled(ctx: NodeContext, x: Operand, scales: Sequence[float]) -> Operand:
    """Resizes `x` with a scale for each axis."""
    if len(scales) != x.rank:
        raise Refusal(f"{len(scales)} scales for a tensor of rank {x.rank}")
    return _plain(ctx, _by_scales(x, range(x.rank), scales), x)


def _by_scales(x: Operand, axes: Sequence[int], factors: Sequence[float]) -> _Target:
    sizes, scales = list(x.shape), [1.0] * x.rank
    for axis, factor in zip_equal(axes, factors):
        size = _scaled(x.shape[axis], factor)
        if size is None:
            return _scaled_late(x, axes, constant(np.array(factors)))
        sizes[axis], scales[axis] = size, factor
    return _Target(tuple(sizes), tuple(scales))


def _plain(ctx: NodeContext, target: _Target, x: Operand) -> Operand:
    """Resizes without shifting the coordinates; `nearest` rounds up where axes shrink."""
    mode, late = ctx.text("mode", "nearest").replace("bilinear", "linear"), target.late_scales
    scale_values = target.scales if late is None else () if late.array is None else late.array
    scales = [float(scale or 1) for scale in scale_values]
    shorter = min(scales, default=1) < 1
    if mode == "nearest" and shorter and max(scales) > 1:
        raise Refusal("some axes get longer and others shorter", "scale them one after the other")
    return x.resize(
        late,
        sizes=target.sizes,
        scales=target.scales,
        mode=mode,
        coordinate_mode="asymmetric",
        nearest_mode="ceil" if shorter else "floor",
    )


@frozen
class _Target:
    """The output shape of a Resize and the scale of each axis.

    A scale is None where it follows from the sizes; `late_scales` has the scales that are known
    only at run time.
    """

    sizes: tuple[Index, ...]
    scales: Scales
    late_scales: Operand | None = None


def _resize(ctx: NodeContext, x: Operand) -> Results:
    if ctx.opset < 11:
        return _upsample(ctx, x, ctx.input(1))
    axes = checked_axes(ctx.integers("axes", range(x.rank)), x.rank)
    target = _target(ctx, x, axes)
    coordinates, mode = ctx.text("coordinate_transformation_mode"), ctx.text("mode")
    antialias = ctx.flag("antialias") and mode in _REACH
    if ctx.session.producer == "pytorch" and (mode, coordinates) == ("linear", "half_pixel"):
        coordinates = "kept_half_pixel"
    late: Operand | None = None
    roi: tuple[tuple[float, float], ...] = ()
    if coordinates == "tf_crop_and_resize":
        late = _every_axis(x, axes, ctx.input(1), (0.0, 1.0))
        if late.array is not None:
            roi, late = tuple(zip_equal(*late.array.reshape(2, x.rank).tolist())), None
    return emit_row(
        "resize",
        x,
        target.late_scales,
        late,
        sizes=target.sizes,
        scales=target.scales,
        coordinate_mode=coordinates,
        roi=roi,
        taps=_taps(x, target, _REACH[mode]) if antialias else None,
        fractional=ctx.session.producer in _REFERENCES,
    )


# Producers whose models expect the rule of ONNX's reference implementation: `align_corners` and
# `tf_crop_and_resize` map the input's last corner to extent * scale, even if that is a fraction.
_REFERENCES = ("backend-test",)
_REACH = {"linear": 1, "cubic": 2}  # the kernel's radius in elements, before antialiasing widens it


def _taps(x: Operand, target: _Target, radius: int) -> Index:
    """Returns an upper bound of the elements that an antialiasing kernel reads along any axis.

    `radius` is the kernel's radius before the scale widens it.
    """
    if target.late_scales:
        shrunk = target.late_scales.min(0, keepdims=True).minimum(1.0)
        half = (float(radius) / shrunk).ceil()
        bound = half.cast(I64).as_size("the kernel", 1)
        return 2 * bound
    return widened_taps(x, target.sizes, target.scales, radius)


def _every_axis(
    x: Operand, axes: Sequence[int], vector: Operand, defaults: Sequence[float]
) -> Operand:
    """Extends a vector with entries for `axes` to all axes of `x`, as f64.

    `vector` concatenates a part for each of `defaults`, such as starts and ends. A part has an
    entry for each of `axes`. In the result it has an entry for each axis of `x`; axes that are not
    among `axes` have the part's default.
    """
    if vector.type.static_shape != (len(axes) * len(defaults),):
        raise Refusal(f"{vector.type!r} is no vector for {len(axes)} axes")
    vector = vector.cast(F64)
    entries = []
    for part, default in enumerate(defaults):
        places = {axis: part * len(axes) + n for n, axis in enumerate(axes)}
        default_entry = constant(np.array([default]))
        entries += [
            vector.slice_axis(0, places[axis], 1) if axis in places else default_entry
            for axis in range(x.rank)
        ]
    return concat(entries, 0)


def _target(ctx: NodeContext, x: Operand, axes: Sequence[int]) -> _Target:
    """Returns the target, from the sizes if there are any, else from the scales."""
    sizes = list(x.shape)
    sizes_operand = ctx.optional(3)
    if sizes_operand and sizes_operand.type.static_shape != (0,):
        target_sizes = sizes_operand.as_sizes("sizes")
        if len(target_sizes) != len(axes):
            raise Refusal(f"{len(target_sizes)} sizes for {len(axes)} axes")
        policy = ctx.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            return _with_aspect_ratio(x, axes, target_sizes, policy)
        free: list[float | None] = [1.0] * x.rank
        for axis, size in zip_equal(axes, target_sizes):
            sizes[axis], free[axis] = size, None
        return _Target(tuple(sizes), tuple(free))
    if ctx.input(2).array is None:
        return _scaled_late(x, axes, ctx.input(2))
    factors = [float(v) for v in static(ctx.input(2), "scales").reshape(-1)]
    if len(factors) != len(axes):
        raise Refusal(f"{len(factors)} scales for {len(axes)} axes")
    return _by_scales(x, axes, factors)


def _scaled_late(x: Operand, axes: Sequence[int], scales_operand: Operand) -> _Target:
    """Returns a target whose scales, and so its sizes, are known only at run time."""
    scales = _every_axis(x, axes, scales_operand, (1.0,))
    return _Target(_rounded_sizes(x, axes, scales, F32, 0.0), (None,) * x.rank, scales)


def _rounded_sizes(
    x: Operand, axes: Sequence[int], scales: Operand, dtype: DType, more: float
) -> tuple[Index, ...]:
    """Returns `floor(size * scale + more)` of each scaled axis, computed in `dtype`."""
    scaled = size_vector(x.shape).cast(dtype) * scales.cast(dtype)
    floored = (scaled + filled(more, dtype)).floor()
    bound = floored.cast(I64).as_sizes("sizes")
    return tuple(bound[n] if n in axes else x.shape[n] for n in range(x.rank))


def _with_aspect_ratio(
    x: Operand,
    axes: Sequence[int],
    target_sizes: Sequence[Index],
    policy: str,
) -> _Target:
    """Returns a target with one scale for all axes.

    The scale is the smallest or the largest ratio of a target size to its input size, as `policy`
    says.
    """
    if policy not in ("not_larger", "not_smaller"):
        raise Refusal(f"there is no policy {policy[:40]}")
    source_sizes = size_vector([x.shape[axis] for axis in axes]).cast(F64)
    ratios = size_vector(target_sizes).cast(F64) / source_sizes
    scale = ratios.reduce("min" if policy == "not_larger" else "max", 0, keepdims=True)
    all_scales = _every_axis(x, axes, scale.expand((len(axes),)), (1.0,))
    sizes = _rounded_sizes(x, axes, all_scales, F64, 0.5)
    if all_scales.array is None:
        return _Target(sizes, (None,) * x.rank, all_scales)
    return _Target(sizes, tuple(all_scales.array.tolist()))


CONVERTERS: Converters = named(_resize, _upsample)
