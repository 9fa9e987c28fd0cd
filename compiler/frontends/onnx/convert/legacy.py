"""Operators of opsets 1 to 6 whose meaning differs from opset 7.

All other operators are imported as those of opset 7. In the old opsets an attribute enabled
broadcasting. The attribute `axis` gave the first operand's axis to which the second operand's first
axis corresponds.
"""

from onnx import TensorProto
from tcc.frontends.emit import concat
from tcc.frontends.onnx.context import Converter, Converters, NodeContext, Results, named
from tcc.frontends.onnx.convert.normalization import inference_norm
from tcc.frontends.onnx.convert.resize import upsampled
from tcc.frontends.onnx.rows import OLDEST_ROWS, bound_row
from tcc.frontends.onnx.tensors import element_type
from tcc.frontends.operand import Operand, Refusal


def _placed(ctx: NodeContext, x: Operand, y: Operand) -> Operand:
    """Appends axes of extent one to `y`, so that its first axis corresponds to axis `axis` of
    `x`."""
    if not ctx.flag("broadcast") or not ctx.has("axis"):
        return y
    behind = x.rank - ctx.axis_of("axis", x.rank) - y.rank
    if behind < 0:
        raise Refusal(f"{y.type!r} does not fit {x.type!r} from axis {ctx.integer('axis')} on")
    return y.trailing(behind)


def _binary(ctx: NodeContext, x: Operand, y: Operand) -> Results:
    row = bound_row("", ctx.node.op_type, OLDEST_ROWS)
    assert row is not None
    return x.emit(row.name, _placed(ctx, x, y))


def _p_relu(x: Operand, slope: Operand) -> Results:
    """Converts PRelu with one slope, or one slope for each channel."""
    if slope.type.static_shape not in ((), (1,)) and x.rank > 1:
        slope = slope.trailing(x.rank - 2)
    return x.prelu(slope)


def _batch_normalization(ctx: NodeContext) -> Results:
    _for_inference(ctx)
    return inference_norm(ctx)


def _dropout(ctx: NodeContext, x: Operand) -> Results:
    _for_inference(ctx)
    return x


def _for_inference(ctx: NodeContext) -> None:
    if not ctx.flag("is_test"):
        raise Refusal("it is in training mode", "export the model for inference")


def _concat(ctx: NodeContext) -> Results:
    parts = ctx.present()
    return concat(parts, ctx.axis_of("axis", parts[0].rank, 1))


def _cast(ctx: NodeContext, x: Operand) -> Results:
    if ctx.opset >= 6:
        return x.cast(ctx.dtype("to"))
    name = ctx.text("to").upper()
    number = dict(TensorProto.DataType.items()).get(name)
    if number is None:
        raise Refusal(f"there is no element type {name[:40]}")
    return x.cast(element_type(number))


def _upsample(ctx: NodeContext, x: Operand, *, height_scale: float, width_scale: float) -> Results:
    return upsampled(ctx, x, (1.0,) * (x.rank - 2) + (height_scale, width_scale))


_BINARY = tuple("Add Sub Mul Div Pow And Or Xor Equal Greater Less".split())

CONVERTERS: Converters = {
    **named(_p_relu, _batch_normalization, _dropout, _concat, _cast, _upsample),
    **dict.fromkeys(_BINARY, _binary),
}
# Operators whose oldest form has other parameters, and the first opset without that form.
_CHANGED = {"Reshape": 5, "Pad": 2, "Tile": 6, "Split": 2}


def legacy_converter(ctx: NodeContext) -> Converter | None:
    """Returns the converter of an operator of opsets 1 to 6 that differs from opset 7, else None.

    Raises `UserError` for the oldest forms of a few operators, which are not supported.
    """
    if ctx.domain or ctx.opset >= OLDEST_ROWS:
        return None
    if ctx.opset < _CHANGED.get(ctx.node.op_type, 1):
        raise Refusal(
            f"its form of opset {ctx.opset} is not supported",
            "convert the model with onnx.version_converter, or export it again",
        )
    return CONVERTERS.get(ctx.node.op_type)
