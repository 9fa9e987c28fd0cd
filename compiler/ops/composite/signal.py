"""Signal processing: windows, the discrete Fourier transform, mel filters.

The last axis of a complex tensor has two elements: real and imaginary part. A transform is computed
as defined: a sum of products with sines and cosines.
"""

from collections.abc import Sequence
from math import pi, prod

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, cast, index_value, literal
from tcc.ir.index import Index, as_int, const, minimum
from tcc.ir.op import Array, OpSpec, Tolerance
from tcc.ir.types import F32, F64, I64, DType, TensorType, tensor
from tcc.ops.formula import choose, fn, number, widened
from tcc.ops.operands import integer, require, sizes
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import (
    FLOATS,
    INTEGERS,
    Point,
    agree,
    check_axis,
    replaced,
)


@frozen
class SignalWindowAttrs:
    """A window has `size` elements of type `to`.

    A periodic window is a symmetric window of `size + 1` elements without the last element.
    """

    size: Index
    periodic: bool
    to: DType


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


@frozen
class StftAttrs:
    """Frames have `length` elements, and their starts are `step` elements apart.

    With `onesided`, the result has the first half of each spectrum.
    """

    step: Index
    length: Index
    onesided: bool


@frozen
class MelAttrs:
    """A matrix of type `to` that maps `length // 2 + 1` frequencies of a transform to `bins` mel
    bands."""

    bins: Index
    length: Index
    to: DType


# ---- windows -------------------------------------------------------------------------------------


def _window_infer(attrs: SignalWindowAttrs) -> TensorType:
    require(attrs.to.is_float or attrs.to.is_integer, f"a window may not be {attrs.to}")
    return tensor(attrs.to, attrs.size)


def _window_row(name: str, coefficients: tuple[float, ...], doc: str) -> OpSpec:
    """Returns the op-table row of a window that is a sum of cosines.

    Element n is c0 + c1 cos(2 pi n / N) + c2 cos(4 pi n / N). The period N is the size of a
    periodic window, and the size minus 1 of any other window.
    """

    def element(_: ExprBuilder, at: Point, attrs: SignalWindowAttrs) -> Scalar:
        dtype = F64 if attrs.to is F64 else F32
        period = attrs.size if attrs.periodic else attrs.size - 1
        phase = index_value(at[0], dtype) / fn("max", index_value(period, dtype), 1.0)
        value: Scalar = literal(coefficients[0], dtype)
        for harmonic, coefficient in enumerate(coefficients[1:], 1):
            value += fn("cos", phase * (2 * pi * harmonic)) * coefficient
        return value

    def reference(attrs: SignalWindowAttrs) -> Array:
        size = integer(attrs.size)
        phase = np.arange(size) / max(size if attrs.periodic else size - 1, 1)
        terms = (c * np.cos(2 * pi * harmonic * phase) for harmonic, c in enumerate(coefficients))
        return np.asarray(sum(terms)).astype(attrs.to.carrier)

    return op_row(
        name, SignalWindowAttrs, _window_infer, reference, FLOATS + INTEGERS,
        doc, Tolerance.ACTIVATION, element=element,
    )  # fmt: skip


# ---- dft -----------------------------------------------------------------------------------------


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
    b: ExprBuilder, x: TensorType, at: Sequence[Index], turn: tuple[Index, Index], back: bool
) -> tuple[Scalar, Scalar]:
    """Returns (real, imaginary) of an element of `x`, rotated in the complex plane.

    The angle is -2 pi turn[0] / turn[1], or +2 pi turn[0] / turn[1] if `back`. It is computed in
    f64: zeros of a spectrum are sums of large terms, which would not cancel in f32.
    """
    numerator, length = turn
    real = cast(b.read(0, *at, *([0] * (x.rank - len(at)))), F64)
    # The remainder leaves out full turns, so that f64 represents the angle well.
    angle = index_value(numerator % length, F64) / length * (2 * pi)
    cos, sin = fn("cos", angle), fn("sin", angle)
    sin = sin if back else -sin
    re, im = real * cos, real * sin
    if x.rank > len(at) and as_int(x.shape[-1]) == 2:
        imaginary = cast(b.read(0, *at, 1), F64)
        re -= imaginary * sin
        im += imaginary * cos
    return re, im


