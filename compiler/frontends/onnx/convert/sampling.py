"""Converters of operators that read images at computed positions."""

from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.convert.window import window_attrs
from tcc.frontends.onnx.rows import emit_row
from tcc.ops.algebra.window import ConvAttrs


def _grid_sample(ctx: NodeContext) -> Results:
    mode = ctx.text("mode")
    # Opset 16 names the methods after the two-dimensional case.
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return emit_row(ctx, "grid_sample", *ctx.present(2), mode=mode)


def _affine_grid(ctx: NodeContext) -> Results:
    size = ctx.sizes(ctx.input(1), "the size")
    return emit_row(ctx, "affine_grid", ctx.input(0), size=size)


def _deform_conv(ctx: NodeContext) -> Results:
    conv = ConvAttrs(**window_attrs(ctx, *ctx.present(2)))
    groups = ctx.integer("offset_group")
    return ctx.emit_all("deform_conv", ctx.inputs, conv=conv, offset_group=groups)


def _roi_align(ctx: NodeContext) -> Results:
    half = ctx.opset >= 16 and ctx.text("coordinate_transformation_mode") == "half_pixel"
    return emit_row(ctx, "roi_align", *ctx.present(3), half_pixel=half)


CONVERTERS: Converters = {
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
    "DeformConv": _deform_conv,
    "RoiAlign": _roi_align,
}
