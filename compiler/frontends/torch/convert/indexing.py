"""Converters of operators that choose elements by index tensors, by order, or by what data say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter
from tcc.frontends.torch.convert.create import counted
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import BOOL, I32, I64, U8, element_count
from tcc.record import record


def as_indices(ctx: CallContext, x: Operand) -> Operand:
    """Positions in a type that the rows take."""
    return x if x.dtype in (I32, I64) else ctx.cast(x, I64)


def _index_select(ctx: CallContext) -> Operand:
    x, at = ctx.operand("self"), as_indices(ctx, ctx.operand("index"))
    axis = ctx.axis_of("dim", x.rank)
    if not x.rank:
        return ctx.reshape(ctx.emit("gather", ctx.reshape(x, (1,)), at, axis=0), ())
    return ctx.emit("gather", x, ctx.reshape(at, (element_count(at.shape),)), axis=axis)


def _embedding(ctx: CallContext) -> Operand:
    return ctx.emit(
        "gather", ctx.operand("weight"), as_indices(ctx, ctx.operand("indices")), axis=0
    )


def _gather(ctx: CallContext) -> Operand:
    x, at = ctx.operand("self"), as_indices(ctx, ctx.operand("index"))
    axis = ctx.axis_of("dim", x.rank)
    if not x.rank:
        flat = ctx.reshape(at, (element_count(at.shape),))
        return ctx.reshape(ctx.emit("gather", ctx.reshape(x, (1,)), flat, axis=0), at.shape)
    if element_count(at.shape).key == "0":
        return ctx.full(0, x.dtype, at.shape)
    line = at if at.rank else ctx.reshape(at, (1,))
    return ctx.reshape(ctx.emit("gather_elements", x, line, axis=axis), at.shape)


def _take(ctx: CallContext) -> Operand:
    x, at = ctx.operand("self"), as_indices(ctx, ctx.operand("index"))
    return ctx.emit("gather", ctx.reshape(x, (element_count(x.shape),)), at, axis=0)


# ---- index tensors on several axes ---------------------------------------------------------------


@record
class Places:
    """`x[i, :, j]`: index tensors on some axes, all of one shape.

    `axes` are those indexed, `rest` the others, `first` where the index tensors' dimensions come
    in the result.
    """

    tensors: tuple[Operand, ...]
    axes: tuple[int, ...]
    rest: tuple[int, ...]
    first: int
    shape: tuple[Index, ...]


def places_of(ctx: CallContext, rank: int, name: str = "indices") -> Places:
    """The index tensors of a call, masks replaced by the positions where they hold."""
    tensors: list[Operand | None] = []
    for value in ctx.arguments[name]:
        if value is None:
            tensors.append(None)
        elif value.dtype in (BOOL, U8):
            tensors.extend(_positions(ctx, value))
        else:
            tensors.append(as_indices(ctx, value))
    axes = tuple(n for n, tensor in enumerate(tensors) if tensor is not None)
    present = [tensor for tensor in tensors if tensor is not None]
    shape = ctx.broadcast(*(tensor.shape for tensor in present))
    first = axes[0] if axes == tuple(range(axes[0], axes[0] + len(axes))) else 0
    wide = tuple(ctx.expand(ctx.cast(t, I64), shape) for t in present)
    return Places(wide, axes, tuple(n for n in range(rank) if n not in axes), first, shape)


def _positions(ctx: CallContext, mask: Operand) -> list[Operand]:
    """Where a mask holds: one vector of positions for each of its axes."""
    found = non_zero(ctx, mask)
    rows = (ctx.slice_axis(found, 0, n, 1) for n in range(mask.rank))
    return [ctx.reshape(row, (found.shape[1],)) for row in rows]


def tuples(ctx: CallContext, places: Places) -> Operand:
    """The index tensors side by side on a last axis."""
    parts = [ctx.unsqueeze(tensor, len(places.shape)) for tensor in places.tensors]
    return ctx.concat(parts, len(places.shape))


def _index(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    places = places_of(ctx, x.rank)
    if len(places.axes) == 1:
        return ctx.emit("gather", x, places.tensors[0], axis=places.axes[0])
    front = ctx.transpose(x, (*places.axes, *places.rest))
    found = ctx.emit("gather_nd", front, tuples(ctx, places), batch_dims=0)
    count = len(places.shape)
    before = tuple(range(count, count + places.first))
    after = tuple(range(count + places.first, found.rank))
    return ctx.transpose(found, (*before, *range(count), *after))


# ---- order ---------------------------------------------------------------------------------------


def _ordered(
    ctx: CallContext, x: Operand, axis: int, k: Index, largest: bool
) -> tuple[Operand, Operand]:
    if not x.rank:
        return x, ctx.filled(0, I64)
    wide = ctx.cast(x, U8) if x.dtype is BOOL else x
    values, at = ctx.emit_all("top_k", [wide], axis=axis, k=k, largest=largest, sorted=True)
    return ctx.cast(values, x.dtype), at


def _top_k(ctx: CallContext) -> Sequence[Operand]:
    x = ctx.operand("self")
    return _ordered(ctx, x, ctx.axis_of("dim", x.rank), ctx.index("k"), ctx.flag("largest"))


def _sort(ctx: CallContext) -> Sequence[Operand]:
    x = ctx.operand("self")
    axis = ctx.axis_of("dim", x.rank)
    k = x.shape[axis] if x.rank else const(1)
    return _ordered(ctx, x, axis, k, ctx.flag("descending"))


def _kth_value(ctx: CallContext) -> Sequence[Operand]:
    x = ctx.operand("self")
    axis, k = ctx.axis_of("dim", x.rank), ctx.integer("k")
    pair = _ordered(ctx, x, axis, const(k), False)
    if not x.rank:
        return pair
    last = [ctx.slice_axis(part, axis, k - 1, 1) for part in pair]
    return last if ctx.flag("keepdim") else [ctx.squeeze(part, (axis,)) for part in last]


def _median(ctx: CallContext) -> Operand:
    """The lower median of all elements; NaN where one is."""
    x = ctx.operand("self")
    flat = ctx.reshape(x, (element_count(x.shape),))
    size = as_int(flat.shape[0])
    if not size:
        raise ctx.fail("the median of an open or empty size is not supported")
    values, _ = _ordered(ctx, flat, 0, const(size), False)
    middle = ctx.reshape(ctx.slice_axis(values, 0, (size - 1) // 2, 1), ())
    if not x.dtype.is_float:
        return middle
    odd = ctx.reduce("max", ctx.emit("is_nan", flat), 0)
    return ctx.where(odd, float("nan"), middle)


def _median_along(ctx: CallContext) -> Sequence[Operand]:
    """The lower median along an axis and where it is; a NaN, where there is one."""
    x, keepdim = ctx.operand("self"), ctx.flag("keepdim")
    if not x.rank:
        return x, ctx.filled(0, I64)
    axis = ctx.axis_of("dim", x.rank)
    size = as_int(x.shape[axis])
    if not size:
        raise ctx.fail(f"of {x.type!r}")
    pair = _ordered(ctx, x, axis, const(size), False)
    middle, at = (ctx.slice_axis(part, axis, (size - 1) // 2, 1) for part in pair)
    if x.dtype.is_float:
        odd = ctx.emit("is_nan", x)
        some = ctx.reduce("max", odd, axis, keepdims=True)
        numbers = ctx.cast(odd, U8)
        first = ctx.emit("arg_max", numbers, axis=axis, keepdims=True, select_last=False)
        middle = ctx.where(some, float("nan"), middle)
        at = ctx.where(some, first, at)
    return [part if keepdim else ctx.squeeze(part, (axis,)) for part in (middle, at)]


def _numbers_median(ctx: CallContext, x: Operand, axis: int) -> tuple[Operand, Operand]:
    """The lower median of what is a number, and where it is; the axis stays."""
    size = as_int(x.shape[axis])
    if not size:
        raise ctx.fail(f"of {x.type!r}")
    odd = ctx.cast(ctx.emit("is_nan", x), I64) if x.dtype.is_float else ctx.filled(0, I64)
    odd = ctx.expand(odd, x.shape)
    count = ctx.reduce("sum", odd, axis, keepdims=True)
    left = size - 1 - count
    half = ctx.emit("max", left, 0) / 2
    pair = _ordered(ctx, x, axis, const(size), False)
    value, at = (ctx.emit("gather_elements", part, half, axis=axis) for part in pair)
    return value, at


def _nan_median(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    flat = ctx.reshape(x, (element_count(x.shape),))
    return ctx.reshape(_numbers_median(ctx, flat, 0)[0], ())


def _nan_median_along(ctx: CallContext) -> Sequence[Operand]:
    x, keepdim = ctx.operand("self"), ctx.flag("keepdim")
    if not x.rank:
        return x, ctx.filled(0, I64)
    axis = ctx.axis_of("dim", x.rank)
    pair = _numbers_median(ctx, x, axis)
    return pair if keepdim else [ctx.squeeze(part, (axis,)) for part in pair]


def _mode(ctx: CallContext) -> Sequence[Operand]:
    """The most frequent value along an axis, the least of several, and its last place."""
    x = ctx.operand("self")
    if not x.rank:
        return x, ctx.filled(0, I64)
    axis, keepdim = ctx.axis_of("dim", x.rank), ctx.flag("keepdim")
    size = as_int(x.shape[axis])
    if not size:
        raise ctx.fail(f"of {x.type!r}")
    ranked, _ = _ordered(ctx, x, axis, const(size), False)
    alike = ctx.unsqueeze(ranked, axis).equals(ctx.unsqueeze(ranked, axis + 1))
    count = ctx.reduce("sum", ctx.cast(alike, I64), axis + 1)
    first = ctx.emit("arg_max", count, axis=axis, keepdims=True, select_last=False)
    value = ctx.emit("gather_elements", ranked, first, axis=axis)
    here = ctx.cast(x.equals(value), U8)
    at = ctx.emit("arg_max", here, axis=axis, keepdims=True, select_last=True)
    return [part if keepdim else ctx.squeeze(part, (axis,)) for part in (value, at)]


# ---- sizes that data decide ----------------------------------------------------------------------


def non_zero(ctx: CallContext, x: Operand) -> Operand:
    """[rank, count]: the positions of the elements that are not zero."""
    size = ctx.scope.session.fresh_symbol(f"{ctx.names[0]}.count")
    return ctx.emit("non_zero", x, size=size)


def _non_zero(ctx: CallContext) -> Operand:
    return ctx.transpose(non_zero(ctx, ctx.operand("self")), (1, 0))


def _masked_select(ctx: CallContext) -> Operand:
    x, mask = ctx.operand("self"), ctx.operand("mask")
    shape = ctx.broadcast(x.shape, mask.shape)
    flat = ctx.reshape(ctx.expand(x, shape), (element_count(shape),))
    held = ctx.reshape(ctx.expand(mask, shape), (element_count(shape),))
    size = ctx.scope.session.fresh_symbol(f"{ctx.names[0]}.count")
    return ctx.emit("compress", flat, held, axis=0, size=size)


def _repeated_places(ctx: CallContext) -> Operand:
    """0, 1, ... each as often as a vector says."""
    times = ctx.operand("repeats", I64)
    total = ctx.reduce("sum", times, 0)
    (size,) = ctx.sizes(ctx.reshape(total, (1,)), "the number of repetitions")
    ends = ctx.emit("cum_sum", times, axis=0, exclusive=False, reverse=False)
    return _searched(ctx, ends, counted(ctx, size), True)


def _non_zero_static(ctx: CallContext) -> Operand:
    """The first `size` positions of elements that are not zero, then `fill_value`."""
    x, size = ctx.operand("self"), ctx.integer("size")
    total = as_int(element_count(x.shape))
    if total is None:
        raise ctx.fail("of symbolic sizes")
    if not total or not size or not x.rank:
        return ctx.expand(ctx.filled(ctx.integer("fill_value"), I64), (size, x.rank))
    held = ctx.cast(ctx.reshape(x, (total,)), BOOL)
    places = ctx.where(held, ctx.constant(np.arange(total)), total)
    few = min(size, total)
    found, _ = _ordered(ctx, places, 0, const(few), False)
    if few < size:
        found = ctx.concat([found, ctx.full(total, I64, (size - few,))], 0)
    columns, rest = [], found
    for dim in reversed(x.shape):
        length = ctx.size_scalar(dim)
        columns.append(ctx.unsqueeze(ctx.emit("mod", rest, length, fmod=False), 1))
        rest = rest / length
    missing = ctx.unsqueeze(found.equals(total), 1)
    rows = ctx.concat(columns[::-1], 1)
    return ctx.where(missing, ctx.integer("fill_value"), rows)


def _unique(ctx: CallContext) -> Sequence[Operand]:
    """Distinct elements, which one each is, how often each occurs; what is not asked for is
    empty."""
    x = ctx.operand("self")
    flat = ctx.reshape(x, (element_count(x.shape),))
    size = ctx.scope.session.fresh_symbol(f"{ctx.names[0]}.count")
    values, _, inverse, counts = ctx.emit_all("unique", [flat], axis=None, sorted=True, size=size)
    return values, *_asked(ctx, ctx.reshape(inverse, x.shape), counts)


def _asked(ctx: CallContext, inverse: Operand, counts: Operand) -> tuple[Operand, Operand]:
    nothing = ctx.constant(np.zeros(0, np.int64))
    wants = ctx.flag("return_inverse"), ctx.flag("return_counts")
    return inverse if wants[0] else nothing, counts if wants[1] else nothing


def _unique_consecutive(ctx: CallContext) -> Sequence[Operand]:
    """The first element of each run of equal ones, the run of each, the runs' lengths."""
    x = ctx.operand("self")
    if ctx.has("dim") and x.rank != 1:
        raise ctx.fail("runs of slices are not supported")
    total = element_count(x.shape)
    if as_int(total) == 0:
        raise ctx.fail("of no element")
    flat = ctx.reshape(x, (total,))
    left, right = ctx.slice_axis(flat, 0, 0, total - 1), ctx.slice_axis(flat, 0, 1, total - 1)
    new = ~left.equals(right)
    new = ctx.concat([ctx.full(True, BOOL, (1,)), new], 0)
    size = ctx.scope.session.fresh_symbol(f"{ctx.names[0]}.count", 1)
    values = ctx.emit("compress", flat, new, axis=0, size=size)
    number = ctx.emit("cum_sum", ctx.cast(new, I64), axis=0, exclusive=False, reverse=False)
    number = number - 1
    zeros = ctx.full(0, I64, (size,))
    ones = ctx.full(1, I64, (total,))
    counts = ctx.emit("scatter_elements", zeros, number, ones, axis=0, reduction="add")
    return values, *_asked(ctx, ctx.reshape(number, x.shape), counts)


