"""Converters of quantisation, and of operators on quantised tensors."""

from tcc.frontends.emit import emit, emit_all
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.onnx.convert.window import window_attrs
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand
from tcc.ir.index import Index, const
from tcc.ir.types import F32, U8


def _axis(ctx: NodeContext, x: Operand, scale: Operand) -> int:
    """Returns the axis of a scale with several elements; a scale of one element has no axis, so 0
    stands for it."""
    if scale.rank == 0 or scale.type.static_shape == (1,):
        return 0
    return ctx.axis_of("axis", x.rank, 1)


def _zero_point(ctx: NodeContext, scale: Operand) -> Operand | None:
    """Returns the zero point, reshaped to the rank of the scale."""
    zero = ctx.optional(2)
    return zero if not zero or zero.rank == scale.rank else zero.reshape(scale.shape)


def _quantize(ctx: NodeContext, x: Operand, scale: Operand) -> Results:
    zero = _zero_point(ctx, scale)
    to = zero.dtype if zero else U8
    if ctx.integer("output_dtype", 0):
        to = ctx.dtype("output_dtype")
    precision = F32
    if ctx.integer("precision", 0):
        precision = ctx.dtype("precision")
    axis = _axis(ctx, x, scale)
    return emit_row("quantize_linear", x, scale, zero, to=to, axis=axis, precision=precision)


def _dequantize(ctx: NodeContext, x: Operand, scale: Operand) -> Results:
    return emit_row(
        "dequantize_linear",
        x,
        scale,
        _zero_point(ctx, scale),
        axis=_axis(ctx, x, scale),
        to=ctx.dtype("output_dtype") if ctx.integer("output_dtype", 0) else None,
    )


def _conv_integer(ctx: NodeContext, x: Operand, weight: Operand) -> Results:
    return emit_all("conv_integer", ctx.inputs, **window_attrs(ctx, x, weight))


def _q_linear_mat_mul(ctx: NodeContext) -> Results:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = ctx.present(8)
    sums = a.matmul_integer(b, one_number(a_zero), one_number(b_zero))
    rows = _factor(a_scale, a.shape[-2] if a.rank > 1 else None)
    columns = _factor(b_scale, b.shape[-1] if b.rank > 1 else None)
    if rows.rank and b.rank > 1:
        rows = rows.unsqueeze(1)
    return _requantised(sums, rows * columns / _factor(y_scale), y_zero)


def _q_linear_conv(ctx: NodeContext) -> Results:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = ctx.present(8)
    zeros = (one_number(x_zero), one_number(w_zero))
    sums = emit("conv_integer", x, w, *zeros, **window_attrs(ctx, x, w))
    channels, bias = w.shape[0], ctx.optional(8)
    of_channels = [channels, *[const(1)] * (x.rank - 2)]
    if bias:
        sums = sums + bias.reshape(of_channels)
    filters = _factor(w_scale, channels)
    if filters.rank:
        filters = filters.reshape(of_channels)
    return _requantised(sums, _factor(x_scale) * filters / _factor(y_scale), y_zero)


def one_number(x: Operand) -> Operand:
    """Returns a scale or zero point, as a scalar if it has one element."""
    return x.reshape(()) if x.type.static_shape == (1,) else x


def _factor(scale: Operand, size: Index | None = None) -> Operand:
    """Returns a scale in f32: one number, or else, if `size` is not None, `size` numbers."""
    scale = one_number(scale).cast(F32)
    if size is None:
        return scale.reshape(())
    return scale.expand((size,)) if scale.rank else scale


def _requantised(sums: Operand, factor: Operand, zero: Operand) -> Operand:
    """Returns sums * factor + zero, rounded to nearest even and limited to the type of `zero`."""
    rounded = (sums.cast(F32) * factor).emit("round")
    return (rounded + zero.reshape(()).cast(F32)).cast(zero.dtype)


CONVERTERS: Converters = {
    **named(_conv_integer),
    "QLinearMatMul": _q_linear_mat_mul,
    "QLinearConv": _q_linear_conv,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    # Microsoft's ops had 16-bit types before ONNX's ops.
    "com.microsoft.QuantizeLinear": _quantize,
    "com.microsoft.DequantizeLinear": _dequantize,
}
