"""Resize: interpolation along each axis in turn.

The place of an output element in the input is computed in f32 inside the scalar body, so the op is
an expression whatever the sizes.  Nearest neighbours at a whole scale are quotients of indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.index import Index, as_int
from tcc.ir.op import Array, OpSpec, Sample, Tolerance, Trait
from tcc.ir.scalar import Scalar, Source, apply, cast, index_value, literal
from tcc.ir.types import BOOL, F32, I64, TensorType
from tcc.ops.formula import choose, fn, wide
from tcc.ops.operands import Arrays, Types, array, clamped, dims, require, sizes
from tcc.ops.reference import widen_half
from tcc.ops.shapes import COMMON, required

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MODES = ("nearest", "linear", "cubic")


@dataclass(frozen=True, slots=True)
class ResizeAttrs:
    """`sizes` is the output shape; `scales` has one entry per axis, None where it follows from
    the sizes.

    `roi` (per axis: start, end, as fractions) and `extrapolation_value` are tf_crop_and_resize's;
    `cubic_coeff_a` and `exclude_outside` belong to mode cubic, `nearest_mode` to mode nearest.
    """

    sizes: tuple[Index, ...]
    scales: tuple[float | None, ...]
    mode: str = "nearest"
    coordinate_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    extrapolation_value: float = 0.0
    roi: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis to interpolate: extents, scale, and the part of the input that `roi` keeps."""

    number: int
    extent: Index
    size: Index
    scale: float | None
    roi: tuple[float, float]


def _infer(types: Types, attrs: ResizeAttrs) -> tuple[TensorType, ...]:
    x = required(types, 0)
    require(len(attrs.sizes) == len(attrs.scales) == x.rank, f"resize attributes do not fit {x}")
    require(attrs.mode in MODES, f"unknown resize mode {attrs.mode}")
    require(attrs.coordinate_mode in COORDINATES, f"unknown mode {attrs.coordinate_mode}")
    require(attrs.nearest_mode in NEAREST, f"unknown nearest mode {attrs.nearest_mode}")
    require(
        attrs.mode == "nearest" or x.dtype.is_float,
        f"{attrs.mode} resize takes floating types, not {x}",
    )
    cropping = attrs.coordinate_mode == "tf_crop_and_resize"
    require(not cropping or len(attrs.roi) == x.rank, "tf_crop_and_resize needs a roi per axis")
    return (TensorType(x.dtype, attrs.sizes),)


def _axes(x: TensorType, attrs: ResizeAttrs) -> list[_Axis]:
    """The axes that change."""
    roi = attrs.roi or ((0.0, 1.0),) * x.rank
    axes = (_Axis(n, x.shape[n], attrs.sizes[n], attrs.scales[n], roi[n]) for n in range(x.rank))
    return [a for a in axes if not _kept(a, attrs)]


def _kept(axis: _Axis, attrs: ResizeAttrs) -> bool:
    whole = attrs.coordinate_mode != "tf_crop_and_resize" or axis.roi == (0.0, 1.0)
    return axis.extent is axis.size and axis.scale in (None, 1.0) and whole


# ---- coordinates ---------------------------------------------------------------------------------


def _number(index: Index) -> Scalar:
    value = as_int(index)
    return index_value(index, F32) if value is None else literal(float(value), F32)


def _unscaled(at: Scalar, axis: _Axis) -> Scalar:
    """`at` over the scale; where that follows from the sizes, with a single rounding."""
    if axis.scale is not None:
        return fn("div", at, float(np.float32(axis.scale)))
    return fn("div", fn("mul", at, _number(axis.extent)), _number(axis.size))


def _coordinate(axis: _Axis, o: Index, mode: str) -> Scalar:
    """Where output element `o` lies in the input, in f32."""
    at = index_value(o, F32)
    size, extent = _number(axis.size), _number(axis.extent)
    last_out, last_in = _number(axis.size - 1), _number(axis.extent - 1)
    half = fn("sub", _unscaled(fn("add", at, 0.5), axis), 0.5)
    several = apply("gt", size, literal(1.0, F32))
    match mode:
        case "asymmetric":
            return _unscaled(at, axis)
        case "half_pixel":
            return half
        case "pytorch_half_pixel":
            return choose(several, half, 0.0)
        case "half_pixel_symmetric":
            center = fn("div", extent, 2.0)
            used = fn("div", _unscaled(size, axis), extent)
            return fn("add", fn("mul", center, fn("sub", 1.0, used)), half)
        case "align_corners":
            spread = fn("div", fn("mul", at, last_in), last_out)
            return choose(several, spread, 0.0)
        case _:
            start, end = axis.roi
            span = fn("mul", last_in, end - start)
            first = fn("mul", last_in, start)
            spread = fn("add", first, fn("div", fn("mul", at, span), last_out))
            return choose(several, spread, fn("mul", last_in, 0.5 * (start + end)))


