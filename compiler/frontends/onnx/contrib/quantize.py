"""Converters of com.microsoft's operators on quantised tensors.

    QLinearAdd(a, b)  ->  quantize_linear(add(dequantize_linear(a), dequantize_linear(b)))

Matmuls keep this form too; targets with int8 matmuls recognise it.
"""

from copy import copy

from tcc.frontends.emit import concat, emit, family, filled
from tcc.frontends.onnx.context import Axis, Converter, Converters, NodeContext, Results, named
from tcc.frontends.onnx.contrib.fused import embedded
from tcc.frontends.onnx.contrib.packed_weights import level_type, unpacked
from tcc.frontends.onnx.convert.contract import gemm
from tcc.frontends.onnx.convert.quantize import CONVERTERS as STANDARD_QUANTISED
from tcc.frontends.onnx.convert.quantize import one_number
from tcc.frontends.onnx.convert.reduce import along_axis
from tcc.frontends.onnx.convert.window import CONVERTERS as WINDOWS
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand, Operands, Refusal
from tcc.ir.types import F32, U8


def _floats(ctx: NodeContext, first: int, axis: int = 0) -> Operand:
    """Returns operand `first`, dequantised; the next two operands are its scale and zero point."""
    return _scaled(ctx.input(first), ctx.input(first + 1), ctx.optional(first + 2), axis)


def _scaled(x: Operand, scale: Operand, zero: Operand | None, axis: int = 0) -> Operand:
    zero = zero and zero.reshape(scale.shape)
    return x.dequantize_linear(scale, zero, axis=axis)


def _levels(ctx: NodeContext, y: Operand, scale: int, like: Operand) -> Operand:
    """Quantises `y`; `scale` is the position of the operand with the scale.

    The next operand is the zero point, which also gives the type. Without it, the
    result has the type of `like`.
    """
    step, zero = ctx.input(scale), ctx.optional(scale + 1)
    zero = zero and zero.reshape(step.shape)
    to = zero.dtype if zero else like.dtype
    return y.quantize_linear(step, zero, to=to, axis=0)


# ---- pointwise ---------------------------------------------------------------------------------


@family
def _binary(op: str, ctx: NodeContext, x: Operand) -> Results:
    return _levels(ctx, _floats(ctx, 0).emit(op, _floats(ctx, 3)), 6, x)


@family
def _unary(make: Converter, ctx: NodeContext, x: Operand) -> Results:
    """Applies the converter `make` to the dequantised first input."""
    (result,) = _of(ctx, _floats(ctx, 0)).run(make)
    assert result is not None
    return _levels(ctx, result, 3, x)


def _of(ctx: NodeContext, *inputs: Operand | None) -> NodeContext:
    """Returns a copy of the context with other inputs."""
    other = copy(ctx)
    other.inputs = [*inputs]
    return other


def _softmax(x: Operand, *, axis: Axis = -1, opset: int) -> Operand:
    return along_axis("softmax", x, axis, opset)


def _q_linear_concat(ctx: NodeContext) -> Results:
    parts = [_floats(ctx, n) for n in range(2, len(ctx.inputs), 3)]
    if not parts or len(ctx.inputs) % 3 != 2:
        raise Refusal("operands come by threes, after a scale and a zero point")
    return _levels(ctx, concat(parts, ctx.axis_of("axis", parts[0].rank)), 0, ctx.input(2))


# ---- matmuls ------------------------------------------------------------------------------------


def _q_gemm(ctx: NodeContext, *, transB: bool, alpha: float = 1.0, transA: bool) -> Results:
    """Converts QGemm, an int8 matmul with an i32 bias in the scale of the sums.

    The result is floats if y has no scale.
    """
    a_scale = ctx.input(1)
    if alpha != 1:
        a_scale = a_scale * alpha
    a = _scaled(ctx.input(0), a_scale, ctx.input(2))
    bias = ctx.optional(6)
    if bias:
        bias = bias.cast(F32) * (a_scale * ctx.input(4))
    result = gemm(a, _floats(ctx, 3, axis=0 if transB else 1), bias, transA=transA, transB=transB)
    return result if ctx.optional(7) is None else _levels(ctx, result, 7, ctx.input(0))