# ---- search --------------------------------------------------------------------------------------


def _searched(ctx: CallContext, edges: Operand, x: Operand, right: bool) -> Operand:
    """How many of the rising `edges` lie below each element, or not above where `right`."""
    wide = ctx.unsqueeze(x, x.rank)
    between = [const(1)] * (wide.rank - edges.rank)
    shape = [*edges.shape[:-1], *between, edges.shape[-1]]
    lined = ctx.reshape(edges, shape)
    below = ctx.emit("less_or_equal" if right else "less", lined, wide)
    below = ctx.cast(below, I64)
    return ctx.cast(ctx.reduce("sum", below, below.rank - 1), ctx.result_dtype())


def _bucketize(ctx: CallContext) -> Operand:
    dtype = ctx.promoted("self", "boundaries")
    return _searched(
        ctx, ctx.operand("boundaries", dtype), ctx.operand("self", dtype), ctx.flag("right")
    )


def _search_sorted(ctx: CallContext) -> Operand:
    dtype = ctx.promoted("self", "sorted_sequence")
    right = ctx.flag("right") or (ctx.has("side") and ctx.text("side") == "right")
    edges, x = ctx.operand("sorted_sequence", dtype), ctx.operand("self", dtype)
    if ctx.has("sorter") and element_count(edges.shape).key != "0":
        order = as_indices(ctx, ctx.operand("sorter"))
        edges = ctx.emit("gather_elements", edges, order, axis=edges.rank - 1)
    if edges.rank == 1 or x.rank == 0:
        return _searched(ctx, edges, x, right)
    lined = ctx.unsqueeze(edges, edges.rank - 1)
    below = ctx.emit("less_or_equal" if right else "less", lined, ctx.unsqueeze(x, x.rank))
    total = ctx.reduce("sum", ctx.cast(below, I64), x.rank)
    return ctx.cast(total, ctx.result_dtype())


