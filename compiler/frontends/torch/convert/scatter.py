"""Converters of operators that write into a copy of a tensor."""

import math

from tcc.frontends.emit import concat, constant, family, full, size_scalar
from tcc.frontends.extents import from_front
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import (
    CallContext,
    Computed,
    Converters,
    Integers,
    Line,
    Results,
    ResultShape,
    ResultType,
    Start,
    Truths,
    check_indices,
    cut,
    named,
)
from tcc.frontends.torch.convert.create import counted, grid
from tcc.frontends.torch.convert.indexing import as_indices, places_of, tuples
from tcc.frontends.torch.convert.pointwise import quotient
from tcc.frontends.torch.convert.reduce import extreme
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import BOOL, I64, U8, DType, element_count
from tcc.ops.shapes import replaced

_REDUCTIONS = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max",
               "amin": "min"}  # fmt: skip


def _scattered(x: Operand, at: Operand, source: Operand, axis: int, how: str = "none") -> Operand:
    """Writes `source` to positions `at` along an axis of `x`.

    Unless `how` is "none", it is the operation that combines `source` with the elements there.
    """
    if at.is_empty:
        return x
    for n, size in enumerate(at.shape):
        source = source.slice_axis(n, 0, size)
    at = as_indices(at)
    return x.scatter_elements(at, source, axis=axis, reduction=how)


@family
def _scatter(
    how: str, ctx: CallContext, line: Line, src: Operand | None = None, reduce: str | None = None
) -> Operand:
    (x, axis), at = line, ctx.lined("index")
    combined = _REDUCTIONS[reduce] if reduce else how
    source = ctx.lined("src", x.dtype) if src else ctx.operand("value", x.dtype).expand(at.shape)
    return _scattered(x, at, source, axis, combined)


def _combined(ctx: CallContext, x: Operand, at: Operand, source: Operand, axis: int) -> Operand:
    """Combines `source` into `x` by the operation `reduce` of the call, with or without `x`'s own
    elements (`include_self`)."""
    how, include_self = ctx.text("reduce"), ctx.flag("include_self")
    row = "add" if how == "mean" else _REDUCTIONS[how]
    if include_self and how != "mean":
        return _scattered(x, at, source, axis, row)
    zeros, one_each = full(0, I64, x.shape), full(1, I64, at.shape)
    count = _scattered(zeros, at, one_each, axis, "add")
    untouched = count.equals(0)
    start = x if include_self else untouched.select(x, _neutral(x.dtype, row))
    result = _scattered(start, at, source, axis, row)
    if how != "mean":
        return result
    divisor = count + 1 if include_self else count.maximum(1)
    return untouched.select(x, quotient(result, divisor.cast(x.dtype)))


def _neutral(dtype: DType, row: str) -> float:
    if row in ("add", "mul"):
        return int(row == "mul")
    return extreme(dtype, below=row == "max")


def _scatter_reduce(ctx: CallContext, line: Line) -> Operand:
    x, axis = line
    return _combined(ctx, x, ctx.lined("index"), ctx.lined("src"), axis)


def _index_put(ctx: CallContext, x: Operand, accumulate: bool) -> Operand:
    values = ctx.operand("values", x.dtype)
    only = [value for value in ctx.arguments["indices"] if value is not None]
    plain = not accumulate and len(only) == 1 and only[0].dtype in (BOOL, U8)
    if plain and element_count(values.shape).key == "1":
        return _filled_where(ctx, x, only[0], values)
    places = places_of(ctx, x.rank)
    perm = (*places.axes, *places.other_axes)
    front = x.transpose(perm)
    other_dims = tuple(x.shape[n] for n in places.other_axes)
    target = (*other_dims[: places.first], *places.shape, *other_dims[places.first :])
    spread = values.expand(target)
    count, first = len(places.shape), places.first
    order = (*range(first, first + count), *range(first), *range(first + count, len(target)))
    updates = spread.transpose(order)
    how = "add" if accumulate else "none"
    scattered = front.scatter_nd(tuples(places), updates, reduction=how)
    return scattered.transpose(tuple(perm.index(n) for n in range(x.rank)))


def _filled_where(ctx: CallContext, x: Operand, mask: Operand, value: Operand) -> Operand:
    """Returns `x` with one value where a mask over its leading axes is true."""
    leading = next(n for n, v in enumerate(ctx.arguments["indices"]) if v is not None)
    trailing = x.rank - leading - mask.rank
    wide = mask.reshape((*[1] * leading, *mask.shape, *[1] * trailing))
    return wide.cast(BOOL).select(value.reshape(()), x)


def _bincount(ctx: CallContext, x: Integers, minlength: Index, dtype: ResultType) -> Operand:
    """Returns how often each integer occurs, or the sum of its weights.

    The number of bins depends on data.
    """
    last = concat([x, size_scalar(minlength - 1).reshape((1,))], 0).max(0, keepdims=True)
    size = (last + 1).as_size("the number of bins")
    check_indices(x, size, "bincount counts numbers from zero on")
    weights = ctx.operand("weights", dtype, 1)
    return _scattered(full(0, dtype, (size,)), x, weights.expand(x.shape), 0, "add")


# ---- whole slices --------------------------------------------------------------------------------


def _along(x: Operand, axis: int, at: Operand, shape: tuple[Index, ...]) -> Operand:
    """Reshapes positions to lie along `axis`, and repeats them over the other axes to `shape`."""
    line = [element_count(at.shape) if n == axis else const(1) for n in range(x.rank)]
    return as_indices(at).reshape(line).expand(shape)


def _index_reduce(ctx: CallContext, index: Operand, line: Line) -> Operand:
    """Combines slice n of `source` along an axis into the slice of `self` at `index[n]`."""
    x, axis = line
    shape = replaced(x.shape, axis, element_count(index.shape))
    source = ctx.operand("source", x.dtype).reshape(shape)
    return _combined(ctx, x, _along(x, axis, index, shape), source, axis)


