"""Converters of operators that read images at computed positions."""

from tcc.frontends.emit import emit_all
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.onnx.convert.window import window_attrs
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand
from tcc.ops.algebra.window import ConvAttrs


def _grid_sample(x: Operand, grid: Operand, *, mode: str) -> Results:
    # Opset 16 names the methods after the two-dimensional case.
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return emit_row("grid_sample", x, grid, mode=mode)


def _deform_conv(ctx: NodeContext, x: Operand, weight: Operand, *, offset_group: int) -> Results:
    conv = ConvAttrs(**window_attrs(ctx, x, weight))
    return emit_all("deform_conv", ctx.inputs, conv=conv, offset_group=offset_group)


def _roi_align(ctx: NodeContext) -> Results:
    half = ctx.opset >= 16 and ctx.text("coordinate_transformation_mode") == "half_pixel"
    return emit_row("roi_align", *ctx.present(3), half_pixel=half)


CONVERTERS: Converters = {
    **named(_grid_sample, _deform_conv, _roi_align),
}
