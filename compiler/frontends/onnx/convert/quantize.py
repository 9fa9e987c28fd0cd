"""Converters of quantisation, and of operators on quantised tensors."""

from tcc.frontends.emit import emit_all
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.onnx.convert.window import window_attrs
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand
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
    return zero if zero is None or zero.rank == scale.rank else zero.reshape(scale.shape)


def _quantize(ctx: NodeContext, x: Operand, scale: Operand) -> Results:
    zero = _zero_point(ctx, scale)
    to = U8 if zero is None else zero.dtype
    if ctx.integer("output_dtype", 0):
        to = ctx.dtype("output_dtype")
    precision = F32
    if ctx.integer("precision", 0):
        precision = ctx.dtype("precision")
    axis = _axis(ctx, x, scale)
    return emit_row("quantize_linear", x, scale, zero, to=to, axis=axis, precision=precision)


def _dequantize(ctx: NodeContext, x: Operand, scale: Operand) -> Results:
    zero = _zero_point(ctx, scale)
    return emit_row(
        "dequantize_linear",
        x,
        scale,
        zero,
        axis=_axis(ctx, x, scale),
        to=ctx.dtype("output_dtype") if ctx.integer("output_dtype", 0) else None,
    )


def _conv_integer(ctx: NodeContext, x: Operand, weight: Operand) -> Results:
    attrs = window_attrs(ctx, x, weight)
    return emit_all("conv_integer", ctx.inputs, **attrs)


def _q_linear_conv(ctx: NodeContext) -> Results:
    operands = [*ctx.present(8), ctx.optional(8)]
    attrs = window_attrs(ctx, ctx.input(0), ctx.input(3))
    return emit_all("qlinear_conv", operands, **attrs)


CONVERTERS: Converters = {
    **named(_conv_integer, _q_linear_conv),
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    # Microsoft's ops had 16-bit types before ONNX's ops.
    "com.microsoft.QuantizeLinear": _quantize,
    "com.microsoft.DequantizeLinear": _dequantize,
}