def _put(ctx: CallContext, x: Operand, accumulate: bool, index: Operand) -> Operand:
    """Writes `source` to positions of the flattened tensor."""
    flat, at, source = (part.flat() for part in (x, index, ctx.operand("source", x.dtype)))
    how = "add" if accumulate else "none"
    return _scattered(flat, at, source, 0, how).reshape(x.shape)


def _embedding_bag(
    ctx: CallContext,
    weight: Operand,
    indices: Integers,
    offsets: Integers,
    mode: int,
    include_last_offset: bool,
    padding_idx: Index,
    per_sample_weights: Operand | None = None,
) -> Results:
    """Combines the table rows of each bag, which is a range of `indices` that begins at an offset.

    The results that only gradients need are None.
    """
    bags = offsets.shape[0] - int(include_last_offset)
    if ctx.call.used_results - {0} or indices.is_empty or as_int(bags) == 0:
        raise Refusal("it has no index or run, or its results for gradients are read")
    starts = offsets.slice_axis(0, 0, bags)
    places = counted(indices.shape[0]).unsqueeze(1)
    bag = (starts <= places).cast(I64).sum(1) - 1
    rows = weight.gather(indices, axis=0)
    if per_sample_weights:
        rows = rows * per_sample_weights.unsqueeze(1)
    start = rows.like(0 if mode < 2 else -math.inf)
    is_counted = full(True, BOOL, indices.shape)
    if as_int(padding_idx) != -1:
        is_counted = ~indices.equals(size_scalar(padding_idx))
        rows = is_counted.unsqueeze(1).select(rows, start)
    count = _scattered(full(0, I64, (bags,)), bag, is_counted.cast(I64), 0, "add")
    how, target = "max" if mode == 2 else "add", start.expand((bags, weight.shape[1]))
    bag_values = _scattered(target, _along(rows, 0, bag, rows.shape), rows, 0, how)
    if mode == 1:
        counts = count.maximum(1).unsqueeze(1)
        bag_values = bag_values / counts.cast(rows.dtype)
    return count.equals(0).unsqueeze(1).select(0, bag_values), None, None, None


def _masked_scatter(x: Operand, source: Operand, mask: Truths, shape: ResultShape) -> Operand:
    """Writes elements of `source`, one after the other, where the mask is true."""
    x = x.expand(shape)
    mask = mask.expand(shape)
    if x.is_empty or source.is_empty:
        return x
    flat_mask = mask.flat().cast(I64)
    at = flat_mask.cum_sum(axis=0, exclusive=True) * flat_mask
    return mask.select(source.flat().gather(at, axis=0).reshape(x.shape), x)


def _strided_write(x: Operand, source: Operand, axis: int, start: Index, step: int) -> Operand:
    """Writes `source` to the positions `start`, `start + step`, ... of an axis."""
    size = source.shape[axis]
    if step == 1:
        parts = [x.slice_axis(axis, 0, start), source]
        parts.append(x.slice_axis(axis, start + size, x.shape[axis] - start - size))
        return concat([p for p in parts if p.extent(axis) != 0] or [source], axis)
    at = counted(size) * constant(step) + size_scalar(start)
    return _scattered(x, _along(x, axis, at, source.shape), source, axis)


def _slice_scatter(ctx: CallContext, line: Line, step: int, start: Start) -> Operand:
    x, axis = line
    dim = x.shape[axis]
    start = from_front(start, dim)
    size = cut(x, axis, start, ctx.index("end", dim), step).shape
    source = ctx.operand("src", x.dtype).expand(size)
    number, extent = as_int(start), as_int(dim)
    if number is not None and extent is not None:
        start = const(min(max(number, 0), extent))
    return _strided_write(x, source, axis, start, step)


def _select_scatter(ctx: CallContext, index: Index, line: Line) -> Operand:
    x, axis = line
    start = from_front(index, x.shape[axis])
    shape = replaced(x.shape, axis, const(1))
    return _strided_write(x, ctx.operand("src", x.dtype).reshape(shape), axis, start, 1)


def _diagonal_scatter(ctx: CallContext, x: Operand, src: Computed, offset: int) -> Operand:
    """Writes `src` to a diagonal, by a mask of row and column."""
    first, second = (ctx.axis_of(name, x.rank) for name in ("dim1", "dim2"))
    rows, columns = x.shape[first], x.shape[second]
    if src.is_empty:
        return x
    row, column = grid(rows, columns)
    is_diagonal = (row + constant(offset)).equals(column)
    # An element's position on the diagonal is its row if the diagonal begins in row 0, else its
    # column.
    along = column if offset < 0 else row
    place = along.minimum(size_scalar(src.shape[-1] - 1)).expand((rows, columns))
    spread = src.gather(place, axis=src.rank - 1)
    other_axes = [n for n in range(x.rank) if n not in (first, second)]
    order = (*other_axes, first, second)
    back = tuple(order.index(n) for n in range(x.rank))
    transposed = spread.transpose(back)
    mask = is_diagonal.reshape((*[1] * len(other_axes), rows, columns))
    return mask.transpose(back).select(transposed, x)


def _copy(src: Computed, shape: ResultShape) -> Operand:
    return src.expand(shape)


CONVERTERS: Converters = {
    **named(
        _index_put,
        _bincount,
        _index_reduce,
        _put,
        _masked_scatter,
        _slice_scatter,
        _select_scatter,
        _diagonal_scatter,
        _copy,
    ),
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "scatter": _scatter("none"),
    "scatter_add": _scatter("add"),
    "scatter_reduce.two": _scatter_reduce,
}
