"""Converters of operators that choose elements: by index, by diagonal, by what the data say."""

from collections.abc import Sequence

from tcc.frontends.onnx.axes import bound_sizes
from tcc.frontends.onnx.context import LARGEST, Converters, NodeContext, Results
from tcc.frontends.scope import Operand
from tcc.ir.index import Index, as_int, const, floordiv, maximum, minimum
from tcc.ir.types import I64, STRING
from tcc.ops.shapes import replaced


def _fresh_size(ctx: NodeContext) -> Index:
    return ctx.session.fresh_symbol(f"{next(iter(ctx.names), 'size')}.count")


# ---- sizes that data decide ----------------------------------------------------------------------


def _compress(ctx: NodeContext) -> Results:
    x = ctx.input(0)
    axis = ctx.axis_of("axis", x.rank) if ctx.has("axis") else None
    return ctx.emit("compress", x, ctx.input(1), axis=axis, size=_fresh_size(ctx))


def _unique(ctx: NodeContext) -> Results:
    x = ctx.input(0)
    axis = ctx.axis_of("axis", x.rank) if ctx.has("axis") else None
    in_order = ctx.flag("sorted")
    if x.dtype is STRING:
        # Handles have no order: the strings' places in it stand for them.
        ranks, ordered = ctx.emit_all("string_rank", [x])
        values, *rest = ctx.emit_all(
            "unique", [ranks], axis=axis, sorted=in_order, size=_fresh_size(ctx)
        )
        return [ctx.emit("gather", ordered, values, axis=0), *rest]
    return ctx.emit_all("unique", [x], axis=axis, sorted=in_order, size=_fresh_size(ctx))


def _non_max_suppression(ctx: NodeContext) -> Results:
    boxes, scores, *limits = ctx.inputs
    return ctx.emit_all(
        "non_max_suppression",
        [boxes, scores, *(o and ctx.reshape(o, ()) for o in limits)],
        center_point_box=ctx.integer("center_point_box"),
        size=_fresh_size(ctx),
    )


# ---- indices -------------------------------------------------------------------------------------


def _one_hot(ctx: NodeContext) -> Results:
    indices, depth, values = ctx.present(3)
    axis = ctx.axis_of("axis", indices.rank + 1)
    if depth.known is None:
        depth = ctx.cast(depth, I64)
    size = ctx.size(depth, "the depth")
    return ctx.emit("one_hot", indices, values, axis=axis, depth=size)


def _scatter(ctx: NodeContext) -> Results:
    """ScatterElements as it was called first."""
    axis = ctx.axis_of("axis", ctx.input(0).rank)
    return ctx.emit("scatter_elements", *ctx.inputs, axis=axis)


# ---- places --------------------------------------------------------------------------------------


def _trilu(ctx: NodeContext) -> Results:
    x = ctx.input(0)
    given = ctx.optional(1)
    k = const(0) if given is None else ctx.size(given, "k", lo=-LARGEST)
    return ctx.emit("trilu", x, upper=ctx.flag("upper"), k=k)


def _eye_like(ctx: NodeContext) -> Results:
    x = ctx.input(0)
    return ctx.emit("eye_like", x, to=ctx.dtype("dtype", x.dtype), k=ctx.integer("k"))


def _depth_to_space(ctx: NodeContext) -> Results:
    x, block, mode = ctx.input(0), ctx.integer("blocksize"), ctx.text("mode", "DCR")
    _holds_whole_blocks(ctx, x, (1,), block * block)
    return ctx.emit("depth_to_space", x, blocksize=block, mode=mode)


def _holds_whole_blocks(ctx: NodeContext, x: Operand, axes: Sequence[int], block: int) -> None:
    """Every run checks that `block` divides axes of symbolic size; ops refuse other ones."""
    for size in (x.shape[n] for n in axes if n < x.rank and block > 0):
        if as_int(size % block) is None:
            ctx.require(size % block, const(0), f"blocks of {block} take all of an axis")


def _space_to_depth(ctx: NodeContext) -> Results:
    x, block = ctx.input(0), ctx.integer("blocksize")
    _holds_whole_blocks(ctx, x, (2, 3), block)
    if ctx.text("mode", "DCR") == "DCR":
        return ctx.emit("space_to_depth", x, blocksize=block)
    if x.rank != 4 or block < 1:
        raise ctx.fail(f"blocks of {block} in {x.type!r}")
    n, c, h, w = x.shape
    rows, columns = floordiv(h, block), floordiv(w, block)
    split = ctx.reshape(x, (n, c, rows, block, columns, block))
    moved = ctx.transpose(split, (0, 1, 3, 5, 2, 4))
    return ctx.reshape(moved, (n, c * block * block, rows, columns))


def _centered(ctx: NodeContext, x: Operand, axis: int, size: Index) -> Operand:
    """`x` with one axis cut or padded to `size` around its centre."""
    own = x.shape[axis]
    less, more = maximum(own - size, 0), maximum(size - own, 0)
    parts = (less // 2, minimum(own, size), more // 2, more - more // 2)
    start, kept, in_front, behind = bound_sizes(ctx, parts)
    before, after = [const(0)] * x.rank, [const(0)] * x.rank
    before[axis], after[axis] = in_front, behind
    made = ctx.slice_axis(x, axis, start, kept)
    if (in_front, behind) != (const(0), const(0)):
        made = ctx.emit("pad", made, before=tuple(before), after=tuple(after), mode="constant")
    return ctx.reshape(made, replaced(x.shape, axis, size))


def _center_crop_pad(ctx: NodeContext) -> Results:
    """Cuts or pads around the centre; the odd element goes to the end."""
    x = ctx.input(0)
    wanted = ctx.sizes(ctx.input(1), "the shape")
    axes = ctx.axes(ctx.integers("axes", range(x.rank)), x.rank)
    if len(wanted) != len(axes):
        raise ctx.fail(f"{len(wanted)} sizes for {len(axes)} axes")
    for axis, size in zip(axes, wanted, strict=True):
        x = _centered(ctx, x, axis, size)
    return x


CONVERTERS: Converters = {
    "NonZero": lambda ctx: ctx.emit("non_zero", ctx.input(0), size=_fresh_size(ctx)),
    "Compress": _compress,
    "Unique": _unique,
    "NonMaxSuppression": _non_max_suppression,
    "OneHot": _one_hot,
    "Scatter": _scatter,
    "Trilu": _trilu,
    "EyeLike": _eye_like,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "CenterCropPad": _center_crop_pad,
}
