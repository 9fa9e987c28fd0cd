"""Indexing: elements selected by index tensors.

A negative index counts from the end. An index outside its axis is an error of the model, but never
causes an access outside the tensor: reads clamp the index, so they give an unspecified element, and
scatters refuse it.
"""

from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, index_value
from tcc.ir.index import Index, IndexLike, as_int
from tcc.ir.op import (
    Array,
    FreeAxes,
    OnnxBinding,
    OutArrays,
    Trait,
)
from tcc.ir.types import I32, I64, TensorType
from tcc.ops.formula import choose, fn
from tcc.ops.operands import clamped, guard, inside, integer, require, wrapped
from tcc.ops.reference import in_f32
from tcc.ops.rows import op_row
from tcc.ops.shapes import (
    ALL,
    COMMON,
    MOVED,
    AxisAttrs,
    Point,
    agree,
    agree_shapes,
    check_axis,
    replaced,
)
from tcc.zipped import zip_equal


@frozen
class GatherNdAttrs:
    batch_dims: int = 0


@frozen
class ScatterAttrs:
    """`reduction` is "none", "add", "mul", "max" or "min"."""

    axis: int
    reduction: str = "none"


@frozen
class ScatterNdAttrs:
    """`reduction` is "none", "add", "mul", "max" or "min"."""

    reduction: str = "none"


@frozen
class UpdateSliceAttrs:
    """The update replaces the rows from `start` on along `axis`."""

    axis: int
    start: Index


@frozen
class TensorScatterAttrs:
    """`mode` is "linear" or "circular"; a circular write past the end continues at the front."""

    axis: int
    mode: str


def chosen(b: ExprBuilder, index: Scalar, size: IndexLike) -> Index:
    """Returns the tensor element `index` as an index into an axis of `size`.

    A negative element counts from the end, and the index is clamped to the axis.
    """
    return b.position(clamped(wrapped(index, size), size), size)


def _check_indices(indices: TensorType) -> None:
    require(indices.dtype in (I32, I64), f"indices are i32 or i64, not {indices}")


# ---- gather --------------------------------------------------------------------------------------


def _gather_infer(attrs: AxisAttrs, x: TensorType, indices: TensorType) -> TensorType:
    check_axis(attrs.axis, x.rank)
    _check_indices(indices)
    return TensorType(x.dtype, replaced(x.shape, attrs.axis, *indices.shape))


def _gather_reference(attrs: AxisAttrs, x: Array, indices: Array) -> Array:
    return np.take(x, indices, axis=attrs.axis)


def _gather_element(
    b: ExprBuilder, i: Point, attrs: AxisAttrs, x: TensorType, indices: TensorType
) -> Scalar:
    size = x.shape[attrs.axis]
    middle = attrs.axis + indices.rank
    at = chosen(b, b.read(1, *i[attrs.axis : middle]), size)
    return b.read(0, *i[: attrs.axis], at, *i[middle:], fill=guard(size))


def _elements_infer(attrs: AxisAttrs, x: TensorType, indices: TensorType) -> TensorType:
    check_axis(attrs.axis, x.rank)
    _check_indices(indices)
    require(x.rank == indices.rank, f"{x} and {indices} differ in rank")
    for axis, (extent, count) in enumerate(zip_equal(x.shape, indices.shape)):
        more = axis != attrs.axis and (as_int(count - extent) or 0) > 0
        require(not more, f"there are more indices than elements along axis {axis} of {x}")
    return TensorType(x.dtype, indices.shape)


def _elements_reference(attrs: AxisAttrs, x: Array, indices: Array) -> Array:
    y = np.empty(indices.shape, x.dtype)
    for at in np.ndindex(*indices.shape):
        y[at] = x[replaced(at, attrs.axis, int(indices[at]))]
    return y


def _elements_element(
    b: ExprBuilder, i: Point, attrs: AxisAttrs, x: TensorType, indices: TensorType
) -> Scalar:
    size = x.shape[attrs.axis]
    at = chosen(b, b.read(1, *i), size)
    return b.read(0, *replaced(i, attrs.axis, at), fill=guard(size))


