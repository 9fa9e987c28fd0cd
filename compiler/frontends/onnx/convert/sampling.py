"""Converters of operators that read images at computed positions."""

from tcc.frontends.emit import counted, size_scalar, stack, widened
from tcc.frontends.onnx.context import Converters, NodeContext, Results, named
from tcc.frontends.onnx.convert.window import window_attrs
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand
from tcc.ir.index import const, maximum
from tcc.ir.types import F64, element_count
from tcc.ops.algebra.window import window_count
from tcc.ops.shapes import replaced
from tcc.zipped import zip_equal


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
    for axis, (column, extent) in enumerate(zip_equal(reversed(columns), image)):
        width = size_scalar(maximum(extent - align_corners, 1), wide.dtype)
        place = (counted(extent) * 2 - size_scalar(extent - 1)).cast(wide.dtype) / width
        grid = grid + column * place.reshape((*replaced(ones, axis, extent), 1))
    return grid.cast(theta.dtype)


def _deform_conv(
    ctx: NodeContext,
    x: Operand,
    weight: Operand,
    offset: Operand,
    bias: Operand | None = None,
    mask: Operand | None = None,
    *,
    offset_group: int,
) -> Results:
    """Converts DeformConv: samples of the image at shifted places, times a matrix of weights.

    `offset` has a row and a column for each element of the kernel and for each result. Each of
    `offset_group` groups of channels has offsets of its own.
    """
    attrs = window_attrs(ctx, x.ranked(4), weight)
    filters, depth, *kernel = weight.shape
    batch, channels, *image = x.shape
    lists = [attrs[name] for name in ("strides", "before", "after", "dilations")]
    counts = [*map(window_count, image, kernel, *lists)]
    taps, images, group = element_count(tuple(kernel)), batch * offset_group, attrs["group"]
    for axis, size in enumerate((batch, taps * (2 * offset_group), *counts)):
        offset = offset.sized(axis, size, "each element of a kernel has an offset")
    shift = offset.reshape((images, *kernel, 2, *counts)).cast(F64)
    ends = []
    for axis in (1, 0):
        stride, before, _, dilation = (entries[axis] for entries in lists)
        first = counted(counts[axis]) * stride - size_scalar(before)
        place = (counted(kernel[axis]) * dilation).unsqueeze(1) + first
        shape = [const(1)] * 4
        shape[axis], shape[axis + 2] = place.shape
        at = shift.element(3, axis) + place.reshape(shape).cast(F64)
        # The coordinates of `grid_sample` are -1 and 1 at the outer edges of the image. They are
        # f64, so that whole places stay whole.
        ends.append((at * 2 + 1) / size_scalar(image[axis], F64) - 1)
    cells = (taps * counts[0], counts[1])
    grid = stack(ends, 5).reshape((images, *cells, 2))
    samples = x.reshape((images, channels // offset_group, *image)).grid_sample(
        grid, mode="linear", padding_mode="zeros", align_corners=False
    )
    if mask:
        samples = samples * mask.reshape((images, 1, *cells))
    columns = samples.reshape((batch, group, depth * taps, element_count(tuple(counts))))
    rows = weight.reshape((group, filters // group, depth * taps))
    y = (rows @ columns).reshape((batch, filters, *counts))
    return y + bias.reshape((filters, 1, 1)) if bias else y


def _roi_align(ctx: NodeContext) -> Results:
    half = ctx.opset >= 16 and ctx.text("coordinate_transformation_mode") == "half_pixel"
    return emit_row("roi_align", *ctx.present(3), half_pixel=half)


CONVERTERS: Converters = named(_grid_sample, _affine_grid, _deform_conv, _roi_align)
