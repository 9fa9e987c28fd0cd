"""Converters of operators that read images at computed positions."""

from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.convert.window import window_attrs
from tcc.ops.algebra.window import ConvAttrs


def _grid_sample(ctx: NodeContext) -> Results:
    mode = ctx.text("mode")
    # Opset 16 names the methods after the two-dimensional case.
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return ctx.emit(
        "grid_sample",
        ctx.input(0),
        ctx.input(1),
        mode=mode,
        padding_mode=ctx.text("padding_mode"),
        align_corners=ctx.flag("align_corners"),
    )


def _affine_grid(ctx: NodeContext) -> Results:
    size = ctx.sizes(ctx.input(1), "the size")
    corners = ctx.flag("align_corners")
    return ctx.emit("affine_grid", ctx.input(0), size=size, align_corners=corners)


def _deform_conv(ctx: NodeContext) -> Results:
    conv = ConvAttrs(**window_attrs(ctx, *ctx.present(2)))
    groups = ctx.integer("offset_group")
    return ctx.emit_all("deform_conv", ctx.inputs, conv=conv, offset_group=groups)


def _roi_align(ctx: NodeContext) -> Results:
    half = ctx.opset >= 16 and ctx.text("coordinate_transformation_mode") == "half_pixel"
    return ctx.emit(
        "roi_align",
        *ctx.present(3),
        mode=ctx.text("mode"),
        output_height=ctx.integer("output_height"),
        output_width=ctx.integer("output_width"),
        sampling_ratio=ctx.integer("sampling_ratio"),
        spatial_scale=ctx.real("spatial_scale"),
        half_pixel=half,
    )


CONVERTERS: Converters = {
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
    "DeformConv": _deform_conv,
    "RoiAlign": _roi_align,
}
