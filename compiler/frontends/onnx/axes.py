"""Operators whose axes are known only at run time, written as arithmetic on sizes and ops with
fixed axes.

An axis becomes a size symbol in `[0, rank)`. A tensor is reshaped to a view with more axes, whose
sizes depend on the symbol, so that a fixed axis of the view holds the unknown axis:

    reduce x[a, b] over axis s    x as [a or 1, 1 or a, b or 1, 1 or b], reduced over axes 1 and 3
    scan x[a, b, c] along s       x as [before, along, after], along axis 1

Each new size is a symbol, bound to an element of one small tensor, so kernels read plain symbols.
"""

from collections.abc import Iterable, Sequence
from typing import TypeGuard

from tcc.frontends.emit import checked_axes, emit, filled, full, require, size_scalar, size_vector
from tcc.frontends.onnx.context import LARGEST, static_ints
from tcc.frontends.operand import Operand
from tcc.ir.index import Index, as_int, const, maximum, minimum, mod
from tcc.ir.types import I64, element_count
from tcc.known import all_known
from tcc.zipped import zip_equal

Dims = tuple[Index, ...]


def is_late(vector: Operand | None) -> TypeGuard[Operand]:
    """True if there is a vector whose elements are known only at run time."""
    return vector is not None and vector.array is None and vector.type.static_shape != (0,)


def named_axes(vector: Operand | None, rank: int, every: Iterable[int]) -> tuple[int, ...]:
    """Returns the axes in a constant vector, counted from the front; `every` axis if there is
    none."""
    if vector is None:
        return checked_axes(tuple(every), rank)
    return checked_axes(() if vector.is_empty else static_ints(vector, "axes"), rank)


def run_axes(operand: Operand, rank: int) -> Dims:
    """Returns the elements of a vector of axes, counted from the front; the run refuses invalid
    axes."""
    axes = []
    for axis in operand.as_sizes("axes", lo=-LARGEST):
        require(minimum(maximum(axis, -rank), rank - 1), axis, f"the rank is {rank}")
        axes.append(mod(axis, const(rank)))
    return tuple(axes)


def bound_sizes(values: Sequence[Index], lo: int = 0) -> Dims:
    """Returns `values` with a size symbol in place of each that is not a number.

    The run refuses values below `lo`.
    """
    open_ = [value for value in values if as_int(value) is None]
    if not open_:
        return tuple(values)
    fresh = iter(emit("dims", values=tuple(open_)).as_sizes("sizes", lo))
    return tuple(value if as_int(value) is not None else next(fresh) for value in values)


def is_same(one: Index, other: Index | int) -> Index:
    """Returns an index that is 1 if both are equal, else 0."""
    difference = one - other
    return maximum(minimum(1 + difference, 1 - difference), 0)


def is_below(one: Index | int, other: Index) -> Index:
    """Returns an index that is 1 if `one < other`, else 0."""
    return maximum(minimum(other - one, 1), 0)


def total(values: Sequence[Index]) -> Index:
    return sum(values, const(0))


def marks(axes: Dims, rank: int) -> Dims:
    """Returns a mask over the axes: 1 where `axes` names the axis, else 0; the run refuses repeated
    axes."""
    mask = [total([is_same(axis, n) for axis in axes]) for n in range(rank)]
    mask = list(bound_sizes(mask))
    for entry in mask:
        require(maximum(entry, 1), const(1), "an axis is named twice")
    return tuple(mask)


def spread(axes: Dims, values: Sequence[Index], rank: int, marked: Dims, other: Dims) -> Dims:
    """Returns an entry for each of the `rank` axes.

    `values[i]` is the entry of axis `axes[i]`. The remaining axes, which have the mark 0 in
    `marked`, get their entry of `other`.
    """
    return tuple(
        total([is_same(axis, n) * value for axis, value in zip_equal(axes, values)])
        + (1 - marked[n]) * other[n]
        for n in range(rank)
    )


def kept_dims(dims: Sequence[Index], marked: Dims, count: int) -> Dims:
    """Returns the sizes of the axes with the mark 0, in order; there are `count` of them."""
    is_kept = [1 - mark for mark in marked]
    places = [total(is_kept[:n]) for n in range(len(dims))]
    return tuple(
        total(
            [
                dim * keep * is_same(place, n)
                for dim, keep, place in zip_equal(dims, is_kept, places)
            ]
        )
        for n in range(count)
    )


def reduce_along(op: str, x: Operand, axes: Dims, keepdims: bool) -> Operand:
    """Reduces `x` over axes that are known only at run time."""
    marked = marks(axes, x.rank)
    pairs = []
    for dim, mark in zip_equal(x.shape, marked):
        pairs += [dim + mark * (1 - dim), 1 + mark * (dim - 1)]
    reduced = x.reshape(bound_sizes(pairs)).reduce(op, range(1, 2 * x.rank, 2))
    if keepdims:
        return reduced
    return reduced.reshape(bound_sizes(kept_dims(x.shape, marked, x.rank - len(axes))))


