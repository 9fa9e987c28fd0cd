"""Converters of operators that select elements: by index, by diagonal, or data-dependently."""

from tcc.frontends.emit import checked_axes, counted, fresh_count, size_scalar
from tcc.frontends.onnx.axes import bound_sizes
from tcc.frontends.onnx.context import LARGEST, Axis, Converters, NodeContext, Results, named
from tcc.frontends.onnx.rows import emit_row
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.index import Index, const, maximum, minimum
from tcc.ir.types import I64, STRING
from tcc.ops.shapes import Shape, replaced
from tcc.zipped import zip_equal

# ---- sizes that data decide ----------------------------------------------------------------------


def _compress(x: Operand, mask: Operand, *, axis: Axis | None = None) -> Results:
    return x.compress(mask, axis=axis, size=fresh_count())


def _unique(x: Operand, *, sorted: bool, axis: Axis | None = None) -> Results:
    if x.dtype is STRING:
        # Handles of strings have no order, so the strings are replaced by their ranks in sorted
        # order.
        ranks, ordered = x.emit_all("string_rank")
        values, *other_results = ranks.emit_all(
            "unique", axis=axis, sorted=sorted, size=fresh_count()
        )
        return [ordered.gather(values, axis=0), *other_results]
    return x.emit_all("unique", axis=axis, sorted=sorted, size=fresh_count())


def _non_max_suppression(ctx: NodeContext) -> Results:
    boxes, scores, *limits = ctx.inputs
    scalars = (o and o.reshape(()) for o in limits)
    return emit_row("non_max_suppression", boxes, scores, *scalars, size=fresh_count())


# ---- indices -------------------------------------------------------------------------------------


def _one_hot(ctx: NodeContext, indices: Operand, depth: Operand, values: Operand) -> Results:
    axis = ctx.axis_of("axis", indices.rank + 1)
    if depth.index_elements is None:
        depth = depth.cast(I64)
    size = depth.as_size("the depth")
    places = indices.cast(I64).unsqueeze(axis)
    from_front = (places < 0).select(places + size_scalar(size), places)
    along = counted(size).trailing(indices.rank - axis)
    pair = values.ranked(1).sized(0, const(2), "the values are off and on")
    off, on = (pair.element(0, n) for n in range(2))
    return from_front.equals(along).select(on, off)


def _reverse_sequence(
    x: Operand, lengths: Operand, *, batch_axis: int = 1, time_axis: int = 0
) -> Results:
    """Reverses the first steps of each sequence, as many as `lengths` says."""
    if x.rank < 2 or {batch_axis, time_axis} != {0, 1}:
        raise Refusal(f"sequences along axis {time_axis} of {x.type!r}, not along axis 0 or 1")
    rows = x.swap_axes(0, batch_axis)
    batch, extent = rows.shape[:2]
    step = counted(extent)
    lengths = lengths.ranked(1).sized(0, batch, "the sequences have a length each")
    back = lengths.unsqueeze(1) - step - 1
    place = (back < 0).select(step, back).minimum(size_scalar(extent - 1)).maximum(0)
    return rows.gather_nd(place.unsqueeze(2), batch_dims=1).swap_axes(0, batch_axis)


def _scatter(ctx: NodeContext) -> Results:
    """Converts ScatterElements under its older name."""
    return emit_row("scatter_elements", *ctx.inputs)


# ---- diagonals, blocks, crops --------------------------------------------------------------------


def _trilu(x: Operand, k_operand: Operand | None = None) -> Results:
    k = k_operand.as_size("k", lo=-LARGEST) if k_operand else const(0)
    return emit_row("trilu", x, k=k)


def _eye_like(ctx: NodeContext, x: Operand, *, k: int) -> Results:
    rows, columns = x.ranked(2).shape
    diagonal = counted(columns) - counted(rows).unsqueeze(1)
    return diagonal.equals(k).cast(ctx.dtype("dtype", x.dtype))


def _image(x: Operand, block: int) -> Shape:
    """Returns the shape of an image [batch, channel, row, column] that is read in blocks."""
    if x.rank != 4 or block < 1:
        raise Refusal(f"blocks of {block} in {x.type!r}")
    return x.shape


def _depth_to_space(x: Operand, *, blocksize: int, mode: str = "DCR") -> Results:
    """Converts DepthToSpace: groups of `blocksize ** 2` channels become blocks of the image.

    The position in the block is the outer part of the channel number if `mode` is "DCR", and the
    inner part if it is "CRD".
    """
    n, c, h, w = _image(x, blocksize)
    count = c // (blocksize * blocksize)
    if mode not in ("DCR", "CRD"):
        raise Refusal(f"the mode {mode[:40]!r} is not known")
    position = (blocksize, blocksize)
    split = (*position, count) if mode == "DCR" else (count, *position)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    blocks = x.reshape((n, *split, h, w)).transpose(order)
    return blocks.reshape((n, count, h * blocksize, w * blocksize))


def _space_to_depth(x: Operand, *, blocksize: int, mode: str = "DCR") -> Results:
    n, c, h, w = _image(x, blocksize)
    rows, columns = h // blocksize, w // blocksize
    split = x.reshape((n, c, rows, blocksize, columns, blocksize))
    transposed = split.transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return transposed.reshape((n, c * blocksize * blocksize, rows, columns))


def _centered(x: Operand, axis: int, size: Index) -> Operand:
    """Returns `x` cut or padded to `size` along one axis, with its centre in the centre of the
    result."""
    extent = x.shape[axis]
    less, more = maximum(extent - size, 0), maximum(size - extent, 0)
    parts = (less // 2, minimum(extent, size), more // 2, more - more // 2)
    start, kept_size, in_front, behind = bound_sizes(parts)
    before, after = [const(0)] * x.rank, [const(0)] * x.rank
    before[axis], after[axis] = in_front, behind
    result = x.slice_axis(axis, start, kept_size)
    if (in_front, behind) != (const(0), const(0)):
        result = result.pad(before=tuple(before), after=tuple(after), mode="constant")
    return result.reshape(replaced(x.shape, axis, size))


def _center_crop_pad(ctx: NodeContext, x: Operand, shape: Operand) -> Results:
    """Converts CenterCropPad, which cuts or pads around the centre.

    If the number of elements is odd, one more is cut or added at the end.
    """
    target_sizes = shape.as_sizes("the shape")
    axes = checked_axes(ctx.integers("axes", range(x.rank)), x.rank)
    if len(target_sizes) != len(axes):
        raise Refusal(f"{len(target_sizes)} sizes for {len(axes)} axes")
    for axis, size in zip_equal(axes, target_sizes):
        x = _centered(x, axis, size)
    return x


CONVERTERS: Converters = {
    **named(
        _compress,
        _unique,
        _non_max_suppression,
        _one_hot,
        _reverse_sequence,
        _scatter,
        _trilu,
        _eye_like,
        _depth_to_space,
        _space_to_depth,
        _center_crop_pad,
    ),
    "NonZero": lambda x: x.non_zero(size=fresh_count()),
}