def _nd_shape(x: TensorType, indices: TensorType, batch: int) -> tuple[int, Point]:
    require(indices.rank > batch < x.rank, f"{batch} batch axes do not fit {x} and {indices}")
    depth = as_int(indices.shape[-1])
    if depth is None:
        raise ValueError(f"the last axis of the indices {indices} must be known")
    require(batch + depth <= x.rank, f"indices of length {depth} do not fit {x}")
    return depth, (*indices.shape[:-1], *x.shape[batch + depth :])


def _nd_infer(attrs: GatherNdAttrs, x: TensorType, indices: TensorType) -> TensorType:
    _check_indices(indices)
    batch = attrs.batch_dims
    _, shape = _nd_shape(x, indices, batch)
    for a, c in zip_equal(x.shape[:batch], indices.shape[:batch]):
        agree(a, c, "the batch dims")
    return TensorType(x.dtype, shape)


def _nd_reference(attrs: GatherNdAttrs, x: Array, indices: Array) -> Array:
    batch = attrs.batch_dims
    y = np.empty((*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :]), x.dtype)
    for at in np.ndindex(*indices.shape[:-1]):
        y[at] = x[(*at[:batch], *(int(n) for n in indices[at]))]
    return y


def _nd_element(
    b: ExprBuilder, i: Point, attrs: GatherNdAttrs, x: TensorType, indices: TensorType
) -> Scalar:
    batch = attrs.batch_dims
    depth, _ = _nd_shape(x, indices, batch)
    outer = i[: indices.rank - 1]
    indexed = x.shape[batch : batch + depth]
    picks = [chosen(b, b.read(1, *outer, n), size) for n, size in enumerate(indexed)]
    source = (*i[:batch], *picks, *i[indices.rank - 1 :])
    fill = None if all(guard(size) is None for size in indexed) else 0
    return b.read(0, *source, fill=fill)


# ---- scatter -------------------------------------------------------------------------------------

# The position of a reduction in this tuple is its number in the C functions.
REDUCTIONS = ("none", "add", "mul", "max", "min")


def _combine(reduction: str, old: Any, new: Any) -> Any:
    operation = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    return new if reduction == "none" else operation[reduction](old, new)


def _check_scatter(reduction: str, x: TensorType, indices: TensorType, updates: TensorType) -> None:
    """Does the checks that all scatters share."""
    _check_indices(indices)
    require(reduction in REDUCTIONS, f"unknown reduction {reduction}")
    require(updates.dtype is x.dtype, f"{updates} and {x} differ in type")


def _scatter_elements_infer(
    attrs: ScatterAttrs, x: TensorType, indices: TensorType, updates: TensorType
) -> TensorType:
    _check_scatter(attrs.reduction, x, indices, updates)
    check_axis(attrs.axis, x.rank)
    require(x.rank == indices.rank == updates.rank, f"{x}, {indices}, {updates} differ in rank")
    agree_shapes(indices.shape, updates.shape, "the shapes of indices and updates")
    return x


def _scatter_elements_free(
    attrs: ScatterAttrs, x: TensorType, indices: TensorType, updates: TensorType
) -> list[FreeAxes]:
    pairs = enumerate(zip_equal(x.shape, indices.shape))
    free = [n for n, (a, b) in pairs if n != attrs.axis and a is b]
    return [FreeAxes((n, n, n), (n,)) for n in free]


@in_f32
def _scatter_elements_reference(
    attrs: ScatterAttrs, x: Array, indices: Array, updates: Array
) -> Array:
    y = x.copy()
    for at in np.ndindex(*indices.shape):
        target = replaced(at, attrs.axis, int(indices[at]))
        y[target] = _combine(attrs.reduction, y[target], updates[at])
    return y


def _scatter_nd_infer(
    attrs: ScatterNdAttrs, x: TensorType, indices: TensorType, updates: TensorType
) -> TensorType:
    _check_scatter(attrs.reduction, x, indices, updates)
    _, shape = _nd_shape(x, indices, 0)
    agree_shapes(updates.shape, shape, f"updates {updates} do not fit {x} and {indices}")
    return x


