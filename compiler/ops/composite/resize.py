"""Resize: interpolation along each axis in turn.

The expression computes the position in the input of each output element, in f32, so it holds for
any sizes. For nearest neighbours at an integer scale, the position is a quotient of indices.

ONNX can be read in two ways for align_corners and tf_crop_and_resize where extent times scale is no
integer. Example: 7 elements at scale 0.7 give 4 outputs. In the first reading, the last output
(position 3) maps to the last input. In the second reading, position 7 * 0.7 - 1 = 3.9 would map to
it. ONNX Runtime and PyTorch use the first reading. ONNX's reference and test suite use the second
one (`fractional`).

PyTorch's linear modes copy an axis whose size does not change, even if its scale is not 1
(`kept_half_pixel`). Antialiasing does the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, Source, StageRef, cast, index_value, literal
from tcc.ir.index import Index, as_int
from tcc.ir.op import (
    Array,
    Tolerance,
    Trait,
)
from tcc.ir.types import BOOL, F32, F64, I64, TensorType
from tcc.ops.formula import choose, fn, wide
from tcc.ops.operands import clamped, dims, inside, integer, require, sizes
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import COMMON, Point, Shape, replaced
from tcc.zipped import zip_equal

COORDINATES = tuple(
    "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric "
    "tf_half_pixel_for_nn tf_crop_and_resize kept_half_pixel".split()
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MODES = ("nearest", "linear", "cubic")


@frozen
class ResizeAttrs:
    """The attributes of Resize.

    `sizes` is the output shape. `scales` has one entry per axis: a number, or None. None means that
    the scale follows from the sizes, or that operand 1 has it (f64, one per axis; rounded to f32).

    For align_corners and tf_crop_and_resize, `fractional` places the last corner at extent times
    scale minus 1, which may be a fraction; otherwise the last corner is the last element.

    `roi` and `extrapolation_value` belong to tf_crop_and_resize. `roi` has a pair (start, end) of
    fractions for each axis; instead operand 2 may have all starts, then all ends. `cubic_coeff_a`
    and `exclude_outside` belong to mode "cubic", `nearest_mode` to mode "nearest".

    With `taps` (antialiasing), linear and cubic interpolation to a smaller size widen their kernel
    by the scale. The kernel then spans at most `taps` input elements, an even number.
    """

    sizes: Shape
    scales: tuple[float | None, ...]
    mode: str = "nearest"
    coordinate_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    extrapolation_value: float = 0.0
    roi: tuple[tuple[float, float], ...] = ()
    taps: Index | None = None
    fractional: bool = False

    @property
    def crops(self) -> bool:
        return self.coordinate_mode == "tf_crop_and_resize"


Amount = float | Scalar  # a constant, or the value that an operand holds


@frozen
class _Axis:
    """An axis to interpolate.

    `number` is its position, `extent` its input size and `size` its output size. `roi` is the part
    of the input that is resized, as fractions (start, end).
    """

    number: int
    extent: Index
    size: Index
    scale: Amount | None
    roi: tuple[Amount, Amount]


def _infer(
    attrs: ResizeAttrs,
    x: TensorType,
    scales: TensorType | None = None,
    roi: TensorType | None = None,
) -> TensorType:
    require(len(attrs.sizes) == len(attrs.scales) == x.rank, f"resize attributes do not fit {x}")
    require(attrs.mode in MODES, f"unknown resize mode {attrs.mode}")
    require(attrs.coordinate_mode in COORDINATES, f"unknown mode {attrs.coordinate_mode}")
    require(attrs.nearest_mode in NEAREST, f"unknown nearest mode {attrs.nearest_mode}")
    require(
        attrs.mode == "nearest" or x.dtype.is_float,
        f"{attrs.mode} resize takes floating types, not {x}",
    )
    told = len(attrs.roi) == x.rank or roi is not None
    require(not attrs.crops or told, "tf_crop_and_resize needs a roi per axis")
    for operand, count in ((scales, x.rank), (roi, 2 * x.rank)):
        fits = operand is None or (operand.dtype is F64 and operand.static_shape == (count,))
        require(fits, f"{operand} must be f64[{count}]")
    return TensorType(x.dtype, attrs.sizes)


def _axes(
    x: TensorType,
    attrs: ResizeAttrs,
    scales: Sequence[Amount | None],
    roi: Sequence[tuple[Amount, Amount]],
) -> list[_Axis]:
    """Returns the axes that interpolation changes."""
    spans = roi or ((0.0, 1.0),) * x.rank
    axes = (_Axis(n, x.shape[n], attrs.sizes[n], scales[n], spans[n]) for n in range(x.rank))
    return [a for a in axes if not _is_unchanged(a, attrs)]


def _given_axes(
    b: ExprBuilder,
    attrs: ResizeAttrs,
    x: TensorType,
    scale_type: TensorType | None,
    roi_type: TensorType | None,
) -> list[_Axis]:
    """Returns the axes that interpolation changes.

    Scales and roi are read from operands 1 and 2 if they are present, else they are attributes.
    """
    scales: Sequence[Amount | None] = attrs.scales
    roi: Sequence[tuple[Amount, Amount]] = attrs.roi
    if scale_type is not None:
        scales = [cast(b.read(1, n), F32) for n in range(x.rank)]
    if roi_type is not None:
        ends = [cast(b.read(2, n), F32) for n in range(2 * x.rank)]
        roi = list(zip_equal(ends[: x.rank], ends[x.rank :]))
    return _axes(x, attrs, scales, roi)


def _is_unchanged(axis: _Axis, attrs: ResizeAttrs) -> bool:
    is_whole = not attrs.crops or axis.roi == (0.0, 1.0)
    keeps_scale = axis.scale in (None, 1.0) or _copies_equal_sizes(attrs)
    return axis.extent is axis.size and keeps_scale and is_whole


def _copies_equal_sizes(attrs: ResizeAttrs) -> bool:
    """True if an axis of unchanged size is copied even if its scale is not 1."""
    return attrs.taps is not None or attrs.coordinate_mode == "kept_half_pixel"


# ---- coordinates ---------------------------------------------------------------------------------


def _number(index: Index) -> Scalar:
    value = as_int(index)
    return index_value(index, F32) if value is None else literal(float(value), F32)


def _unscaled(at: Scalar, axis: _Axis) -> Scalar:
    """Returns `at` divided by the axis' scale.

    Without an explicit scale, `at` is multiplied by the input size and divided by the output size,
    so that no rounded quotient of the sizes is used.
    """
    if axis.scale is not None:
        return at / _rounded(axis.scale)
    return at * _number(axis.extent) / _number(axis.size)


def _rounded(amount: Amount) -> Amount:
    """Returns a constant amount rounded to f32, and an amount that an operand holds unchanged."""
    return float(np.float32(amount)) if isinstance(amount, int | float) else amount


def _coordinate(axis: _Axis, o: Index, attrs: ResizeAttrs) -> Scalar:
    """Returns the position in the input of output element `o`, in f32."""
    at = index_value(o, F32)
    size, extent = _number(axis.size), _number(axis.extent)
    x = _mapped(axis, at, size, extent, attrs)
    is_static = as_int(axis.size) is not None and as_int(axis.extent) is not None
    if is_static or axis.scale is None or attrs.crops or not _copies_equal_sizes(attrs):
        return x
    return choose(fn("eq", size, extent), at, x)


def _mapped(axis: _Axis, at: Scalar, size: Scalar, extent: Scalar, attrs: ResizeAttrs) -> Scalar:
    """Returns the position in the input of the output element at position `at`, in f32.

    `size` and `extent` are the output size and the input size. A copied axis is not considered; see
    `_coordinate`.
    """
    last_in = _number(axis.extent - 1)
    width = size
    if attrs.fractional and axis.scale is not None:
        width = extent * _rounded(axis.scale)
    last_out = width - 1.0
    half = _unscaled(at + 0.5, axis) - 0.5
    several = size > 1.0
    wider = width > 1.0
    match attrs.coordinate_mode:
        case "asymmetric":
            return _unscaled(at, axis)
        case "half_pixel" | "kept_half_pixel":
            return half
        case "tf_half_pixel_for_nn":
            return _unscaled(at + 0.5, axis)
        case "pytorch_half_pixel":
            return choose(several, half, 0.0)
        case "half_pixel_symmetric":
            center = extent / 2.0
            used_part = _unscaled(size, axis) / extent
            return center * (1.0 - used_part) + half
        case "align_corners":
            spread = at * last_in / last_out
            return choose(wider, spread, 0.0)
        case _:
            start, end = (_scalar(amount) for amount in axis.roi)
            span = last_in * (end - start)
            first = last_in * start
            spread = first + at * span / last_out
            middle = (start + end) * 0.5
            return choose(wider, spread, last_in * middle)


def _scalar(amount: Amount) -> Scalar:
    return literal(amount, F32) if isinstance(amount, int | float) else amount


def _as_float(amount: Amount) -> float:
    """Returns a constant amount as a float; raises TypeError for a scalar."""
    if not isinstance(amount, int | float):
        raise TypeError(f"{amount} is no number")
    return amount


def _place(axis: _Axis, o: int, attrs: ResizeAttrs) -> np.float32:
    """Returns the position in the input of output element `o`, for the NumPy reference."""
    f, mode = np.float32, attrs.coordinate_mode
    (n, m), (start, end) = sizes((axis.extent, axis.size)), map(_as_float, axis.roi)
    scale = None if axis.scale is None else f(_as_float(axis.scale))
    # The scale is under / over. Without an explicit scale, both are sizes, which f32 holds exactly.
    over, under = (f(1), scale) if scale is not None else (f(n), f(m))
    half = (f(o) + f(0.5)) * over / under - f(0.5)
    if mode == "asymmetric":
        return f(o) * over / under
    if mode == "tf_half_pixel_for_nn":
        return (f(o) + f(0.5)) * over / under
    if mode in ("half_pixel", "kept_half_pixel") or (mode == "pytorch_half_pixel" and m > 1):
        return f(half)
    if mode == "half_pixel_symmetric":
        return f(f(n) / f(2) * (f(1) - f(m) * over / under / f(n)) + half)
    width = f(m) if scale is None or not attrs.fractional else f(n) * scale
    if mode == "align_corners":
        return f(o) * f(n - 1) / (width - f(1)) if width > 1 else f(0)
    if mode == "tf_crop_and_resize":
        if width <= 1:
            return f(0.5 * (start + end)) * f(n - 1)
        return f(n - 1) * f(start) + f(o) * (f(n - 1) * f(end - start)) / (width - f(1))
    return f(0)


# ---- weights -------------------------------------------------------------------------------------


def cubic_kernel(distance: Scalar, a: float) -> Scalar:
    """Returns Keys' cubic kernel with coefficient `a`, for a distance in [0, 2)."""
    d = distance
    inner = (d * (a + 2) - (a + 3)) * d * d + 1.0
    outer = ((d - 5.0) * d + 8.0) * d - 4.0
    return choose(d <= 1.0, inner, outer * a)