def around(x: Operand, axis: Index, last: int = 0) -> Operand:
    """Reshapes `x` to [before, along, after], followed by its last axes; `last` is their number.

    `before` merges the axes before `axis`, `along` is `axis`, and `after` merges the axes after it.
    """
    dims, last_dims = x.shape[: x.rank - last], x.shape[x.rank - last :]
    before = [1 + is_below(n, axis) * (dim - 1) for n, dim in enumerate(dims)]
    along = [1 + is_same(axis, n) * (dim - 1) for n, dim in enumerate(dims)]
    after = [1 + is_below(axis, const(n)) * (dim - 1) for n, dim in enumerate(dims)]
    parts = bound_sizes([element_count(tuple(p)) for p in (before, along, after)])
    return x.reshape((*parts, *last_dims))


def exchanged(dims: Dims, axis: Index, size: Index) -> Dims:
    """Returns `dims` with `size` as the size of `axis`, which is known only at run time."""
    return tuple(dim + is_same(axis, n) * (size - dim) for n, dim in enumerate(dims))


def unsqueezed(x: Operand, operand: Operand) -> Operand:
    """Inserts axes of extent one at positions that are known only at run time."""
    count = len(operand.as_sizes("axes", lo=-LARGEST))
    rank = x.rank + count
    marked = marks(run_axes(operand, rank), rank)
    shape = []
    for n, mark in enumerate(marked):
        place = n - total(marked[:n])
        size = total([dim * is_same(place, d) for d, dim in enumerate(x.shape)])
        shape.append(mark + (1 - mark) * size)
    return x.reshape(bound_sizes(shape))


def squeezed(x: Operand, operand: Operand) -> Operand:
    """Removes axes of extent one at positions that are known only at run time."""
    axes = run_axes(operand, x.rank)
    marked = marks(axes, x.rank)
    for dim, mark in zip_equal(x.shape, marked):
        require(mark * (dim - 1), const(0), "only axes of extent one can be squeezed")
    return x.reshape(bound_sizes(kept_dims(x.shape, marked, x.rank - len(axes))))


def strided(
    x: Operand,
    bounds: tuple[Operand, Operand],
    axes: Dims,
    steps: Operand | None,
) -> Operand:
    """Returns `x[start:end:step]` along `axes`; the axes or the steps are known only at run time.

    `bounds` are the vectors of starts and of ends. Without `steps` each step is 1.
    """
    dtype = bounds[0].dtype
    dims = [total([is_same(a, n) * dim for n, dim in enumerate(x.shape)]) for a in axes]
    extent = size_vector(dims).cast(dtype)
    largest_step = 1 << 29  # larger steps select the same elements, because axes are shorter
    step = full(1, dtype, extent.shape) if steps is None else steps.cast(dtype)
    step = step.minimum(largest_step).maximum(-largest_step)
    back = step < 0
    lowest = back.select(filled(-1, dtype), 0)
    highest = back.select(extent - 1, extent)
    start, end = (_from_front(v, extent).maximum(lowest).minimum(highest) for v in bounds)
    distance = end - start
    distance = back.select(-distance, distance)
    stride = abs(step)
    count = (distance + (stride - 1)).maximum(0) / stride
    starts, counts = start.as_sizes("starts", lo=-1), count.as_sizes("sizes")
    return _gather_strided(x, axes, (starts, counts, step.as_sizes("steps", lo=-LARGEST)))


def _from_front(position: Operand, extent: Operand) -> Operand:
    return (position < 0).select(position + extent, position)


def _gather_strided(x: Operand, axes: Dims, parts: tuple[Dims, Dims, Dims]) -> Operand:
    """Gathers the elements `start + step * n`, for n below the count, along each of `axes`.

    `parts` has the starts, the counts and the steps, each with an entry for each of `axes`.
    """
    named = all_known(map(as_int, axes))
    rank, zeros, unit_steps = x.rank, (const(0),) * x.rank, (const(1),) * x.rank
    if named is None:
        marked = marks(axes, rank)
        per_axis = [
            bound_sizes(spread(axes, values, rank, marked, other), lo)
            for values, other, lo in zip_equal(
                parts, (zeros, x.shape, unit_steps), (-1, 0, -LARGEST)
            )
        ]
        named = tuple(range(rank))
    else:
        per_axis = list(parts)
    for n, axis in enumerate(named):
        start, count, step = (values[n] for values in per_axis)
        scalars = [size_scalar(v, I64) for v in (start, start + step * count, step)]
        x = x.gather(emit("range", *scalars, size=count), axis=axis)
    return x