def _place(axis: _Axis, o: int, mode: str) -> np.float32:
    """As `_coordinate`, of plain numbers, for the reference."""
    f = np.float32
    (n, m), (start, end) = sizes((axis.extent, axis.size)), axis.roi
    # The scale as a fraction; one that follows from the sizes is exact.
    over, under = (f(1), f(axis.scale)) if axis.scale is not None else (f(n), f(m))
    half = (f(o) + f(0.5)) * over / under - f(0.5)
    if mode == "asymmetric":
        return f(o) * over / under
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and m > 1):
        return f(half)
    if mode == "half_pixel_symmetric":
        return f(f(n) / f(2) * (f(1) - f(m) * over / under / f(n)) + half)
    if mode == "align_corners":
        return f(o) * f(n - 1) / f(m - 1) if m > 1 else f(0)
    if mode == "tf_crop_and_resize":
        if m == 1:
            return f(0.5 * (start + end)) * f(n - 1)
        return f(n - 1) * f(start) + f(o) * (f(n - 1) * f(end - start)) / f(m - 1)
    return f(0)


# ---- weights -------------------------------------------------------------------------------------


def cubic_kernel(distance: Scalar, a: float) -> Scalar:
    """Keys' kernel for distances below 2."""
    d = distance
    near = fn("add", fn("mul", fn("mul", fn("sub", fn("mul", d, a + 2), a + 3), d), d), 1.0)
    far = fn("sub", fn("mul", fn("add", fn("mul", fn("sub", d, 5.0), d), 8.0), d), 4.0)
    return choose(apply("le", d, literal(1.0, F32)), near, fn("mul", far, a))


def cubic_weight(d: float, a: float) -> float:
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return a * (((d - 5) * d + 8) * d - 4)


def _taps(axis: _Axis, o: Index, attrs: ResizeAttrs) -> list[tuple[Scalar, Scalar]]:
    """Position (i64, maybe outside) and weight (f32) of each input element that counts."""
    x = _coordinate(axis, o, attrs.coordinate_mode)
    if attrs.mode == "linear":
        low = literal(0.0, F32)
        x = apply("max", low, apply("min", x, _number(axis.extent - 1)))
    base = fn("floor", x)
    rest = fn("sub", x, base)
    first = cast(base, I64)
    if attrs.mode == "linear":
        return [(first, fn("sub", 1.0, rest)), (fn("add", first, 1), rest)]
    a = attrs.cubic_coeff_a
    distances = (fn("add", rest, 1.0), rest, fn("sub", 1.0, rest), fn("sub", 2.0, rest))
    places = [fn("add", first, n) for n in (-1, 0, 1, 2)]
    weights = [cubic_kernel(d, a) for d in distances]
    if attrs.exclude_outside:
        weights = [
            choose(_inside(place, axis.extent), w, 0.0)
            for place, w in zip(places, weights, strict=True)
        ]
        total = weights[0]
        for w in weights[1:]:
            total = fn("add", total, w)
        weights = [fn("div", w, total) for w in weights]
    return list(zip(places, weights, strict=True))


def _inside(place: Scalar, extent: Index) -> Scalar:
    above = apply("ge", place, literal(0, I64))
    return apply("and", above, apply("lt", place, index_value(extent, I64)))


def _reference_taps(axis: _Axis, o: int, attrs: ResizeAttrs) -> list[tuple[int, float]]:
    x = _place(axis, o, attrs.coordinate_mode)
    (n,) = sizes((axis.extent,))
    if attrs.mode == "nearest":
        return [(_nearest_place(float(x), attrs.nearest_mode), 1.0)]
    if attrs.mode == "linear":
        x = min(max(x, np.float32(0)), np.float32(n - 1))
    base = int(np.floor(x))
    rest = float(x - np.float32(base))
    if attrs.mode == "linear":
        return [(base, 1 - rest), (base + 1, rest)]
    taps = [(base + k, cubic_weight(abs(rest - k), attrs.cubic_coeff_a)) for k in (-1, 0, 1, 2)]
    if attrs.exclude_outside:
        taps = [(p, w if 0 <= p < n else 0.0) for p, w in taps]
        total = sum(w for _, w in taps)
        taps = [(p, w / total) for p, w in taps]
    return taps