def cubic_weights(fraction: Scalar, a: float) -> list[Scalar]:
    """Returns the weights of the four elements around a position.

    The position lies between the second and the third; `fraction` is its distance from the second.
    """
    return [cubic_kernel(d, a) for d in (fraction + 1.0, fraction, 1.0 - fraction, 2.0 - fraction)]


def cubic_weight(d: float, a: float) -> float:
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return a * (((d - 5) * d + 8) * d - 4)


def _taps(axis: _Axis, o: Index, attrs: ResizeAttrs) -> list[tuple[Scalar, Scalar]]:
    """Returns (position, weight) of each input element that contributes to output `o`.

    Positions are i64 and may lie outside the input; weights are f32.
    """
    x = _coordinate(axis, o, attrs)
    if attrs.mode == "linear":
        x = fn("max", 0.0, fn("min", x, _number(axis.extent - 1)))
    base = fn("floor", x)
    fraction = x - base
    first = cast(base, I64)
    if attrs.mode == "linear":
        return [(first, 1.0 - fraction), (first + 1, fraction)]
    a = attrs.cubic_coeff_a
    places = [first + n for n in (-1, 0, 1, 2)]
    weights = cubic_weights(fraction, a)
    if attrs.exclude_outside:
        inner = (inside(place, axis.extent) for place in places)
        weights = [choose(hit, w, 0.0) for hit, w in zip_equal(inner, weights)]
        weight_sum = reduce(add, weights)
        weights = [w / weight_sum for w in weights]
    return list(zip_equal(places, weights))