def _scatter_nd_free(
    attrs: ScatterNdAttrs, x: TensorType, indices: TensorType, updates: TensorType
) -> list[FreeAxes]:
    """Returns the axes of the slices: those behind the axes of x that a tuple of indices has."""
    first = as_int(indices.shape[-1])
    ahead = indices.rank - 1  # axes of the updates before those of a slice
    if first is None:
        return []
    return [FreeAxes((n, None, n - first + ahead), (n,)) for n in range(first, x.rank)]


@in_f32
def _scatter_nd_reference(attrs: ScatterNdAttrs, x: Array, indices: Array, updates: Array) -> Array:
    y = x.copy()
    for at in np.ndindex(*indices.shape[:-1]):
        target = tuple(int(n) for n in indices[at])
        y[target] = _combine(attrs.reduction, y[target], updates[at])
    return y


def _scatter_rows_infer(
    attrs: ScatterNdAttrs, x: TensorType, indices: TensorType, table: TensorType, rows: TensorType
) -> TensorType:
    return _scatter_nd_infer(attrs, x, indices, _gather_infer(AxisAttrs(0), table, rows))


def _scatter_rows_free(
    attrs: ScatterNdAttrs, x: TensorType, indices: TensorType, table: TensorType, rows: TensorType
) -> list[FreeAxes]:
    free = []
    for axes in _scatter_nd_free(attrs, x, indices, _gather_infer(AxisAttrs(0), table, rows)):
        n, _, axis = axes.operands
        assert axis is not None
        of_rows = axis < rows.rank
        pair = (None, axis) if of_rows else (axis - rows.rank + 1, None)
        free.append(FreeAxes((n, None, *pair), axes.results))
    return free


def _scatter_rows_reference(
    attrs: ScatterNdAttrs, x: Array, indices: Array, table: Array, rows: Array
) -> OutArrays:
    return _scatter_nd_reference(attrs, x, indices, np.take(table, rows, axis=0))


# ---- update_slice --------------------------------------------------------------------------------


def _check_update(axis: int, x: TensorType, update: TensorType) -> None:
    """Checks that `x` and its update differ in the size of `axis` at most."""
    check_axis(axis, x.rank)
    require(update.dtype is x.dtype, f"{update} and {x} differ in type")
    require(update.rank == x.rank, f"{update} and {x} differ in rank")
    for n, (a, c) in enumerate(zip_equal(x.shape, update.shape)):
        if n != axis:
            agree(a, c, f"axis {n} of an update")


def _update_slice_infer(attrs: UpdateSliceAttrs, x: TensorType, update: TensorType) -> TensorType:
    _check_update(attrs.axis, x, update)
    behind = as_int(x.shape[attrs.axis] - attrs.start - update.shape[attrs.axis])
    inside = (behind is None or behind >= 0) and (as_int(attrs.start) or 0) >= 0
    require(inside, f"{update} from {attrs.start} on does not fit into {x}")
    return x


def _update_slice_free(
    attrs: UpdateSliceAttrs, x: TensorType, update: TensorType
) -> list[FreeAxes]:
    return [FreeAxes((n, n), (n,)) for n in range(x.rank) if n != attrs.axis]


def _update_slice_reference(attrs: UpdateSliceAttrs, x: Array, update: Array) -> Array:
    y = x.copy()
    start = integer(attrs.start)
    rows = slice(start, start + update.shape[attrs.axis])
    y[(slice(None),) * attrs.axis + (rows,)] = update
    return y


# ---- tensor_scatter ------------------------------------------------------------------------------


def _tensor_scatter_infer(
    attrs: TensorScatterAttrs,
    cache: TensorType,
    update: TensorType,
    places: TensorType | None = None,
) -> TensorType:
    _check_update(attrs.axis, cache, update)
    require(attrs.axis > 0, "axis 0 is the batch, a cache grows along another one")
    require(attrs.mode in ("linear", "circular"), f"unknown mode {attrs.mode}")
    if places is not None:
        require(places.rank == 1 and places.dtype is I64, f"{places} must be a vector of i64")
    room = as_int(cache.shape[attrs.axis] - update.shape[attrs.axis])
    require(room is None or room >= 0, f"{cache} has no room for {update}")
    return cache