def _nearest_place(x: float, mode: str) -> int:
    places = {
        "floor": np.floor(x),
        "ceil": np.ceil(x),
        "round_prefer_floor": np.ceil(x - 0.5),
        "round_prefer_ceil": np.floor(x + 0.5),
    }
    return int(places[mode])


def _nearest(axis: _Axis, o: Index, attrs: ResizeAttrs) -> Scalar:
    x = _coordinate(axis, o, attrs.coordinate_mode)
    match attrs.nearest_mode:
        case "floor":
            place = fn("floor", x)
        case "ceil":
            place = fn("ceil", x)
        case "round_prefer_floor":
            place = fn("ceil", fn("sub", x, 0.5))
        case _:
            place = fn("floor", fn("add", x, 0.5))
    return cast(place, I64)


def _whole_scale(axis: _Axis, attrs: ResizeAttrs) -> int | None:
    """The scale s of an axis that nearest interpolation reads at `o // s`, if it is one."""
    n, m = as_int(axis.extent), as_int(axis.size)
    scale = axis.scale if axis.scale is not None else (m / n if n and m else 0.5)
    if scale < 1 or not float(scale).is_integer() or axis.size is not axis.extent * int(scale):
        return None
    mode, rounding = attrs.coordinate_mode, attrs.nearest_mode
    # (o + 1/2) / s - 1/2 lies less than 1/2 from o // s, so both ways of rounding find it.
    half = mode in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
    found = rounding.startswith("round") if half else (mode, rounding) == ("asymmetric", "floor")
    return int(scale) if found else None


# ---- the op --------------------------------------------------------------------------------------


def _outside(axes: list[_Axis], i: tuple[Index, ...], mode: str) -> Scalar:
    """Whether tf_crop_and_resize looks outside the input."""
    result: Scalar = literal(False, BOOL)
    for axis in axes:
        x = _coordinate(axis, i[axis.number], mode)
        low = apply("lt", x, literal(0.0, F32))
        high = apply("gt", x, _number(axis.extent - 1))
        result = apply("or", result, apply("or", low, high))
    return result


def _expr(types: Types, attrs: ResizeAttrs) -> Expr:
    x = required(types, 0)
    (y,) = _infer(types, attrs)
    b = ExprBuilder(x)
    axes = _axes(x, attrs)
    cropping = attrs.coordinate_mode == "tf_crop_and_resize"
    source: Source = 0
    if attrs.mode == "nearest":
        i = b.iters(*y.shape)
        value = _nearest_read(b, i, axes, attrs)
    else:
        shape = list(x.shape)
        for axis in axes[:-1]:
            shape[axis.number] = axis.size
            i = b.iters(*shape)
            source = b.stage(i, _weighted(b, source, i, axis, attrs))
        i = b.iters(*y.shape)
        value = _weighted(b, source, i, axes[-1], attrs) if axes else wide(b.read(0, *i))
    if cropping:
        value = choose(_outside(axes, i, attrs.coordinate_mode), attrs.extrapolation_value, value)
    b.stage(i, cast(value, y.dtype))
    return b.done()


def _nearest_read(
    b: ExprBuilder, i: tuple[Index, ...], axes: list[_Axis], attrs: ResizeAttrs
) -> Scalar:
    at, bindings = list(i), []
    for axis in axes:
        o = i[axis.number]
        scale = _whole_scale(axis, attrs)
        if scale is not None:
            at[axis.number] = o // scale
            continue
        place = clamped(_nearest(axis, o, attrs), axis.extent)
        at[axis.number], binding = b.position(place, axis.extent)
        bindings.append(binding)
    return b.read(0, *at, indirect=tuple(bindings))