def _reference_taps(axis: _Axis, o: int, attrs: ResizeAttrs) -> list[tuple[int, float]]:
    x, (n, m) = float(_place(axis, o, attrs)), sizes((axis.extent, axis.size))
    if attrs.mode == "nearest":
        return [(_nearest_place(x, attrs.nearest_mode), 1.0)]
    radius, scale = (1 if attrs.mode == "linear" else 2), 1.0
    if attrs.taps is not None:
        radius = integer(attrs.taps) // 2
        scale = min(m / n if axis.scale is None else _as_float(axis.scale), 1.0)
    elif attrs.mode == "linear":
        x = min(max(x, 0), n - 1)
    base = int(np.floor(x))
    places = range(base + 1 - radius, base + 1 + radius)
    weights = [
        _reference_kernel(abs(place - x) * scale, attrs)
        if not attrs.exclude_outside or 0 <= place < n
        else 0.0
        for place in places
    ]
    weight_sum = sum(weights)  # the sum is 0 if all taps are outside the input
    return [(p, w / weight_sum if weight_sum else np.nan) for p, w in zip_equal(places, weights)]


def _reference_kernel(distance: float, attrs: ResizeAttrs) -> float:
    if attrs.mode == "linear":
        return max(1 - distance, 0.0)
    return cubic_weight(distance, attrs.cubic_coeff_a) if distance < 2 else 0.0


