"""The discrete Fourier transform.

The last axis of a complex tensor has two elements: real and imaginary part. A transform is computed
as defined: a sum of products with sines and cosines.
"""

from collections.abc import Sequence
from math import pi

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast, index_value
from tcc.ir.index import Index, as_int, const, minimum
from tcc.ir.op import Array, Tolerance
from tcc.ir.types import F64, I64, DType, TensorType
from tcc.ops.formula import choose, fn, number
from tcc.ops.operands import integer, require
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import FLOATS, check_axis, replaced


@frozen
class DftAttrs:
    """The attributes of a discrete Fourier transform of `length` elements along `axis`.

    A longer signal is cut, and a shorter signal is padded with zeros. With `onesided`, the result
    is the first half of the spectrum of a real signal, or the operand is this half if `inverse`.
    """

    axis: int
    length: Index
    inverse: bool
    onesided: bool


def _dft_infer(attrs: DftAttrs, x: TensorType) -> TensorType:
    require(x.rank >= 2, f"dft takes [batch, ..., 1 or 2], not {x}")
    parts = as_int(x.shape[-1])
    require(parts in (1, 2), f"the last axis of {x} must hold one or two parts")
    check_axis(attrs.axis, x.rank - 1)
    require(
        not (attrs.onesided and not attrs.inverse and parts == 2),
        "a one-sided spectrum belongs to a real signal",
    )
    require(not (attrs.onesided and attrs.inverse and parts == 1), "a spectrum has two parts")
    half = attrs.onesided and not attrs.inverse
    extent = attrs.length // 2 + 1 if half else attrs.length
    out = const(1 if attrs.onesided and attrs.inverse else 2)
    return TensorType(x.dtype, (*replaced(x.shape[:-1], attrs.axis, extent), out))


def _complex(x: Array) -> Array:
    """Returns a complex array from parts along the last axis: real, and imaginary if present."""
    real = x[..., 0].astype(np.complex128)
    return real + 1j * x[..., 1] if x.shape[-1] == 2 else real


def _parts(spectrum: Array) -> Array:
    return np.stack([spectrum.real, spectrum.imag], axis=-1)


@in_f32
def _dft_reference(attrs: DftAttrs, x: Array) -> Array:
    length = integer(attrs.length)
    signal = _complex(x)
    if attrs.onesided and attrs.inverse:
        return np.fft.irfft(signal, length, axis=attrs.axis)[..., None]
    transform = np.fft.ifft if attrs.inverse else np.fft.fft
    spectrum = transform(signal, length, axis=attrs.axis)
    if attrs.onesided:
        spectrum = np.take(spectrum, range(length // 2 + 1), axis=attrs.axis)
    return _parts(spectrum)


def _rotated(
    b: ExprBuilder, attrs: DftAttrs, x: TensorType, at: Sequence[Index], turn: Index
) -> tuple[Scalar, Scalar]:
    """Returns (real, imaginary) of an element of `x`, rotated in the complex plane.

    The angle is -2 pi turn / length, or +2 pi turn / length for an inverse. It is computed in
    f64: zeros of a spectrum are sums of large terms, which would not cancel in f32.
    """
    real = cast(b.read(0, *at, 0), F64)
    # The remainder leaves out full turns, so that f64 represents the angle well.
    angle = index_value(turn % attrs.length, F64) / attrs.length * (2 * pi)
    cos, sin = fn("cos", angle), fn("sin", angle)
    sin = sin if attrs.inverse else -sin
    re, im = real * cos, real * sin
    if as_int(x.shape[-1]) == 2:
        imaginary = cast(b.read(0, *at, 1), F64)
        re -= imaginary * sin
        im += imaginary * cos
    return re, im


def _dft_expr(b: ExprBuilder, attrs: DftAttrs, x: TensorType) -> StageRef:
    y, half = _dft_infer(attrs, x), attrs.onesided and attrs.inverse
    *i, part = outer = b.point(y)
    # The sum leaves out the zeros with which a shorter signal is padded.
    (n,) = b.iters(minimum(x.shape[attrs.axis], attrs.length // 2 + 1 if half else attrs.length))
    at = replaced(i, attrs.axis, n)
    re, im = _rotated(b, attrs, x, at, n * i[attrs.axis])
    if half:
        term = re * _mirrored(n, attrs.length, re.dtype)
    else:
        term = choose(fn("eq", index_value(part, I64), 0), re, im)
    return _scaled(b, b.sum(outer, term, over=(n,)), y, attrs)


def _mirrored(n: Index, length: Index, dtype: DType) -> Scalar:
    """Returns how often element `n` of a half spectrum occurs in the full one: once or twice."""
    twice = fn("ne", index_value((2 * n) % length, I64), 0)
    return choose(twice, number(2.0, dtype), 1.0)


def _scaled(b: ExprBuilder, sums: StageRef, y: TensorType, attrs: DftAttrs) -> StageRef:
    if not attrs.inverse:
        return sums
    i = b.point(y)
    sums_of_terms = b.read(sums, *i)
    return b.stage(i, cast(sums_of_terms / index_value(attrs.length, sums_of_terms.dtype), y.dtype))


OPS = (
    op_row(
        "dft", DftAttrs, _dft_infer, _dft_reference, FLOATS,
        "The discrete Fourier transform along an axis, or its inverse.",
        Tolerance.ACCUMULATE,
        expr=_dft_expr,
    ),
)  # fmt: skip
