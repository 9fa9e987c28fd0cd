"""Axes that only the run knows, as arithmetic on sizes: each op keeps known axes.

An axis becomes a size symbol in `[0, rank)`.  What depends on it is a view of the operand with
more axes, of which those that do not apply are of extent one:

    reduce x[a, b] over axis s    x as [a or 1, 1 or a, b or 1, 1 or b], reduced over axes 1 and 3
    scan x[a, b, c] along s       x as [before, along, after], along axis 1

Sizes so made are symbols of their own, bound by one small tensor: kernels see plain names.
"""

from collections.abc import Sequence

from tcc.frontends.onnx.context import LARGEST, NodeContext
from tcc.frontends.scope import Operand
from tcc.ir.index import Index, as_int, const, maximum, minimum, mod
from tcc.ir.types import I64, element_count
from tcc.known import all_known

Dims = tuple[Index, ...]


def static_axes(ctx: NodeContext, number: int) -> tuple[int, ...] | None:
    """The contents of input `number` where the import knows them; an empty one is known."""
    operand = ctx.input(number)
    if operand.array is None and operand.type.static_shape != (0,):
        return None
    return () if operand.array is None else ctx.static_ints(number, "axes")


def run_axes(ctx: NodeContext, operand: Operand, rank: int) -> Dims:
    """The elements of a vector of axes, from the front; the run refuses what is no axis."""
    found = []
    for axis in ctx.sizes(operand, "axes", lo=-LARGEST):
        ctx.require(minimum(maximum(axis, -rank), rank - 1), axis, f"the rank is {rank}")
        found.append(mod(axis, const(rank)))
    return tuple(found)


def bound_sizes(ctx: NodeContext, values: Sequence[Index], lo: int = 0) -> Dims:
    """A size symbol for each expression that is no number; the run refuses what is below `lo`."""
    open_ = [value for value in values if as_int(value) is None]
    if not open_:
        return tuple(values)
    vector = ctx.emit("dims", values=tuple(open_))
    fresh = iter(ctx.sizes(vector, "sizes", lo))
    return tuple(value if as_int(value) is not None else next(fresh) for value in values)


def is_same(one: Index, other: Index | int) -> Index:
    """1 where both are equal, else 0."""
    apart = one - other
    return maximum(minimum(1 + apart, 1 - apart), 0)


def is_below(one: Index | int, other: Index) -> Index:
    """1 where `one < other`, else 0."""
    return maximum(minimum(other - one, 1), 0)


def total(values: Sequence[Index]) -> Index:
    return sum(values, const(0))


def marks(ctx: NodeContext, axes: Dims, rank: int) -> Dims:
    """For each axis of a tensor 1 where `axes` names it, else 0; the run refuses repeated ones."""
    found = [total([is_same(axis, n) for axis in axes]) for n in range(rank)]
    found = list(bound_sizes(ctx, found))
    for mark in found:
        ctx.require(maximum(mark, 1), const(1), "an axis is named twice")
    return tuple(found)


def spread(axes: Dims, values: Sequence[Index], rank: int, marked: Dims, other: Dims) -> Dims:
    """For each axis of a tensor its entry of `values`, which belong to `axes`; else of `other`."""
    return tuple(
        total([is_same(axis, n) * value for axis, value in zip(axes, values, strict=True)])
        + (1 - marked[n]) * other[n]
        for n in range(rank)
    )


def kept_dims(dims: Sequence[Index], marked: Dims, count: int) -> Dims:
    """The `count` sizes of the axes that are not marked, in order."""
    kept = [1 - mark for mark in marked]
    places = [total(kept[:n]) for n in range(len(dims))]
    return tuple(
        total(
            [
                dim * keep * is_same(place, n)
                for dim, keep, place in zip(dims, kept, places, strict=True)
            ]
        )
        for n in range(count)
    )


def reduce_along(ctx: NodeContext, op: str, x: Operand, axes: Dims, keepdims: bool) -> Operand:
    """`x` reduced over axes that the run knows."""
    marked = marks(ctx, axes, x.rank)
    pairs = []
    for dim, mark in zip(x.shape, marked, strict=True):
        pairs += [dim + mark * (1 - dim), 1 + mark * (dim - 1)]
    view = ctx.reshape(x, bound_sizes(ctx, pairs))
    found = ctx.emit(op, view, axes=tuple(range(1, 2 * x.rank, 2)), keepdims=False)
    if keepdims:
        return found
    return ctx.reshape(found, bound_sizes(ctx, kept_dims(x.shape, marked, x.rank - len(axes))))