def _nearest_place(x: float, mode: str) -> int:
    places = {
        "floor": np.floor(x),
        "ceil": np.ceil(x),
        "round_prefer_floor": np.ceil(x - 0.5),
        "round_prefer_ceil": np.floor(x + 0.5),
    }
    return int(places[mode])


def _nearest(axis: _Axis, o: Index, attrs: ResizeAttrs) -> Scalar:
    x = _coordinate(axis, o, attrs)
    match attrs.nearest_mode:
        case "floor":
            place = fn("floor", x)
        case "ceil":
            place = fn("ceil", x)
        case "round_prefer_floor":
            place = fn("ceil", x - 0.5)
        case _:
            place = fn("floor", x + 0.5)
    return cast(place, I64)


def _whole_scale(axis: _Axis, attrs: ResizeAttrs) -> int | None:
    """Returns the integer s if nearest interpolation reads input `o // s` for output `o`.

    Returns None if there is no such integer.
    """
    n, m = as_int(axis.extent), as_int(axis.size)
    scale = axis.scale if axis.scale is not None else (m / n if n and m else 0.5)
    if not isinstance(scale, int | float):
        return None
    if scale < 1 or not float(scale).is_integer() or axis.size is not axis.extent * int(scale):
        return None
    mode, rounding = attrs.coordinate_mode, attrs.nearest_mode
    # (o + 1/2) / s - 1/2 is less than 1/2 away from o // s, so both ways of rounding give o // s.
    half = mode in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
    from_floor = mode in ("asymmetric", "tf_half_pixel_for_nn") and rounding == "floor"
    rounds_down = rounding.startswith("round") if half else from_floor
    return int(scale) if rounds_down else None


# ---- the op --------------------------------------------------------------------------------------


def _outside(axes: list[_Axis], i: Point, attrs: ResizeAttrs) -> Scalar:
    """Returns the condition that the position of output `i` is outside the input.

    tf_crop_and_resize gives `extrapolation_value` there.
    """
    result: Scalar = literal(False, BOOL)
    for axis in axes:
        x = _coordinate(axis, i[axis.number], attrs)
        result |= (x < 0.0) | (x > _number(axis.extent - 1))
    return result


def _expr(
    b: ExprBuilder,
    attrs: ResizeAttrs,
    x: TensorType,
    scales: TensorType | None,
    roi: TensorType | None,
) -> StageRef:
    y = _infer(attrs, x, scales, roi)
    axes = _given_axes(b, attrs, x, scales, roi)
    source: Source = 0
    if attrs.mode == "nearest":
        i = b.point(y)
        value = _nearest_read(b, i, axes, attrs)
    else:
        shape = list(x.shape)
        for axis in axes[:-1]:
            shape[axis.number] = axis.size
            i, value = _mixed(b, source, shape, axis, attrs)
            source = b.stage(i, value)
        if axes:
            i, value = _mixed(b, source, y.shape, axes[-1], attrs)
        else:
            i = b.point(y)
            value = wide(b.read(0, *i))
    if attrs.crops:
        value = choose(_outside(axes, i, attrs), attrs.extrapolation_value, value)
    return b.stage(i, cast(value, y.dtype))


def _nearest_read(b: ExprBuilder, i: Point, axes: list[_Axis], attrs: ResizeAttrs) -> Scalar:
    at = list(i)
    for axis in axes:
        o = i[axis.number]
        scale = _whole_scale(axis, attrs)
        if scale is not None:
            at[axis.number] = o // scale
            continue
        place = clamped(_nearest(axis, o, attrs), axis.extent)
        at[axis.number] = b.position(place, axis.extent)
    return b.read(0, *at)


def _mixed(
    b: ExprBuilder, source: Source, shape: Sequence[Index], axis: _Axis, attrs: ResizeAttrs
) -> tuple[Point, Scalar]:
    """Returns (iterators, scalar): `source` interpolated along `axis` at a point of `shape`.

    May append stages to `b`.
    """
    if attrs.taps is None:
        i = b.iters(*shape)
        return i, _weighted(b, source, i, axis, attrs)
    (o,), (t,) = b.iters(axis.size), b.iters(attrs.taps)
    norm = b.sum((o,), _wide_tap(axis, o, t, attrs)[1], over=(t,))
    i, (t,) = b.iters(*shape), b.iters(attrs.taps)
    place, weight = _wide_tap(axis, i[axis.number], t, attrs)
    sums = b.sum(i, _term(b, source, i, axis, (place, weight)), over=(t,))
    i = b.iters(*shape)
    weighted_sum = b.read(sums, *i)
    return i, weighted_sum / cast(b.read(norm, i[axis.number]), weighted_sum.dtype)