def scaled_sums(
    a: Operands,
    c: Operands,
    bias: Operand | None,
) -> Operand:
    """Returns the product of two int8 matrices as floats.

    `a` and `c` each have the levels, the scale, and the zero point or None.
    """
    zeros = [o[2] and one_number(o[2]) for o in (a, c)]
    sums = emit("matmul_integer", a[0], c[0], *zeros)
    step = emit("mul", *(o[1] and one_number(o[1]) for o in (a, c)))
    floats = sums.cast(F32) * step
    return floats + bias if bias else floats


def _mat_mul_integer_to_float(ctx: NodeContext) -> Results:
    a, c = ((ctx.input(n), ctx.input(n + 2), ctx.optional(n + 4)) for n in range(2))
    return scaled_sums(a, c, ctx.optional(6))


def quantised_product(x: Operand, matrix: Operands, bias: Operand | None = None) -> Operand:
    """Quantises `x` by its own range and multiplies it with an int8 matrix.

    `matrix` has the levels, the scale, and the zero point or None.
    """
    return scaled_sums(x.emit_all("dynamic_quantize_linear"), matrix, bias)


def _dynamic_quantize_mat_mul(
    x: Operand,
    levels: Operand,
    scale: Operand,
    zero: Operand | None = None,
    bias: Operand | None = None,
) -> Results:
    return quantised_product(x, (levels, scale, zero), bias)


# ---- tables -------------------------------------------------------------------------------------


def _gather_block_quantized(
    ctx: NodeContext,
    data: Operand,
    indices: Operand,
    scale: Operand,
    zero: Operand | None = None,
    *,
    block_size: int = 128,
    bits: int = 4,
    quantize_axis: Axis = 1,
) -> Results:
    """Gathers rows of a quantised table, in which blocks of levels share a scale.

    Without zero points, levels in bytes are relative to the middle of their range.  Elements of a
    4-bit type are used as they are.
    """
    if data.dtype is U8:
        dtype = level_type(bits)
        if dtype.is_packed:
            data = unpacked(ctx, 0, "the table", dtype)
            zero = zero and unpacked(ctx, 3, "the zero points", dtype)
        if not zero:
            zero = filled(1 << (bits - 1), dtype).expand(scale.shape)
    # A row of zero points fills whole bytes, so it may end with padding.
    if zero and zero.extent(-1) != scale.extent(-1):
        zero = zero.slice_axis(-1, 0, scale.shape[-1])
    rows = data.dequantize_linear(scale, zero, axis=quantize_axis, block_size=block_size)
    return rows.gather(indices, axis=ctx.axis_of("gather_axis", rows.rank, 0))


def _q_embed_layer_normalization(ctx: NodeContext) -> Results:
    """Converts QEmbedLayerNormalization.

    If operand n is a table, operand n + 6 is its scale and operand n + 11 its zero point.
    """
    return embedded(ctx, lambda n: _scaled(ctx.input(n), ctx.input(n + 6), ctx.optional(n + 11)))


# ---- images with channels last, which ONNX Runtime's full optimisation writes --------------------


def _channels_last(make: Converter, always: bool = False) -> Converter:
    def convert(ctx: NodeContext, *, channels_last: bool) -> Results:
        if not (always or channels_last):
            return ctx.run(make)
        x = ctx.input(0)
        inner = _of(ctx, x.moved(-1, 1), *ctx.inputs[1:])
        return [y and y.moved(1, x.rank - 1) for y in inner.run(make)]

    return convert


CONVERTERS: Converters = {
    **named(
        _q_linear_concat,
        _q_gemm,
        _mat_mul_integer_to_float,
        _dynamic_quantize_mat_mul,
        _gather_block_quantized,
        _q_embed_layer_normalization,
    ),
    "QLinearAdd": _binary("add"),
    "QLinearMul": _binary("mul"),
    "QLinearSigmoid": _unary(lambda x: x.sigmoid()),
    "QLinearLeakyRelu": _unary(lambda ctx, x: emit_row("leaky_relu", x)),
    "QLinearSoftmax": _unary(_softmax),
    "QLinearAveragePool": _channels_last(_unary(WINDOWS["AveragePool"])),
    "QLinearGlobalAveragePool": _channels_last(
        _unary(lambda x: x.mean(tuple(range(2, x.rank)), keepdims=True))
    ),
    "QLinearConv": _channels_last(STANDARD_QUANTISED["QLinearConv"]),
    "NhwcMaxPool": _channels_last(WINDOWS["MaxPool"], always=True),
    "NhwcConv": _channels_last(WINDOWS["Conv"], always=True),
}
