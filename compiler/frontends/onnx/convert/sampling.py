"""Converters of operators that read images at computed positions."""

from tcc.frontends.emit import counted, emit_all, size_scalar, widened
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.onnx.convert.window import window_attrs
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand
from tcc.ir.index import const, maximum
from tcc.ops.algebra.window import ConvAttrs
from tcc.ops.shapes import replaced


def _grid_sample(x: Operand, grid: Operand, *, mode: str) -> Results:
    # Opset 16 names the methods after the two-dimensional case.
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return emit_row("grid_sample", x, grid, mode=mode)


def _affine_grid(theta: Operand, size: Operand, *, align_corners: bool) -> Results:
    """Converts AffineGrid: affine maps of the coordinates of an image's elements.

    Coordinates are in [-1, 1], the coordinate along the last axis first. The bounds are the centres
    of the first and the last element if `align_corners`, else their outer edges.
    """
    batch, _, *image = size.as_sizes("the size")
    spatial = len(image)
    for axis, due in enumerate((batch, const(spatial), const(spatial + 1))):
        theta = theta.ranked(3).sized(axis, due, "the maps fit the size")
    wide, ones = widened(theta), [const(1)] * spatial
    columns = [wide.element(2, n).reshape((batch, *ones, spatial)) for n in range(spatial + 1)]
    grid = columns.pop()
    for axis, (column, extent) in enumerate(zip(reversed(columns), image, strict=True)):
        width = size_scalar(maximum(extent - align_corners, 1), wide.dtype)
        place = (counted(extent) * 2 - size_scalar(extent - 1)).cast(wide.dtype) / width
        grid = grid + column * place.reshape((*replaced(ones, axis, extent), 1))
    return grid.cast(theta.dtype)


def _deform_conv(ctx: NodeContext, x: Operand, weight: Operand, *, offset_group: int) -> Results:
    conv = ConvAttrs(**window_attrs(ctx, x, weight))
    return emit_all("deform_conv", ctx.inputs, conv=conv, offset_group=offset_group)


def _roi_align(ctx: NodeContext) -> Results:
    half = ctx.opset >= 16 and ctx.text("coordinate_transformation_mode") == "half_pixel"
    return emit_row("roi_align", *ctx.present(3), half_pixel=half)


CONVERTERS: Converters = {
    **named(_grid_sample, _affine_grid, _deform_conv, _roi_align),
}
