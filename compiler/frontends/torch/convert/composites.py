"""Converters of operators that torch takes apart itself when it may: archives hold them as traced.

Exported programs are decomposed before the import, and keep torch's own way of taking these apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.frontends.torch.convert.movement import CONVERTERS as MOVEMENT
from tcc.frontends.torch.convert.movement import padded, swap_axes
from tcc.frontends.torch.convert.reduce import CONVERTERS as REDUCE
from tcc.ir.index import as_int, const
from tcc.ir.types import F32, I64

Elementwise = Callable[..., Operand]


def _typed(function: Elementwise, *names: str) -> Converter:
    """A function of the arguments of these names, all in the element type of the result."""

    def convert(ctx: CallContext) -> Operand:
        dtype = ctx.result_dtype()
        return function(ctx, *(ctx.operand(name, dtype) for name in names))

    return convert


def _add_of(op: str) -> Elementwise:
    """self + value * (tensor1 op tensor2)"""

    def convert(ctx: CallContext, x: Operand, a: Operand, b: Operand, value: Operand) -> Operand:
        return ctx.emit("add", x, ctx.emit("mul", value, ctx.emit(op, a, b)))

    return convert


def _lerp(ctx: CallContext, x: Operand, end: Operand, weight: Operand) -> Operand:
    """From the nearer end, as torch does."""
    gap, half = ctx.emit("sub", end, x), ctx.scalar(0.5, x)
    near = ctx.emit("add", x, ctx.emit("mul", weight, gap))
    rest = ctx.emit("sub", ctx.scalar(1, x), weight)
    far = ctx.emit("sub", end, ctx.emit("mul", gap, rest))
    return ctx.where(ctx.emit("less", ctx.emit("abs", weight), half), near, far)


def _times(factor: float) -> Elementwise:
    return lambda ctx, x: ctx.emit("mul", x, ctx.scalar(factor, x))


def _cosine_similarity(ctx: CallContext, x: Operand, y: Operand) -> Operand:
    shape = ctx.broadcast(x.shape, y.shape)
    x, y = ctx.expand(x, shape), ctx.expand(y, shape)
    axes, eps = (ctx.axis_of("dim", x.rank),), ctx.scalar(ctx.real("eps"), x)

    def total(a: Operand, b: Operand) -> Operand:
        product = ctx.emit("mul", a, b)
        return ctx.emit("reduce_sum", product, axes=axes, keepdims=False)

    sizes = [ctx.emit("max", ctx.emit("sqrt", total(v, v)), eps) for v in (x, y)]
    return ctx.emit("div", total(x, y), ctx.emit("mul", *sizes))


# ---- movement ------------------------------------------------------------------------------------


def _tile(ctx: CallContext) -> Operand:
    x, repeats = ctx.operand("self"), ctx.indices("dims")
    repeats = (*[const(1)] * (x.rank - len(repeats)), *repeats)
    x = ctx.reshape(x, (*[1] * (len(repeats) - x.rank), *x.shape))
    return ctx.emit("tile", x, repeats=repeats) if repeats else x


def _meshgrid(ctx: CallContext) -> Sequence[Operand]:
    given = ctx.operands("tensors")
    sizes = [x.shape[0] if x.rank else const(1) for x in given]
    order = list(range(len(given)))
    if ctx.arguments.get("indexing") == "xy" and len(given) > 1:
        order[:2] = [1, 0]
    shape = [sizes[n] for n in order]
    found = []
    for number, x in enumerate(given):
        own = [const(1)] * len(given)
        own[order.index(number)] = sizes[number]
        found.append(ctx.expand(ctx.reshape(x, own), shape))
    return found


def _move(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    source = ctx.axes(ctx.integers("source"), x.rank)
    target = ctx.axes(ctx.integers("destination"), x.rank)
    rest = iter(n for n in range(x.rank) if n not in source)
    placed = dict(zip(target, source, strict=True))
    return ctx.transpose(x, tuple(placed[n] if n in placed else next(rest) for n in range(x.rank)))


def _swap(ctx: CallContext) -> Operand:
    x, names = ctx.operand("self"), list(ctx.arguments)[1:3]
    if not x.rank:
        return x
    return swap_axes(ctx, x, *(ctx.axis_of(name, x.rank) for name in names))


def _at_least(ctx: CallContext, x: Operand, rank: int) -> Operand:
    """`x` with at least so many axes, where `torch.atleast_1d` and the others put new ones."""
    if rank == 3 and x.rank == 2:
        return ctx.unsqueeze(x, 2)
    if x.rank >= rank:
        return x
    after = 1 if rank == 3 else 0
    lengths = list(x.shape)
    before = rank - x.rank - after * (x.rank > 0)
    return ctx.reshape(x, [*[1] * before, *lengths, *[1] * (rank - before - x.rank)])


def _atleast(rank: int) -> Converter:
    return lambda ctx: _at_least(ctx, ctx.operand("self"), rank)


def _stacked(rank: int, axis: int) -> Converter:
    """Tensors of at least `rank` axes joined along one; `hstack` joins vectors along their own."""

    def convert(ctx: CallContext) -> Operand:
        parts = [_at_least(ctx, x, rank) for x in ctx.operands("tensors", ctx.result_dtype())]
        return ctx.concat(parts, min(axis, parts[0].rank - 1))

    return convert


def _column_stack(ctx: CallContext) -> Operand:
    parts = ctx.operands("tensors", ctx.result_dtype())
    return ctx.concat([ctx.reshape(x, (*x.shape, 1)) if x.rank < 2 else x for x in parts], 1)


def _flipped(axis: int) -> Converter:
    def convert(ctx: CallContext) -> Any:
        ctx.arguments["dims"] = [axis]
        return MOVEMENT["flip"](ctx)

    return convert


def _broadcast(ctx: CallContext) -> Sequence[Operand]:
    return [ctx.expand(x, ctx.result_shape(n)) for n, x in enumerate(ctx.operands("tensors"))]


def _diff(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    axis = ctx.axis_of("dim", x.rank)
    ends = [ctx.optional(name, x.dtype) for name in ("prepend", "append")]
    x = ctx.concat([part for part in (ends[0], x, ends[1]) if part is not None], axis)
    for _ in range(ctx.integer("n")):
        count = x.shape[axis] - 1
        later = ctx.slice_axis(x, axis, 1, count)
        x = ctx.emit("sub", later, ctx.slice_axis(x, axis, 0, count))
    return x


def _im2col(ctx: CallContext) -> Operand:
    """Windows of an image as columns: [n, channels * window, places]."""
    x = ctx.operand("self")
    batched = x.rank == 4
    x = x if batched else ctx.unsqueeze(x, 0)
    pads = ctx.integers("padding", 2)
    x = padded(ctx, x, [const(pads[1])] * 2 + [const(pads[0])] * 2, "constant")
    names = ("kernel_size", "stride", "dilation")
    for axis, number in ((2, 0), (4, 1)):
        size, step, gap = (ctx.integers(name, 2)[number] for name in names)
        length = as_int(x.shape[axis])
        if length is None or step < 1:
            raise ctx.fail("windows over an open size are not supported")
        count = max((length - gap * (size - 1) - 1) // step + 1, 0)
        places = np.arange(size)[:, None] * gap + np.arange(count)[None, :] * step
        x = ctx.emit("gather", x, ctx.constant(places), axis=axis)
    n, channels, high, rows, wide, columns = x.shape
    x = ctx.transpose(x, (0, 1, 2, 4, 3, 5))
    x = ctx.reshape(x, (n, channels * high * wide, rows * columns))
    return x if batched else ctx.squeeze(x, (0,))


# ---- tests, counts, fills ------------------------------------------------------------------------


def _is_close(ctx: CallContext) -> Operand:
    dtype = ctx.promoted("self", "other")
    x, y = ctx.operand("self", dtype), ctx.operand("other", dtype)
    close = ctx.emit("equal", x, y)
    if not dtype.is_float:  # torch compares with a bound that is real
        x, y = (ctx.cast(part, F32) for part in (x, y))
    allowed = ctx.emit("mul", ctx.scalar(ctx.real("rtol"), y), ctx.emit("abs", y))
    allowed = ctx.emit("add", ctx.scalar(ctx.real("atol"), y), allowed)
    gap = ctx.emit("abs", ctx.emit("sub", x, y))
    bounded = ctx.emit("less", gap, ctx.scalar(float("inf"), gap))
    near = ctx.emit("and", ctx.emit("less_or_equal", gap, allowed), bounded)
    close = ctx.emit("or", close, near)
    if ctx.flag("equal_nan") and dtype.is_float:
        both = ctx.emit("and", ctx.emit("is_nan", x), ctx.emit("is_nan", y))
        close = ctx.emit("or", close, both)
    return close


def _count_nonzero(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    found = ctx.emit("not", ctx.emit("equal", x, ctx.scalar(0, x)))
    axes = ctx.axes_of("dim", x.rank)
    return ctx.emit("reduce_sum", ctx.cast(found, I64), axes=axes, keepdims=False)


def _zero(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    return ctx.expand(ctx.scalar(0, x), x.shape)


def _inner(ctx: CallContext) -> Operand:
    x, y = ctx.operand("self"), ctx.operand("other")
    if not x.rank or not y.rank:
        return ctx.emit("mul", x, y)
    rows = math.prod(y.shape[:-1], start=const(1))
    flat = ctx.reshape(y, (rows, y.shape[-1]))
    found = ctx.emit("matmul", x, ctx.transpose(flat, (1, 0)))
    return ctx.reshape(found, (*x.shape[:-1], *y.shape[:-1]))


def _vector_norm(ctx: CallContext) -> Operand:
    """A norm of vectors; of all elements where neither an order nor axes are given."""
    axes = ctx.integers("dim") if ctx.has("dim") else ()
    if ctx.has("ord") and (len(axes) > 1 or (not axes and ctx.operand("self").rank > 1)):
        raise ctx.fail("norms of matrices are not supported")
    found: Operand = REDUCE["linalg_vector_norm"](ctx)
    return found


CONVERTERS: dict[str, Converter] = {
    "linalg_norm.default": _vector_norm,
    "addcmul": _typed(_add_of("mul"), "self", "tensor1", "tensor2", "value"),
    "addcdiv": _typed(_add_of("div"), "self", "tensor1", "tensor2", "value"),
    "lerp": _typed(_lerp, "self", "end", "weight"),
    "deg2rad": _typed(_times(np.pi / 180), "self"),
    "rad2deg": _typed(_times(180 / np.pi), "self"),
    "float_power": _typed(lambda ctx, x, y: ctx.emit("pow", x, y), "self", "exponent"),
    "cosine_similarity": _typed(_cosine_similarity, "x1", "x2"),
    "tile": _tile,
    "meshgrid": _meshgrid,
    **{name: _move for name in ("movedim", "moveaxis")},
    **{name: _swap for name in ("swapaxes", "swapdims")},
    **{f"atleast_{rank}d.default": _atleast(rank) for rank in (1, 2, 3)},
    "hstack": _stacked(1, 1),
    "vstack": _stacked(2, 0),
    "dstack": _stacked(3, 2),
    "column_stack": _column_stack,
    "flipud": _flipped(0),
    "fliplr": _flipped(1),
    "broadcast_tensors": _broadcast,
    "narrow_copy": MOVEMENT["narrow"],
    "item": MOVEMENT["_local_scalar_dense"],
    "diff": _diff,
    "im2col": _im2col,
    "isclose": _is_close,
    "count_nonzero": _count_nonzero,
    "zero": _zero,
    "inner": _inner,
}