def _either(part: Index, re: Scalar, im: Scalar) -> Scalar:
    return choose(fn("eq", index_value(part, I64), 0), re, im)


def _dft_expr(b: ExprBuilder, attrs: DftAttrs, x: TensorType) -> StageRef:
    y = _dft_infer(attrs, x)
    *i, part = outer = b.point(y)
    # The sum leaves out the zeros with which a shorter signal is padded.
    (n,) = b.iters(minimum(x.shape[attrs.axis], _input_length(attrs)))
    at = replaced(i, attrs.axis, n)
    re, im = _rotated(b, x, at, (n * i[attrs.axis], attrs.length), attrs.inverse)
    if attrs.onesided and attrs.inverse:
        term = re * _mirrored(n, attrs.length, re.dtype)
    else:
        term = _either(part, re, im)
    return _scaled(b, b.sum(outer, term, over=(n,)), y, attrs)


def _input_length(attrs: DftAttrs) -> Index:
    """Returns the largest number of input elements that a transform reads."""
    return attrs.length // 2 + 1 if attrs.onesided and attrs.inverse else attrs.length


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


# ---- stft ----------------------------------------------------------------------------------------


def _stft_infer(attrs: StftAttrs, x: TensorType, window: TensorType | None = None) -> TensorType:
    require(x.rank in (2, 3), f"stft takes [batch, signal, 1 or 2], not {x}")
    numbers = [as_int(attrs.step), as_int(attrs.length)]
    require(all(n is None or n >= 1 for n in numbers), "frames have a positive length and step")
    complex_ = x.rank == 3 and as_int(x.shape[2]) == 2
    require(not (complex_ and attrs.onesided), "a one-sided spectrum belongs to a real signal")
    if window is not None:
        require(window.rank == 1, f"the window {window} must be a vector")
        agree(window.shape[0], attrs.length, "the elements of the window")
    frames = (x.shape[1] - attrs.length) // attrs.step + 1
    extent = attrs.length // 2 + 1 if attrs.onesided else attrs.length
    return TensorType(x.dtype, (x.shape[0], frames, extent, const(2)))


