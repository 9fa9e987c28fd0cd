"""Converters of operators that select elements by index tensors, by order, or data-dependently."""

from collections.abc import Sequence
from typing import Any

from tcc.frontends.emit import broadcast, concat, family, filled, fresh_count, full, stack
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import (
    CallContext,
    Converters,
    Integers,
    Line,
    Results,
    named,
    numbers,
)
from tcc.frontends.torch.convert.create import counted
from tcc.frontends.torch.convert.movement import select
from tcc.frozen import frozen
from tcc.ir.index import Index, const
from tcc.ir.types import BOOL, I32, I64, U8


def as_indices(x: Operand) -> Operand:
    """Returns an index tensor in i32 or i64; a tensor of another type is cast to i64."""
    return x if x.dtype in (I32, I64) else x.cast(I64)


def _index_select(line: Line, index: Operand) -> Operand:
    x, axis = line
    return x.gather(as_indices(index).flat(), axis=axis)


def _embedding(weight: Operand, indices: Operand) -> Operand:
    return weight.gather(as_indices(indices), axis=0)


def _gather(ctx: CallContext, line: Line) -> Operand:
    x, axis = line
    at = as_indices(ctx.lined("index"))
    if at.is_empty:
        return full(0, x.dtype, at.shape)
    return x.gather_elements(at, axis=axis)


def _take(x: Operand, index: Operand) -> Operand:
    return x.flat().gather(as_indices(index), axis=0)


# ---- index tensors on several axes ---------------------------------------------------------------


@frozen
class Places:
    """The index tensors of `x[i, :, j]`, broadcast to one `shape`.

    `axes` are the indexed axes, `other_axes` the axes without an index tensor. `first` is the
    position in the result at which the dimensions of the index tensors begin.
    """

    tensors: tuple[Operand, ...]
    axes: tuple[int, ...]
    other_axes: tuple[int, ...]
    first: int
    shape: tuple[Index, ...]


def places_of(ctx: CallContext, rank: int) -> Places:
    """Returns the index tensors of a call, with masks replaced by the positions where they are
    true."""
    tensors: list[Operand | None] = []
    for value in ctx.arguments["indices"]:
        if value is None:
            tensors.append(None)
        elif value.dtype in (BOOL, U8):
            tensors.extend(_positions(value))
        else:
            tensors.append(as_indices(value))
    axes = tuple(n for n, tensor in enumerate(tensors) if tensor is not None)
    present = [tensor for tensor in tensors if tensor is not None]
    shape = broadcast(*(tensor.shape for tensor in present))
    first = axes[0] if axes == tuple(range(axes[0], axes[0] + len(axes))) else 0
    wide = tuple(t.cast(I64).expand(shape) for t in present)
    return Places(wide, axes, tuple(n for n in range(rank) if n not in axes), first, shape)


def _positions(mask: Operand) -> list[Operand]:
    """Returns the positions where a mask is true: one vector for each of its axes."""
    positions = non_zero(mask)
    return [select(positions, 0, const(n)) for n in range(mask.rank)]


def tuples(places: Places) -> Operand:
    """Stacks the index tensors along a new last axis."""
    return stack(places.tensors, len(places.shape))


def _index(ctx: CallContext, x: Operand) -> Operand:
    places = places_of(ctx, x.rank)
    if len(places.axes) == 1:
        return x.gather(places.tensors[0], axis=places.axes[0])
    front = x.transpose((*places.axes, *places.other_axes))
    gathered = front.gather_nd(tuples(places))
    count = len(places.shape)
    before = tuple(range(count, count + places.first))
    after = tuple(range(count + places.first, gathered.rank))
    return gathered.transpose((*before, *range(count), *after))


# ---- order ---------------------------------------------------------------------------------------


def _ordered(x: Operand, axis: int, k: Index, largest: bool = False) -> tuple[Operand, Operand]:
    values, at = numbers(x).ordered(axis, k, largest)
    return values.cast(x.dtype), at


