"""Converters of operators that move elements: views, slices, joins, repeats, padding."""

import math
from collections.abc import Sequence

import numpy as np
from tcc.frontends.emit import checked_axes, checked_axis, concat, constant, emit, family
from tcc.frontends.extents import from_front
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import (
    CallContext,
    Computed,
    Converter,
    Converters,
    Line,
    ResultShape,
    ResultType,
    Start,
    cut,
    named,
    of_axes,
)
from tcc.ir.index import Index, as_int, const
from tcc.ir.op import Array
from tcc.ir.types import I64
from tcc.zipped import zip_equal


def _view(ctx: CallContext, x: Operand, shape: ResultShape) -> Operand:
    if "dtype" in ctx.arguments and ctx.result_dtype() is not x.dtype:
        raise Refusal("it reads the bits of elements as those of another type")
    return x.reshape(shape)


def _permute(x: Operand, dims: tuple[int, ...]) -> Operand:
    return x.transpose(checked_axes(dims, x.rank)) if x.rank else x


def _native_channel_shuffle(x: Operand, groups: int) -> Operand:
    """Shuffles channels: transposes them as a matrix whose rows are the groups."""
    batch, channels, *extent = x.shape
    return x.reshape((batch, groups, channels // groups, *extent)).swap_axes(1, 2).reshape(x.shape)


# ---- selections of elements ----------------------------------------------------------------------


def _slice(line: Line, step: int, start: Start, end: Index | None = None) -> Operand:
    x, axis = line
    return cut(x, axis, start, x.shape[axis] if end is None else end, step)


def select(x: Operand, axis: int, position: Index) -> Operand:
    """Returns the slice of `x` at one position of an axis, without the axis."""
    return x.element(axis, from_front(position, x.shape[axis]))


def _select(index: Index, line: Line) -> Operand:
    return select(*line, index)


def _split_parts(ctx: CallContext, line: Line) -> Sequence[Operand]:
    """Returns the parts of a tensor; their sizes are the sizes of the call's results."""
    x, axis = line
    sizes = tuple(ctx.result_shape(n)[axis] for n in range(len(ctx.result())))
    return x.emit_all("split", axis=axis, sizes=sizes)


def flipped(x: Operand, *axes: int) -> Operand:
    """Reverses `x` along axes."""
    axes = tuple(n for n in axes if x.extent(n) not in (0, 1))
    if not axes:
        return x
    starts = tuple(d - 1 if n in axes else const(0) for n, d in enumerate(x.shape))
    steps = tuple(-1 if n in axes else 1 for n in range(x.rank))
    return x.slice(starts=starts, steps=steps, sizes=x.shape)


def _flip(ctx: CallContext, dims: tuple[int, ...]) -> Operand:
    x = ctx.lined("self")
    return flipped(x, *checked_axes(dims, x.rank))


def _roll(ctx: CallContext, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Operand:
    source = ctx.lined("self")
    axes = dims or (0,)
    x = source if ctx.arguments["dims"] else source.flat()
    for shift, axis in zip_equal(shifts, (checked_axis(axis, x.rank) for axis in axes)):
        dim = x.shape[axis]
        if as_int(dim) == 0:
            continue
        back = (dim * (abs(shift) + 1) - shift) % dim
        x = concat([x.slice_axis(axis, back, dim - back), x.slice_axis(axis, 0, back)], axis)
    return x.reshape(source.shape)


def _diagonal(ctx: CallContext, x: Operand, offset: int, shape: ResultShape) -> Operand:
    """Returns the elements of a diagonal, gathered from the two axes merged into one."""
    first, second = (ctx.axis_of(n, x.rank) for n in ("dim1", "dim2"))
    other_axes = [n for n in range(x.rank) if n not in (first, second)]
    rows, columns = x.shape[first], x.shape[second]
    count, step = as_int(shape[-1]), as_int(columns)
    if count is None or step is None:
        raise Refusal("the diagonal of a matrix of symbolic sizes is not supported")
    flat = x.transpose((*other_axes, first, second)).reshape(
        (*(x.shape[n] for n in other_axes), rows * columns)
    )
    start = max(offset, 0) + max(-offset, 0) * step
    places = constant(start + np.arange(count, dtype=np.int64) * (step + 1))
    return flat.gather(places, axis=flat.rank - 1)


def _unfold(ctx: CallContext, x: Operand, size: int, step: int) -> Operand:
    """Returns windows along an axis, with their elements on a new last axis."""
    axis = ctx.axis_of("dimension", x.rank)
    if not x.rank:
        return x.reshape((1,)).expand(ctx.result_shape())
    count = as_int(ctx.result_shape()[axis])
    if count is None:
        raise Refusal("windows over a symbolic size are not supported")
    places = np.arange(count)[:, None] * step + np.arange(size)[None, :]
    return x.gather(constant(places), axis=axis).moved(axis + 1, -1)


# The most elements of a tensor with strides; each takes eight bytes of memory in the compiler.
_MOST_PLACES = 1 << 28


def _in_memory(sizes: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    """Returns the position of each element in memory, for a tensor with these strides."""
    places = np.full(tuple(sizes), offset, np.int64)
    for axis, (size, stride) in enumerate(zip_equal(sizes, strides)):
        line = [-1 if n == axis else 1 for n in range(len(sizes))]
        places += (np.arange(size) * stride).reshape(line)
    return places


def _strided_places(ctx: CallContext) -> Array:
    """Returns for each element of a strided view the number of that element in `self`, in row-major
    order."""
    meta = ctx.known("self")
    layout, rank = [*meta.shape, *meta.strides, meta.offset], len(meta.shape)
    numbers = [n for n in layout if isinstance(n, int)]
    if len(meta.strides) != rank or len(numbers) != len(layout):
        raise Refusal("strides of a tensor of symbolic sizes are not supported")
    own_offset, sizes = numbers[-1], ctx.integers("size")
    if max(math.prod(numbers[:rank]), math.prod(sizes)) > _MOST_PLACES:
        raise Refusal(f"it has more than {_MOST_PLACES} elements")
    places = _in_memory(numbers[:rank], numbers[rank:-1], own_offset).reshape(-1)
    offset = ctx.integer("storage_offset") if ctx.has("storage_offset") else own_offset
    addresses = _in_memory(sizes, ctx.integers("stride"), offset)
    order = np.argsort(places, kind="stable")
    ranks = np.searchsorted(places, addresses, sorter=order)
    positions: Array = order[np.minimum(ranks, places.size - 1)] if places.size else addresses
    if addresses.size and (not places.size or (places[positions] != addresses).any()):
        raise Refusal("it reaches memory that the tensor itself does not cover")
    return positions


def _as_strided(ctx: CallContext, x: Operand) -> Operand:
    places = constant(_strided_places(ctx))
    return x.flat().gather(places, axis=0)


def _as_strided_scatter(ctx: CallContext, x: Operand, src: Computed) -> Operand:
    places = _strided_places(ctx).reshape(-1)
    if not places.size:
        return x
    scattered = x.flat().scatter_elements(constant(places), src.flat(), axis=0)
    return scattered.reshape(x.shape)


# ---- joins and repeats ---------------------------------------------------------------------------


def _cat(ctx: CallContext, dtype: ResultType) -> Operand:
    parts = ctx.operands("tensors", dtype)
    rank = len(ctx.result().shape)
    nonempty = [p for p in parts if p.rank == rank and not (rank == 1 and p.extent(0) == 0)]
    if not nonempty:
        return parts[0]
    return concat(nonempty, ctx.axis_of("dim", rank))


def _repeat(x: Operand, repeats: tuple[Index, ...]) -> Operand:
    x = x.reshape((*[1] * (len(repeats) - x.rank), *x.shape))
    if not repeats or all(as_int(r) == 1 for r in repeats):
        return x
    return x.tile(repeats=repeats)


# ---- padding -------------------------------------------------------------------------------------


def padded(x: Operand, pads: Sequence[Index], mode: str, value: float = 0.0) -> Operand:
    """Pads `x`; `pads` has the elements before and after each axis, the last axis first.

    Negative numbers cut elements off.
    """
    before, after = [const(0)] * x.rank, [const(0)] * x.rank
    for n in range(len(pads) // 2):
        before[x.rank - 1 - n], after[x.rank - 1 - n] = pads[2 * n], pads[2 * n + 1]
    # In these modes the padding may repeat elements that a negative padding cuts off, so padding
    # comes first.
    first = mode in ("edge", "reflect")
    if not first:
        x = _cut_off(x, before, after)
    more = [[d if (as_int(d) or 0) >= 0 else const(0) for d in side] for side in (before, after)]
    if any(as_int(p) != 0 for side in more for p in side):
        operands = [x, x.like(value)] if mode == "constant" else [x]
        ends = {"before": tuple(more[0]), "after": tuple(more[1])}
        x = emit("pad", *operands, **ends, mode=mode)
    return _cut_off(x, before, after) if first else x


def _cut_off(x: Operand, before: Sequence[Index], after: Sequence[Index]) -> Operand:
    """Cuts off the elements of negative paddings."""
    for axis in range(x.rank):
        low, high = (max(-(as_int(side[axis]) or 0), 0) for side in (before, after))
        if low or high:
            x = x.slice_axis(axis, low, x.shape[axis] - low - high)
    return x


def _constant_pad_nd(x: Operand, pad: tuple[Index, ...], value: float) -> Operand:
    return padded(x, pad, "constant", value)


def _mode_pad(name: str, mode: str) -> Converter:
    return lambda ctx, x: padded(x, ctx.indices(name), mode)


# ---- triangles, single numbers -------------------------------------------------------------------


@family
def _triangle(upper: bool, x: Operand, diagonal: Index) -> Operand:
    return x.trilu(upper=upper, k=diagonal)


def _scalar_of(x: Operand) -> Index:
    """Returns the number in a tensor of one element, as a size that the run reads."""
    if x.dtype.is_float:
        raise Refusal("a real number that data decide is not supported")
    (size,) = x.reshape((1,)).cast(I64).as_sizes("the number", lo=0, signed=True)
    return size


_COPIES = "clone alias detach_copy lift_fresh_copy _to_copy".split()
_VIEWS = "view _reshape_copy squeeze unsqueeze".split()
_SPLITS = "split_copy split_with_sizes".split()

CONVERTERS: Converters = {
    **named(
        _permute,
        _slice,
        _flip,
        _roll,
        _native_channel_shuffle,
        _diagonal,
        _unfold,
        _as_strided,
        _as_strided_scatter,
        _cat,
        _repeat,
        _constant_pad_nd,
    ),
    **dict.fromkeys(_COPIES, lambda x: x),
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_SPLITS, _split_parts),
    "expand": lambda ctx, x: x.expand(ctx.result_shape()),
    "slice_copy": _slice,
    "select.int": _select,
    "select_copy.int": _select,
    **of_axes("reflection_pad{}d", lambda _: _mode_pad("padding", "reflect")),
    **of_axes("replication_pad{}d", lambda _: _mode_pad("padding", "edge")),
    "_pad_circular": _mode_pad("pad", "wrap"),
    "tril": _triangle(False),
    "triu": _triangle(True),
    "_local_scalar_dense": _scalar_of,
}