def _tensor_scatter_reference(
    attrs: TensorScatterAttrs, cache: Array, update: Array, places: Array | None
) -> Array:
    y = cache.copy()
    for batch in range(len(y)):
        start = 0 if places is None else int(places[batch])
        target = np.moveaxis(y[batch], attrs.axis - 1, 0)
        for step, row in enumerate(np.moveaxis(update[batch], attrs.axis - 1, 0)):
            at = start + step
            target[at % len(target) if attrs.mode == "circular" else at] = row
    return y


def _tensor_scatter_element(
    b: ExprBuilder,
    i: Point,
    attrs: TensorScatterAttrs,
    cache: TensorType,
    update: TensorType,
    places: TensorType | None,
) -> Scalar:
    step: Scalar = index_value(i[attrs.axis], I64)
    if places is not None:
        step = step - b.read(2, i[0])
    if attrs.mode == "circular":
        step = fn("mod", step, cache.shape[attrs.axis])
    length = update.shape[attrs.axis]
    at = b.position(clamped(step, length), length)
    new = b.read(1, *replaced(i, attrs.axis, at), fill=guard(length))
    return choose(inside(step, length), new, b.read(0, *i))


# ---- rows of the op table ------------------------------------------------------------------------

_MOVES = Trait.MOVEMENT

OPS = (
    op_row(
        "gather", AxisAttrs, _gather_infer, _gather_reference, MOVED,
        "Slices of x along an axis, chosen by an index tensor.",
        element=_gather_element, traits=_MOVES, onnx=OnnxBinding("Gather"),
    ),
    op_row(
        "gather_elements", AxisAttrs, _elements_infer, _elements_reference,
        MOVED,
        "Elements of x whose place along one axis an index tensor gives.",
        element=_elements_element, traits=_MOVES,
        onnx=OnnxBinding("GatherElements", since=11),
    ),
    op_row(
        "gather_nd", GatherNdAttrs, _nd_infer, _nd_reference, MOVED,
        "Slices of x chosen by tuples of indices, the last axis of the index tensor.",
        element=_nd_element, traits=_MOVES,
        onnx=OnnxBinding("GatherND", since=11),
    ),
    op_row(
        "scatter_elements", ScatterAttrs, _scatter_elements_infer,
        _scatter_elements_reference, COMMON,
        "x with updates combined in at the places an index tensor gives along one axis.",
        onnx=OnnxBinding("ScatterElements", since=11),
        free_axes=_scatter_elements_free,
    ),
    op_row(
        "scatter_nd", ScatterNdAttrs, _scatter_nd_infer, _scatter_nd_reference,
        COMMON,
        "x with slices combined in at the places that tuples of indices give.",
        onnx=OnnxBinding("ScatterND", since=11),
        free_axes=_scatter_nd_free,
    ),
    op_row(
        "scatter_rows", ScatterNdAttrs, _scatter_rows_infer, _scatter_rows_reference, COMMON,
        "As scatter_nd, with rows of a table as slices; operands (x, indices, table, rows).",
        call="scatter_nd", free_axes=_scatter_rows_free,
    ),
    op_row(
        "update_slice", UpdateSliceAttrs, _update_slice_infer, _update_slice_reference,
        COMMON,
        "x with the rows from `start` on along an axis replaced by the update's.",
        free_axes=_update_slice_free,
    ),
    op_row(
        "tensor_scatter", TensorScatterAttrs, _tensor_scatter_infer,
        _tensor_scatter_reference, ALL,
        "A cache with new rows at a place of each batch; operands (cache, update, places).",
        element=_tensor_scatter_element, traits=_MOVES,
        onnx=OnnxBinding("TensorScatter", since=24),
    ),
)  # fmt: skip