def _histogram(ctx: CallContext) -> Operand:
    """How many elements lie in each of `bins` equal intervals, the last one closed."""
    x, bins = ctx.operand("self"), ctx.integer("bins")
    flat = ctx.reshape(x, (element_count(x.shape),))
    low, high = ctx.operand("min", x.dtype), ctx.operand("max", x.dtype)
    if ctx.real("min") == ctx.real("max"):
        low, high = (ctx.emit(f"reduce_{op}", flat, axes=(0,), keepdims=False) for op in _ENDS)
        even = low.equals(high)
        own = low
        low = ctx.where(even, own - 1, own)
        high = ctx.where(even, own + 1, high)
    wide = flat - low
    share = wide * bins
    place = ctx.cast(share / (high - low), I64)
    place = ctx.emit("min", place, bins - 1)
    above, below = (ctx.emit(op, flat, end) for op, end in zip(_INSIDE, (low, high), strict=True))
    same = ctx.unsqueeze(place, 1).equals(counted(ctx, const(bins)))
    kept = same & ctx.unsqueeze(above & below, 1)
    return ctx.cast(ctx.reduce("sum", ctx.cast(kept, I64), 0), x.dtype)


_ENDS, _INSIDE = ("min", "max"), ("greater_or_equal", "less_or_equal")


CONVERTERS: dict[str, Converter] = {
    "index_select": _index_select,
    "embedding": _embedding,
    "gather": _gather,
    "take": _take,
    "index.Tensor": _index,
    "topk": _top_k,
    "sort": _sort,
    "kthvalue": _kth_value,
    "median.default": _median,
    "median.dim": _median_along,
    "nanmedian.default": _nan_median,
    "nanmedian.dim": _nan_median_along,
    "mode": _mode,
    "nonzero": _non_zero,
    "nonzero_static": _non_zero_static,
    "repeat_interleave.Tensor": _repeated_places,
    "_unique2": _unique,
    "unique_consecutive": _unique_consecutive,
    "masked_select": _masked_select,
    "bucketize.Tensor": _bucketize,
    "searchsorted": _search_sorted,
    "histc": _histogram,
}