def around(ctx: NodeContext, x: Operand, axis: Index, last: int = 0) -> Operand:
    """`x` with three axes, those before `axis`, this one, those after it, and the `last` ones."""
    dims, rest = x.shape[: x.rank - last], x.shape[x.rank - last :]
    before = [1 + is_below(n, axis) * (dim - 1) for n, dim in enumerate(dims)]
    along = [1 + is_same(axis, n) * (dim - 1) for n, dim in enumerate(dims)]
    after = [1 + is_below(axis, const(n)) * (dim - 1) for n, dim in enumerate(dims)]
    parts = bound_sizes(ctx, [element_count(tuple(p)) for p in (before, along, after)])
    return ctx.reshape(x, (*parts, *rest))


def exchanged(dims: Dims, axis: Index, size: Index) -> Dims:
    """`dims` with `size` for the axis that only the run knows."""
    return tuple(dim + is_same(axis, n) * (size - dim) for n, dim in enumerate(dims))


def unsqueezed(ctx: NodeContext, x: Operand, operand: Operand) -> Operand:
    """`x` with axes of extent one inserted where the run says."""
    count = len(ctx.sizes(operand, "axes", lo=-LARGEST))
    rank = x.rank + count
    marked = marks(ctx, run_axes(ctx, operand, rank), rank)
    shape = []
    for n, mark in enumerate(marked):
        place = n - total(marked[:n])
        own = total([dim * is_same(place, d) for d, dim in enumerate(x.shape)])
        shape.append(mark + (1 - mark) * own)
    return ctx.reshape(x, bound_sizes(ctx, shape))


def squeezed(ctx: NodeContext, x: Operand, operand: Operand) -> Operand:
    """`x` without axes of extent one that the run names."""
    axes = run_axes(ctx, operand, x.rank)
    marked = marks(ctx, axes, x.rank)
    for dim, mark in zip(x.shape, marked, strict=True):
        ctx.require(mark * (dim - 1), const(0), "only axes of extent one can be squeezed")
    return ctx.reshape(x, bound_sizes(ctx, kept_dims(x.shape, marked, x.rank - len(axes))))


def strided(
    ctx: NodeContext,
    x: Operand,
    bounds: tuple[Operand, Operand],
    axes: Dims,
    steps: Operand | None,
) -> Operand:
    """`x[start:end:step]` along `axes`, where the run knows the axes or the steps."""
    dtype = bounds[0].dtype
    dims = [total([is_same(a, n) * dim for n, dim in enumerate(x.shape)]) for a in axes]
    extent = ctx.cast(ctx.size_vector(dims), dtype)
    far = 1 << 29  # a longer step is as good
    step = ctx.full(1, dtype, extent.shape) if steps is None else ctx.cast(steps, dtype)
    step = ctx.emit("max", ctx.emit("min", step, far), -far)
    back = step < 0
    least = ctx.where(back, ctx.filled(-1, dtype), 0)
    most = ctx.where(back, extent - 1, extent)
    start, end = (
        ctx.emit("min", ctx.emit("max", _from_front(ctx, v, extent), least), most) for v in bounds
    )
    distance = end - start
    distance = ctx.where(back, -distance, distance)
    stride = abs(step)
    count = ctx.emit("max", distance + (stride - 1), 0) / stride
    starts, counts = ctx.sizes(start, "starts", lo=-1), ctx.sizes(count, "sizes")
    strides = ctx.sizes(step, "steps", lo=-LARGEST)
    return _taken(ctx, x, axes, (starts, counts, strides))


def _from_front(ctx: NodeContext, position: Operand, extent: Operand) -> Operand:
    negative = position < 0
    return ctx.where(negative, position + extent, position)


def _taken(ctx: NodeContext, x: Operand, axes: Dims, parts: tuple[Dims, Dims, Dims]) -> Operand:
    """Each axis gathered at `start + step * n`; those that `axes` does not name as they are."""
    named = all_known(map(as_int, axes))
    rank, zeros, ones = x.rank, (const(0),) * x.rank, (const(1),) * x.rank
    if named is None:
        marked = marks(ctx, axes, rank)
        per_axis = [
            bound_sizes(ctx, spread(axes, values, rank, marked, other), lo)
            for values, other, lo in zip(
                parts, (zeros, x.shape, ones), (-1, 0, -LARGEST), strict=True
            )
        ]
        named = tuple(range(rank))
    else:
        per_axis = list(parts)
    for n, axis in enumerate(named):
        start, count, step = (values[n] for values in per_axis)
        scalars = [ctx.size_scalar(v, I64) for v in (start, start + step * count, step)]
        places = ctx.emit("range", *scalars, size=count)
        x = ctx.emit("gather", x, places, axis=axis)
    return x
