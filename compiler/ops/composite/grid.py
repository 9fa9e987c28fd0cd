"""Sampling at data-dependent positions: grid_sample.

A position is a float coordinate. The elements around it are read at clamped indices and weighted by
their distances. So every read stays inside the image, and the op is an expression.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from operator import add

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, cast, index_value, literal
from tcc.ir.index import Index
from tcc.ir.op import Array, OnnxBinding, Tolerance
from tcc.ir.types import F64, I64, DType, TensorType
from tcc.ops.algebra.window import when
from tcc.ops.composite.resize import cubic_weight, cubic_weights
from tcc.ops.formula import fn, wide
from tcc.ops.operands import clamped, dims, inside, require
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import FLOATS, Point, agree
from tcc.zipped import zip_equal

_ALPHA = -0.75  # the coefficient `a` of Keys' cubic kernel


@frozen
class GridSampleAttrs:
    """`mode` is "nearest", "linear" or "cubic"; `padding_mode` "zeros", "border" or
    "reflection"."""

    mode: str
    padding_mode: str
    align_corners: bool


# A tap of an axis is (position, weight, condition). The position (i64) is clamped to the axis. A
# weight of None stands for 1. The tap counts only if the condition holds, which says that the
# position was inside before it was clamped; None stands for true.
Tap = tuple[Scalar, Scalar | None, Scalar | None]


# ---- grid_sample ---------------------------------------------------------------------------------


def _sample_infer(attrs: GridSampleAttrs, x: TensorType, grid: TensorType) -> TensorType:
    spatial = x.rank - 2
    require(spatial >= 1 and grid.rank == x.rank, f"grid_sample of {x} by {grid}")
    agree(grid.shape[-1], dims(spatial)[0], "the coordinates")
    require(attrs.mode in ("nearest", "linear", "cubic"), f"unknown mode {attrs.mode}")
    require(attrs.padding_mode in ("zeros", "border", "reflection"), "unknown padding mode")
    return TensorType(x.dtype, (x.shape[0], x.shape[1], *grid.shape[1:-1]))


def _reflected(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Returns `x` mirrored at both bounds until it lies between them; `low` if the bounds are
    equal."""
    period = (high - low) * 2.0
    phase = fn("mod", x - low, fn("max", period, 1.0))
    return low + fn("max", fn("min", phase, period - phase), 0.0)


def _coordinate(value: Scalar, dtype: DType) -> Scalar:
    """Returns a coordinate in the precision of the weights: f64 for f64 images, else f32."""
    return cast(value, F64) if dtype is F64 else wide(value)


def _axis_taps(x: Scalar, extent: Index, attrs: GridSampleAttrs) -> list[Tap]:
    """Returns the taps along an axis: the elements that are interpolated at the coordinate `x`.

    `x` is -1 at one end of the axis and 1 at the other. `extent` is the size of the axis.
    """
    size = cast(index_value(extent, I64), x.dtype)
    if attrs.align_corners:
        low, high = literal(0.0, x.dtype), size - 1.0
        at = (x + 1.0) / 2.0 * high
    else:
        low, high = literal(-0.5, x.dtype), size - 0.5
        at = ((x + 1.0) * size - 1.0) / 2.0
    if attrs.mode == "nearest":
        at = fn("round", at)
    if attrs.mode != "cubic":
        at = _padded(at, size, low, high, attrs.padding_mode)
    base = fn("floor", at)
    fraction = at - base
    weights: list[Scalar | None]
    if attrs.mode == "nearest":
        places, weights = [fn("round", at)], [None]
    elif attrs.mode == "linear":
        places, weights = [base, base + 1.0], [1.0 - fraction, fraction]
    else:
        places = [base + float(n) for n in (-1, 0, 1, 2)]
        weights = [*cubic_weights(fraction, _ALPHA)]
    taps: list[Tap] = []
    for place, weight in zip_equal(places, weights):
        zeros = attrs.padding_mode == "zeros"
        position = cast(
            place if zeros else _padded(place, size, low, high, attrs.padding_mode), I64
        )
        hit = inside(position, extent) if zeros else None
        taps.append((clamped(position, extent), weight, hit))
    return taps


def _padded(x: Scalar, size: Scalar, low: Scalar, high: Scalar, mode: str) -> Scalar:
    if mode == "border":
        return fn("max", fn("min", x, size - 1.0), 0.0)
    return _reflected(x, low, high) if mode == "reflection" else x


