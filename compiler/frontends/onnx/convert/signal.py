"""Converters of Fourier transforms, spectrograms and mel weights."""

from tcc.frontends.emit import checked_axis, counted, size_scalar
from tcc.frontends.onnx.axes import around, bound_sizes, exchanged, run_axes
from tcc.frontends.onnx.context import Converters, NodeContext, Results, static_ints
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.types import F64, I64, DType


def _dft(
    ctx: NodeContext, x: Operand, length: Operand | None = None, axis_operand: Operand | None = None
) -> Results:
    if not axis_operand:
        axis = ctx.integer("axis", -2)
    elif axis_operand.array is None:
        return _late_dft(ctx, x, length, axis_operand)
    else:
        axis = static_ints(axis_operand, "the axis")[0]
    return _transform(ctx, x, checked_axis(axis, x.rank), length)


def _late_dft(ctx: NodeContext, x: Operand, length: Operand | None, operand: Operand) -> Operand:
    """Transforms along an axis that is known only at run time."""
    (axis,) = run_axes(operand, x.rank)
    spectrum = _transform(ctx, around(x, axis, last=1), 1, length)
    shape = bound_sizes(exchanged(x.shape[:-1], axis, spectrum.shape[1]))
    return spectrum.reshape((*shape, spectrum.shape[-1]))


def _transform(ctx: NodeContext, x: Operand, axis: int, length_operand: Operand | None) -> Operand:
    inverse, onesided = ctx.flag("inverse"), ctx.flag("onesided")
    if length_operand:
        length = length_operand.as_size("dft_length")
    elif inverse and onesided:
        length = (x.shape[axis] - 1) * 2
    else:
        length = x.shape[axis]
    return x.dft(axis=axis, length=length, inverse=inverse, onesided=onesided)


def _stft(
    x: Operand,
    step: Operand,
    window: Operand | None = None,
    frame: Operand | None = None,
    *,
    onesided: bool,
) -> Results:
    stride = step.as_size("frame_step", lo=1)
    if frame:
        length = frame.as_size("frame_length", lo=1)
    elif window:
        length = window.shape[0]
    else:
        raise Refusal("neither a window nor frame_length says how long a frame is")
    signal = x if x.ranked(2, 3).rank == 3 else x.unsqueeze(2)
    starts = counted((x.shape[1] - length) // stride + 1).unsqueeze(1) * size_scalar(stride)
    frames = signal.gather(starts + counted(length), axis=1)
    if window:
        window = window.ranked(1).sized(0, length, "a window covers a frame")
        frames = frames * window.reshape((length, 1))
    return frames.dft(axis=2, length=length, inverse=False, onesided=onesided)


def _mel_weights(ctx: NodeContext, *, output_datatype: DType) -> Results:
    """Converts MelWeightMatrix: triangular filters that turn a spectrum into mel bands.

    `edges` are the positions in the spectrum where bands begin, peak and end.
    """
    bins, length = (ctx.input(n).as_size("a mel parameter", lo=1) for n in range(2))
    rate, *ends = (ctx.input(n).cast(F64).reshape(()) for n in range(2, 5))
    low, high = ((end / 700 + 1).log() for end in ends)
    step = (high - low) / size_scalar(bins + 2, F64)
    hertz = ((low + step * counted(bins + 2).cast(F64)).exp() - 1) * 700
    edges = (hertz * size_scalar(length + 1, F64) / rate).floor().cast(I64)
    begin, peak, end = (edges.slice_axis(0, n, bins) for n in range(3))
    place = counted(length // 2 + 1).unsqueeze(1)
    rise, fall = _share(place - begin, peak - begin), _share(end - place, end - peak)
    rises, falls = (place >= begin) & (place <= peak), (place >= peak) & (place < end)
    return falls.select(fall, rises.select(rise, 0)).cast(output_datatype)


def _share(part: Operand, width: Operand) -> Operand:
    """Returns part / width in f64; 1 where the width is 0."""
    return width.equals(0).select(1, part.cast(F64) / width.maximum(1).cast(F64))


CONVERTERS: Converters = {
    "DFT": _dft,
    "STFT": _stft,
    "MelWeightMatrix": _mel_weights,
}