def _wide_tap(axis: _Axis, o: Index, t: Index, attrs: ResizeAttrs) -> tuple[Scalar, Scalar]:
    """Returns (position, weight) of element `t` of the kernel for output `o`, with antialiasing.

    A scale below 1 widens the kernel. The caller divides by the sum of the weights, which is not 1.
    """
    x = _coordinate(axis, o, attrs)
    base = fn("floor", x)
    assert attrs.taps is not None
    offset = t + 1 - attrs.taps // 2
    place = cast(base, I64) + offset
    scale = axis.scale
    if scale is None:
        scale = _number(axis.size) / _number(axis.extent)
    shrunk = fn("min", _scalar(_rounded(scale)), 1.0)
    distance = index_value(offset, F32) - (x - base)
    weight = _kernel(abs(distance * shrunk), attrs)
    if attrs.exclude_outside:
        weight = choose(inside(place, axis.extent), weight, 0.0)
    return place, weight


def _kernel(distance: Scalar, attrs: ResizeAttrs) -> Scalar:
    if attrs.mode == "linear":
        return fn("max", 1.0 - distance, 0.0)
    return choose(distance < 2.0, cubic_kernel(distance, attrs.cubic_coeff_a), 0.0)


def _term(
    b: ExprBuilder,
    source: Source,
    i: Point,
    axis: _Axis,
    tap: tuple[Scalar, Scalar],
) -> Scalar:
    """Returns an element of `source` times its weight; its position is clamped to the extent."""
    place, weight = tap
    at = b.position(clamped(place, axis.extent), axis.extent)
    value = wide(b.read(source, *replaced(i, axis.number, at)))
    return value * cast(weight, value.dtype)


def _weighted(b: ExprBuilder, source: Source, i: Point, axis: _Axis, attrs: ResizeAttrs) -> Scalar:
    return reduce(add, (_term(b, source, i, axis, t) for t in _taps(axis, i[axis.number], attrs)))


@in_f32
def _reference(attrs: ResizeAttrs, x: Array, scales: Array | None, roi: Array | None) -> Array:
    if scales is not None:
        attrs = replace(attrs, scales=tuple(map(float, scales)))
    if roi is not None:
        pairs = zip_equal(roi[: x.ndim].tolist(), roi[x.ndim :].tolist())
        attrs = replace(attrs, roi=tuple(pairs))
    y = x
    axes = _axes(TensorType(F32, dims(*x.shape)), attrs, attrs.scales, attrs.roi)
    outside = np.zeros(sizes(attrs.sizes), np.bool_)
    for axis in axes:
        size = integer(axis.size)
        taps = [_reference_taps(axis, o, attrs) for o in range(size)]
        y = _apply_taps(y, axis.number, taps, attrs.mode)
        places = [_place(axis, o, attrs) for o in range(size)]
        is_outside = np.array([p < 0 or p > x.shape[axis.number] - 1 for p in places], np.bool_)
        outside |= is_outside.reshape(-1, *([1] * (y.ndim - axis.number - 1)))
    if attrs.crops:
        y = np.where(outside, y.dtype.type(attrs.extrapolation_value), y)
    return y


def _apply_taps(x: Array, axis: int, taps: list[list[tuple[int, float]]], mode: str) -> Array:
    n = x.shape[axis]
    if mode == "nearest":
        return np.take(x, [min(max(p, 0), n - 1) for ((p, _),) in taps], axis=axis)
    shape = (-1, *([1] * (x.ndim - axis - 1)))
    mixed = np.zeros(replaced(x.shape, axis, len(taps)), x.dtype)
    for row in zip_equal(*taps):
        at = [min(max(place, 0), n - 1) for place, _ in row]
        weights = np.array([weight for _, weight in row], x.dtype)
        mixed += np.take(x, at, axis=axis) * weights.reshape(shape)
    return mixed


OPS = (
    op_row(
        "resize", ResizeAttrs, _infer, _reference, COMMON,
        "Nearest, linear or cubic interpolation to the shape `sizes`.",
        Tolerance.ACCUMULATE,
        expr=_expr, traits=Trait.WINDOW,
    ),
)  # fmt: skip