def _mixed(
    b: ExprBuilder, lead: Sequence[Index], taps: Sequence[Sequence[Tap]], extents: Sequence[Index]
) -> Scalar:
    """Returns the sum of weighted elements of operand 0 over all combinations of taps.

    A combination has a tap of each spatial axis; its weight is the product of their weights. `lead`
    are the indices of the axes before the spatial ones, whose sizes are `extents`.
    """
    terms: list[Scalar] = []
    for combination in product(*taps):
        places = zip_equal(combination, extents)
        at = [b.position(place, extent) for (place, _, _), extent in places]
        value = wide(b.read(0, *lead, *at))
        for _, weight, _ in combination:
            value = value if weight is None else value * cast(weight, value.dtype)
        terms.append(when([hit for _, _, hit in combination if hit is not None], value))
    return reduce(add, terms)


def _sample_element(
    b: ExprBuilder, i: Point, attrs: GridSampleAttrs, x: TensorType, _grid: TensorType
) -> Scalar:
    spatial = x.rank - 2
    # The grid gives the coordinate of the innermost axis first.
    grid = [b.read(1, i[0], *i[2:], spatial - 1 - n) for n in range(spatial)]
    coordinates = [_coordinate(c, x.dtype) for c in grid]
    taps = [_axis_taps(c, n, attrs) for c, n in zip_equal(coordinates, x.shape[2:])]
    return _mixed(b, i[:2], taps, x.shape[2:])


def _reflect(x: float, low: float, high: float) -> float:
    period = 2 * (high - low)
    if low <= x <= high or period <= 0:
        return min(max(x, low), high)
    phase = (x - low) % period
    return low + min(phase, period - phase)


def _bounded(x: float, size: int, attrs: GridSampleAttrs) -> float:
    if attrs.padding_mode == "border":
        return min(max(x, 0), size - 1)
    if attrs.padding_mode == "reflection":
        edge = 0.0 if attrs.align_corners else 0.5
        return _reflect(x, -edge, size - 1 + edge)
    return x


def _place_taps(at: float, size: int, attrs: GridSampleAttrs) -> list[tuple[int, float]]:
    if attrs.mode == "nearest":
        taps = [(round(_bounded(round(at), size, attrs)), 1.0)]
    elif attrs.mode == "linear":
        at = _bounded(at, size, attrs)
        base = int(np.floor(at))
        taps = [(base, 1 - (at - base)), (base + 1, at - base)]
    else:
        base = int(np.floor(at))
        taps = [(base + n, cubic_weight(abs(at - base - n), _ALPHA)) for n in (-1, 0, 1, 2)]
    if attrs.padding_mode == "zeros":
        return [(p, w) for p, w in taps if 0 <= p < size]
    return [(min(max(int(_bounded(p, size, attrs)), 0), size - 1), w) for p, w in taps]


def _sampled(image: Array, at: Sequence[float], attrs: GridSampleAttrs) -> Array:
    """Returns the image [..., spatial...] interpolated at the position `at`."""
    lead = image.ndim - len(at)
    weighted_sum = np.zeros(image.shape[:lead])
    pairs = zip_equal(at, image.shape[lead:])
    for combination in product(*(_place_taps(p, n, attrs) for p, n in pairs)):
        places, weights = zip_equal(*combination)
        weighted_sum = weighted_sum + image[(..., *places)] * np.prod(weights)
    return weighted_sum


@in_f32
def _sample_reference(attrs: GridSampleAttrs, x: Array, grid: Array) -> Array:
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]), np.float64)
    for at in np.ndindex(*grid.shape[:-1]):
        pairs = zip_equal(map(float, grid[at][::-1]), x.shape[2:])
        if attrs.align_corners:
            places = [(p + 1) / 2 * (n - 1) for p, n in pairs]
        else:
            places = [((p + 1) * n - 1) / 2 for p, n in pairs]
        y[(at[0], slice(None), *at[1:])] = _sampled(x[at[0]], places, attrs)
    return y


# ---- rows of the op table ------------------------------------------------------------------------

OPS = (
    op_row(
        "grid_sample", GridSampleAttrs, _sample_infer, _sample_reference,
        FLOATS,
        "The image at the normalised coordinates of a grid.",
        Tolerance.ACCUMULATE,
        element=_sample_element, onnx=OnnxBinding("GridSample", since=20),
    ),
)  # fmt: skip