@in_f32
def _stft_reference(attrs: StftAttrs, x: Array, window: Array | None = None) -> Array:
    step, length = sizes((attrs.step, attrs.length))
    signal = _complex(x.reshape(*x.shape[:2], prod(x.shape[2:])))
    starts = range(0, x.shape[1] - length + 1, step)
    frames = np.stack([signal[:, s : s + length] for s in starts], axis=1)
    spectrum = np.fft.fft(frames if window is None else frames * window, axis=-1)
    if attrs.onesided:
        spectrum = spectrum[..., : length // 2 + 1]
    return _parts(spectrum)


def _stft_expr(
    b: ExprBuilder, attrs: StftAttrs, x: TensorType, window: TensorType | None = None
) -> StageRef:
    batch, frame, frequency, part = outer = b.point(_stft_infer(attrs, x, window))
    (n,) = b.iters(attrs.length)
    at = (batch, frame * attrs.step + n)
    term = _either(part, *_rotated(b, x, at, (n * frequency, attrs.length), False))
    if window is not None:
        term *= cast(b.read(1, n), F64)
    return b.sum(outer, term, over=(n,))


# ---- mel_weight_matrix ---------------------------------------------------------------------------


def _mel_infer(
    attrs: MelAttrs, rate: TensorType, lower: TensorType, upper: TensorType
) -> TensorType:
    require(attrs.to.is_float, f"mel weights may not be {attrs.to}")
    scalar = tensor(F64)
    require(rate == lower == upper == scalar, "the rate and the edges are scalars of f64")
    return tensor(attrs.to, attrs.length // 2 + 1, attrs.bins)


def _mel_reference(attrs: MelAttrs, rate: Array, lower: Array, upper: Array) -> Array:
    bins, length = sizes((attrs.bins, attrs.length))
    low_mel, high_mel = (2595 * np.log10(1 + f / 700) for f in (lower, upper))
    mels = low_mel + np.arange(bins + 2) * ((high_mel - low_mel) / (bins + 2))
    hertz = 700 * (10 ** (mels / 2595) - 1)
    edges = [int(v) for v in np.floor((length + 1) * hertz / rate)]
    y = np.zeros((length // 2 + 1, bins))
    for band in range(bins):
        low, peak, high = edges[band : band + 3]
        for place in range(low, peak + 1):
            y[place, band] = 1 if peak == low else (place - low) / (peak - low)
        for place in range(peak, high):
            y[place, band] = (high - place) / (high - peak)
    return y.astype(attrs.to.carrier)


def _edge_stage(b: ExprBuilder, attrs: MelAttrs) -> StageRef:
    """Appends a stage with the positions in the spectrum where bands begin, peak and end."""
    (n,) = b.iters(attrs.bins + 2)
    rate = b.read(0)
    low, high = (fn("log", b.read(k) / 700.0 + 1.0) for k in (1, 2))
    step = (high - low) / index_value(attrs.bins + 2, F64)
    mel = low + step * index_value(n, F64)
    hertz = (fn("exp", mel) - 1.0) * 700.0
    place = hertz * index_value(attrs.length + 1, F64) / rate
    return b.stage((n,), cast(fn("floor", place), I64))


def _mel_expr(
    b: ExprBuilder, attrs: MelAttrs, rate: TensorType, lower: TensorType, upper: TensorType
) -> StageRef:
    edges = _edge_stage(b, attrs)
    i, j = b.iters(attrs.length // 2 + 1, attrs.bins)
    dtype = widened(attrs.to)
    low, peak, high = (b.read(edges, j + n) for n in range(3))
    place = index_value(i, I64)
    rise = _share(place - low, peak - low, dtype)
    fall = _share(high - place, high - peak, dtype)
    falling = (place >= peak) & (place < high)
    rising = (place >= low) & (place <= peak)
    value = choose(falling, fall, choose(rising, rise, 0.0))
    return b.stage((i, j), cast(value, attrs.to))


def _share(part: Scalar, width: Scalar, dtype: DType) -> Scalar:
    quotient = cast(part, dtype) / fn("max", cast(width, dtype), 1.0)
    return choose(fn("eq", width, 0), 1.0, quotient)


# ---- rows of the op table ------------------------------------------------------------------------

OPS = (
    _window_row("hann_window", (0.5, -0.5), "The Hann window."),
    _window_row("hamming_window", (25 / 46, -21 / 46), "The Hamming window."),
    _window_row("blackman_window", (0.42, -0.5, 0.08), "The Blackman window."),
    op_row(
        "dft", DftAttrs, _dft_infer, _dft_reference, FLOATS,
        "The discrete Fourier transform along an axis, or its inverse.",
        Tolerance.ACCUMULATE,
        expr=_dft_expr,
    ),
    op_row(
        "stft", StftAttrs, _stft_infer, _stft_reference, FLOATS,
        "Fourier transforms of overlapping frames; operands (signal, window).",
        Tolerance.ACCUMULATE,
        expr=_stft_expr,
    ),
    op_row(
        "mel_weight_matrix", MelAttrs, _mel_infer, _mel_reference, FLOATS,
        "Triangular filters that turn a spectrum into mel bands.",
        Tolerance.ACTIVATION,
        expr=_mel_expr,
    ),
)  # fmt: skip