def _weighted(
    b: ExprBuilder, source: Source, i: tuple[Index, ...], axis: _Axis, attrs: ResizeAttrs
) -> Scalar:
    total: Scalar | None = None
    for place, weight in _taps(axis, i[axis.number], attrs):
        at, binding = b.position(clamped(place, axis.extent), axis.extent)
        indices = [at if n == axis.number else k for n, k in enumerate(i)]
        value = wide(b.read(source, *indices, indirect=(binding,)))
        term = fn("mul", value, cast(weight, value.dtype))
        total = term if total is None else fn("add", total, term)
    assert total is not None
    return total


def _reference(arrays: Arrays, attrs: ResizeAttrs) -> tuple[Array, ...]:
    x = array(arrays, 0)
    y = widen_half(x)
    axes = _axes(TensorType(F32, dims(*x.shape)), attrs)
    outside = np.zeros(sizes(attrs.sizes), np.bool_)
    for axis in axes:
        (size,) = sizes((axis.size,))
        taps = [_reference_taps(axis, o, attrs) for o in range(size)]
        y = _apply_taps(y, axis.number, taps, attrs.mode)
        places = [_place(axis, o, attrs.coordinate_mode) for o in range(size)]
        far = np.array([p < 0 or p > x.shape[axis.number] - 1 for p in places], np.bool_)
        outside |= far.reshape(-1, *([1] * (y.ndim - axis.number - 1)))
    if attrs.coordinate_mode == "tf_crop_and_resize":
        y = np.where(outside, y.dtype.type(attrs.extrapolation_value), y)
    return (y.astype(x.dtype),)


def _apply_taps(x: Array, axis: int, taps: list[list[tuple[int, float]]], mode: str) -> Array:
    n = x.shape[axis]
    if mode == "nearest":
        return np.take(x, [min(max(p, 0), n - 1) for ((p, _),) in taps], axis=axis)
    shape = (-1, *([1] * (x.ndim - axis - 1)))
    mixed = np.zeros((*x.shape[:axis], len(taps), *x.shape[axis + 1 :]), x.dtype)
    for row in zip(*taps, strict=True):
        at = [min(max(place, 0), n - 1) for place, _ in row]
        weights = np.array([weight for _, weight in row], x.dtype)
        mixed += np.take(x, at, axis=axis) * weights.reshape(shape)
    return mixed


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((1, 2, 5, 7)).astype(np.float32)

    def attrs(h: int, w: int, **options: Any) -> ResizeAttrs:
        made = ResizeAttrs(dims(1, 2, h, w), (None, None, None, None))
        return replace(made, **options)

    for mode in MODES:
        for coordinate in COORDINATES[:5]:
            chosen = attrs(8, 6, mode=mode, coordinate_mode=coordinate)
            yield Sample((x,), chosen, f"{mode}-{coordinate}")
    for rounding in NEAREST:
        chosen = attrs(9, 4, nearest_mode=rounding, coordinate_mode="asymmetric")
        yield Sample((x,), chosen, rounding)
    up = attrs(10, 21, scales=(1.0, 1.0, 2.0, 3.0))
    yield Sample((x,), up, "whole")
    yield Sample((x,), replace(up, coordinate_mode="asymmetric", nearest_mode="floor"), "yolo")
    yield Sample((x,), attrs(3, 4, scales=(1.0, 1.0, 0.6, 0.6), mode="linear"), "scales")
    yield Sample((x,), attrs(1, 1, mode="linear", coordinate_mode="align_corners"), "one")
    cubic = attrs(9, 8, mode="cubic", exclude_outside=True, cubic_coeff_a=-0.5)
    yield Sample((x,), cubic, "exclude")
    roi = ((0.0, 1.0), (0.0, 1.0), (0.25, 1.2), (0.5, 0.9))
    for mode in MODES[:2]:
        crop = attrs(4, 3, mode=mode, coordinate_mode="tf_crop_and_resize", roi=roi)
        yield Sample((x,), replace(crop, extrapolation_value=9.0), f"{mode}-crop")
    image = rng.integers(0, 255, (3, 4), np.uint8)
    yield Sample((image,), ResizeAttrs(dims(6, 8), (2.0, 2.0)), "u8")


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "resize",
        ResizeAttrs,
        (1, 1),
        _infer,
        _reference,
        _samples,
        COMMON,
        Tolerance.ACCUMULATE,
        "Nearest, linear or cubic interpolation to the shape `sizes`.",
        expr=_expr,
        traits=frozenset({Trait.WINDOW}),
        aten=("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    ),
)
