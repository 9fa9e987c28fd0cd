"""Converters of Resize and Upsample: sizes, scales and coordinate rules of every opset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from tcc.frontends.onnx_context import Converter, NodeContext
from tcc.frontends.onnx_scope import Operand
from tcc.ir.index import Index, as_int, const, floordiv

Results = Sequence["Operand | None"]
Scales = tuple["float | None", ...]


def _scaled(ctx: NodeContext, dim: Index, scale: float) -> Index:
    """`floor(dim * scale)`, of a symbolic size by the fraction that the f32 scale stands for."""
    if not math.isfinite(scale) or scale <= 0:
        raise ctx.fail(f"a scale is {scale}")
    size = as_int(dim)
    if size is not None:
        return const(math.floor(size * scale))
    fraction = Fraction(scale).limit_denominator(1 << 12)
    if np.float32(fraction.numerator / fraction.denominator) != np.float32(scale):
        raise ctx.fail(f"scale {scale} of the unknown size {dim.key} is no simple fraction")
    return floordiv(dim * fraction.numerator, fraction.denominator)


def _upsample(ctx: NodeContext) -> Results:
    """Upsample, and Resize of opset 10, which scale without shifting the coordinates."""
    x = ctx.input(0)
    if len(ctx.inputs) > 1:
        scales = tuple(float(v) for v in ctx.static(1, "scales").reshape(-1))
    else:
        scales = ctx.reals("scales")
    return [upsampled(ctx, scales)]


def upsampled(ctx: NodeContext, scales: Sequence[float]) -> Operand:
    """The first operand, each axis scaled."""
    x = ctx.input(0)
    if len(scales) != x.rank:
        raise ctx.fail(f"{len(scales)} scales for a tensor of rank {x.rank}")
    return ctx.emit(
        "resize",
        x,
        sizes=tuple(_scaled(ctx, d, s) for d, s in zip(x.shape, scales, strict=True)),
        scales=tuple(scales),
        mode=ctx.text("mode", "nearest").replace("bilinear", "linear"),
        coordinate_mode="asymmetric",
        nearest_mode="floor",
    )


def _resize(ctx: NodeContext) -> Results:
    if ctx.opset < 11:
        return _upsample(ctx)
    x = ctx.input(0)
    if ctx.flag("antialias"):
        raise ctx.fail("antialias is not supported")
    axes = ctx.axes(ctx.integers("axes") if ctx.has("axes") else range(x.rank), x.rank)
    sizes, scales = _target(ctx, x, axes)
    coordinates = ctx.text("coordinate_transformation_mode")
    return [
        ctx.emit(
            "resize",
            x,
            sizes=sizes,
            scales=scales,
            mode=ctx.text("mode"),
            coordinate_mode=coordinates,
            nearest_mode=ctx.text("nearest_mode"),
            cubic_coeff_a=ctx.real("cubic_coeff_a"),
            exclude_outside=ctx.flag("exclude_outside"),
            extrapolation_value=ctx.real("extrapolation_value"),
            roi=_roi(ctx, x, axes) if coordinates == "tf_crop_and_resize" else (),
        )
    ]


def _roi(ctx: NodeContext, x: Operand, axes: Sequence[int]) -> tuple[tuple[float, float], ...]:
    given = [float(v) for v in ctx.static(1, "roi").reshape(-1)]
    if len(given) != 2 * len(axes):
        raise ctx.fail(f"roi has {len(given)} entries for {len(axes)} axes")
    roi = [(0.0, 1.0)] * x.rank
    for n, axis in enumerate(axes):
        roi[axis] = given[n], given[n + len(axes)]
    return tuple(roi)


def _target(ctx: NodeContext, x: Operand, axes: Sequence[int]) -> tuple[tuple[Index, ...], Scales]:
    """The output shape, and the scale of each axis where scales give it."""
    sizes, scales = list(x.shape), [1.0] * x.rank
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
        return tuple(sizes), tuple(free)
    factors = [float(v) for v in ctx.static(2, "scales").reshape(-1)]
    if len(factors) != len(axes):
        raise ctx.fail(f"{len(factors)} scales for {len(axes)} axes")
    for axis, factor in zip(axes, factors, strict=True):
        sizes[axis], scales[axis] = _scaled(ctx, x.shape[axis], factor), factor
    return tuple(sizes), tuple(scales)


def _kept_ratio(
    ctx: NodeContext,
    x: Operand,
    axes: Sequence[int],
    wanted: Sequence[Index],
    policy: str,
) -> tuple[tuple[Index, ...], Scales]:
    """One scale for all axes: the least or largest that the sizes ask for."""
    pairs = [(as_int(x.shape[a]), as_int(s)) for a, s in zip(axes, wanted, strict=True)]
    ratios = [new / own for own, new in pairs if own and new is not None]
    if len(ratios) != len(pairs) or policy not in ("not_larger", "not_smaller"):
        raise ctx.fail(f"{policy} needs sizes that are known")
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    sizes, scales = list(x.shape), [1.0] * x.rank
    for axis in axes:
        sizes[axis] = const(math.floor(scale * (as_int(x.shape[axis]) or 0) + 0.5))
        scales[axis] = scale
    return tuple(sizes), tuple(scales)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Resize"): _resize,
    ("", "Upsample"): _upsample,
}
