"""Converters of Fourier transforms, spectrograms and mel weights."""

from tcc.frontends.emit import checked_axis, emit
from tcc.frontends.onnx.axes import around, bound_sizes, exchanged, run_axes
from tcc.frontends.onnx.context import Converters, NodeContext, Results, static_ints
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.index import const
from tcc.ir.types import F64, DType


def _dft(
    ctx: NodeContext, x: Operand, length: Operand | None = None, axis_operand: Operand | None = None
) -> Results:
    if axis_operand is None:
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
    if length_operand is not None:
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
    if frame is not None:
        length = frame.as_size("frame_length", lo=1)
    elif window is not None:
        length = window.shape[0]
    else:
        raise Refusal("neither a window nor frame_length says how long a frame is")
    if x.rank == 3 and x.shape[2] is const(2) and onesided:
        raise Refusal("onesided spectra belong to real signals")
    return x.emit_all("stft", window, step=stride, length=length, onesided=onesided)


def _mel_weights(ctx: NodeContext, *, output_datatype: DType) -> Results:
    bins, length = (ctx.input(n).as_size("a mel parameter", lo=1) for n in range(2))
    scalars = [ctx.input(n).cast(F64).reshape(()) for n in range(2, 5)]
    return emit("mel_weight_matrix", *scalars, bins=bins, length=length, to=output_datatype)


CONVERTERS: Converters = {
    "DFT": _dft,
    "STFT": _stft,
    "MelWeightMatrix": _mel_weights,
}