def _sorted(line: Line) -> tuple[Operand, int, int, tuple[Operand, Operand]]:
    """Returns a tensor, an axis, its size, which must be a known number above zero, and the tensor
    sorted along the axis, with the positions before the sort."""
    x, axis = line
    size = x.extent(axis)
    if not size:
        raise Refusal(f"the size of {x.type!r} along the axis must be known, and not zero")
    return x, axis, size, _ordered(x, axis, const(size))


def _topk(k: Index, largest: bool, line: Line) -> Sequence[Operand]:
    x, axis = line
    return _ordered(x, axis, k, largest)


def _sort(descending: bool, line: Line) -> Sequence[Operand]:
    x, axis = line
    return _ordered(x, axis, x.shape[axis], descending)


def _kthvalue(k: int, line: Line) -> Sequence[Operand]:
    x, axis = line
    return [part.slice_axis(axis, k - 1, 1) for part in _ordered(x, axis, const(k))]


def _first(x: Operand, axis: int) -> Operand:
    """Returns the first position of the largest element along an axis."""
    return x.arg_max(axis=axis, keepdims=True)


def _median(line: Line, dim: int | None = None) -> Any:
    """Returns the lower median and, if there is an axis, its position; NaN if an element is NaN."""
    x, axis, size, pair = _sorted(line)
    middle, at = (part.slice_axis(axis, (size - 1) // 2, 1) for part in pair)
    if x.dtype.is_float:
        odd = x.is_nan()
        some = odd.max(axis, keepdims=True)
        middle = some.select(float("nan"), middle)
        at = some.select(_first(numbers(odd), axis), at)
    return middle if dim is None else (middle, at)


def _nan_median(line: Line, dim: int | None = None) -> Any:
    """Returns the lower median of the elements that are not NaN and, if there is an axis, its
    position."""
    x, axis, size, pair = _sorted(line)
    odd = x.is_nan().cast(I64) if x.dtype.is_float else filled(0, I64)
    count = odd.expand(x.shape).sum(axis, keepdims=True)
    half = (size - 1 - count).maximum(0) / 2
    value, at = (part.gather_elements(half, axis=axis) for part in pair)
    return value if dim is None else (value, at)


def _mode(line: Line) -> Sequence[Operand]:
    """Returns the most frequent value along an axis and its last position.

    If several values are most frequent, it is the smallest.
    """
    x, axis, _, (ranked, _) = _sorted(line)
    is_equal = ranked.unsqueeze(axis).equals(ranked.unsqueeze(axis + 1))
    value = ranked.gather_elements(_first(is_equal.cast(I64).sum(axis + 1), axis), axis=axis)
    return value, numbers(x.equals(value)).arg_max(axis=axis, keepdims=True, select_last=True)


# ---- data-dependent sizes -----------------------------------------------------------------------


def non_zero(x: Operand) -> Operand:
    """Returns [rank, count]: the positions of the elements that are not zero."""
    return x.non_zero(size=fresh_count())


def _masked_select(x: Operand, mask: Operand) -> Operand:
    shape = broadcast(x.shape, mask.shape)
    flat, flat_mask = (part.expand(shape).flat() for part in (x, mask))
    return flat.compress(flat_mask, axis=0, size=fresh_count())


def _repeated_places(repeats: Integers) -> Operand:
    """Returns the numbers 0, 1, ...; number n is repeated as often as element n of a vector
    says."""
    size = repeats.sum(0).reshape((1,)).as_size("the number of repetitions")
    return _searched(repeats.cum_sum(axis=0), counted(size), True)


def _nonzero_static(x: Operand, size: int, fill_value: int) -> Operand:
    """Returns the first `size` positions of elements that are not zero, filled up with
    `fill_value`."""
    filler = full(fill_value, I64, (size, x.rank))
    if x.is_empty or not x.rank:
        return filler
    return concat([non_zero(x).transpose((1, 0)), filler], 0).slice_axis(0, 0, size)


def _unique(x: Operand, return_inverse: bool, return_counts: bool) -> Results:
    """Returns the distinct elements, for each element its position among them, and how often each
    occurs."""
    values, _, inverse, counts = x.flat().emit_all(
        "unique", axis=None, sorted=True, size=fresh_count()
    )
    return (
        values,
        inverse.reshape(x.shape) if return_inverse else None,
        counts if return_counts else None,
    )


def _unique_consecutive(
    x: Operand, return_inverse: bool, return_counts: bool, dim: int | None = None
) -> Results:
    """Returns three results for runs of equal elements.

    They are the first element of each run, the number of each element's run, and the runs' lengths.
    """
    if dim is not None and x.rank != 1:
        raise Refusal("runs of slices are not supported")
    if x.is_empty:
        raise Refusal("it has no elements")
    flat = x.flat()
    (length,) = flat.shape
    before, after = flat.slice_axis(0, 0, length - 1), flat.slice_axis(0, 1, length - 1)
    new = concat([full(True, BOOL, (1,)), ~before.equals(after)], 0)
    size = fresh_count(1)
    values = flat.compress(new, axis=0, size=size)
    number = new.cast(I64).cum_sum(axis=0) - 1
    one_each = full(1, I64, (length,))
    counts = full(0, I64, (size,)).scatter_elements(number, one_each, axis=0, reduction="add")
    return (
        values,
        number.reshape(x.shape) if return_inverse else None,
        counts if return_counts else None,
    )


# ---- search --------------------------------------------------------------------------------------


def _searched(edges: Operand, x: Operand, right: bool) -> Operand:
    """Returns for each element of `x` the number of the ascending `edges` below it.

    If `right`, edges equal to the element count too.
    """
    lined = edges if edges.rank == 1 else edges.unsqueeze(edges.rank - 1)
    wide = x.unsqueeze(x.rank)
    below = lined <= wide if right else lined < wide
    return below.cast(I64).sum(x.rank)


@family
def _search(name: str, ctx: CallContext) -> Operand:
    """Searches among the edges in the argument `name`."""
    dtype = ctx.promoted("self", name)
    right = ctx.flag("right") or ctx.given("side") == "right"
    edges = ctx.operand(name, dtype)
    if ctx.has("sorter") and not edges.is_empty:
        edges = edges.gather_elements(as_indices(ctx.operand("sorter")), axis=edges.rank - 1)
    return _searched(edges, ctx.operand("self", dtype), right)


def _histc(ctx: CallContext, x: Operand, bins: int) -> Operand:
    """Returns the number of elements in each of `bins` equal intervals.

    The last interval includes its upper end.
    """
    flat = x.flat()
    low, high = ctx.operand("min", flat.dtype), ctx.operand("max", flat.dtype)
    if ctx.real("min") == ctx.real("max"):
        low, high = flat.min(0), flat.max(0)
        even = low.equals(high)
        low, high = even.select(low - 1, low), even.select(low + 1, high)
    place = ((flat - low) * bins / (high - low)).cast(I64)
    place = place.minimum(bins - 1)
    above, below = flat >= low, flat <= high
    in_bin = place.unsqueeze(1).equals(counted(const(bins)))
    return (in_bin & (above & below).unsqueeze(1)).cast(I64).sum(0)


CONVERTERS: Converters = {
    **named(
        _index_select,
        _embedding,
        _gather,
        _take,
        _topk,
        _sort,
        _kthvalue,
        _mode,
        _nonzero_static,
        _unique_consecutive,
        _masked_select,
        _histc,
    ),
    "index.Tensor": _index,
    "median.default": _median,
    "median.dim": _median,
    "nanmedian.default": _nan_median,
    "nanmedian.dim": _nan_median,
    "nonzero": lambda x: non_zero(x).transpose((1, 0)),
    "repeat_interleave.Tensor": _repeated_places,
    "_unique2": _unique,
    "bucketize.Tensor": _search("boundaries"),
    "searchsorted": _search("sorted_sequence"),
}
