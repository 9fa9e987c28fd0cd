"""Movement: ops that copy elements to other positions.

Each output is a read of the operand at other indices; `concat` and `pad` select one of several
reads.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, StageRef, index_value, literal
from tcc.ir.index import Index, IndexLike, as_int, const
from tcc.ir.op import (
    Array,
    OpSpec,
    OutArrays,
    OutTypes,
    Trait,
)
from tcc.ir.types import I64, TensorType, element_count
from tcc.ops.formula import aligned, choose, fn
from tcc.ops.operands import differ, require, sizes
from tcc.ops.rows import Function, op_row
from tcc.ops.shapes import MOVED, Point, Shape, agree, present, replaced, same_dtype
from tcc.zipped import zip_equal

_MOVES = Trait.MOVEMENT


@frozen
class ReshapeAttrs:
    """`shape` is the complete output shape, without the placeholders 0 and -1."""

    shape: Shape


@frozen
class TransposeAttrs:
    """Output axis `a` is input axis `perm[a]`."""

    perm: tuple[int, ...]


@frozen
class ExpandAttrs:
    """`shape` broadcasts with the input's shape in both directions.

    An axis of the input may have a symbolic size that differs from the size in `shape`. Then a
    `require` node checks at run time that the input's size is 1 or equal.
    """

    shape: Shape


@frozen
class SliceAttrs:
    """Slices with one entry per axis: `out[i] = x[start + i * step]` for `0 <= i < size`.

    The entries are already clamped to the input.
    """

    starts: Shape
    steps: tuple[int, ...]
    sizes: Shape


@frozen
class ConcatAttrs:
    axis: int


@frozen
class SplitAttrs:
    """`sizes` are the sizes of the parts along `axis`; they add up to the size of the axis."""

    axis: int
    sizes: Shape


@frozen
class TileAttrs:
    repeats: Shape


# ---- reshape -------------------------------------------------------------------------------------


def _reshape_infer(attrs: ReshapeAttrs, x: TensorType) -> TensorType:
    before, after = element_count(x.shape), element_count(attrs.shape)
    require(
        not differ(before, after),
        f"{x} has {before} elements, the new shape {list(attrs.shape)} has {after}",
    )
    return TensorType(x.dtype, attrs.shape)


def _reshape_reference(attrs: ReshapeAttrs, x: Array) -> Array:
    return x.reshape(sizes(attrs.shape)).copy()


def _reshape_element(b: ExprBuilder, i: Point, attrs: ReshapeAttrs, x: TensorType) -> Scalar:
    if x.count == 0:
        return literal(0, x.dtype)  # an empty output is not computed, so the value does not matter
    return b.read(0, *_reshaped(i, attrs.shape, x.shape))


def _reshaped(i: Sequence[Index], shape: Sequence[Index], before: Sequence[Index]) -> Point:
    """Returns the index of an element before a reshape from `before` to `shape`.

    `i` is its index after the reshape. Leading and trailing axes that both shapes share keep their
    index, so that divisions by sizes are needed for the axes between them only.
    """
    equal = [a is b for a, b in zip(shape, before, strict=False)]
    first = ([*equal, False]).index(False)
    equal = [a is b for a, b in zip(shape[first:][::-1], before[first:][::-1], strict=False)]
    last = ([*equal, False]).index(False)
    inner, outer = slice(first, len(before) - last), slice(first, len(shape) - last)
    middle = delinearise(linearise(i[outer], shape[outer]), before[inner])
    return (*i[:first], *middle, *i[len(i) - last :])


def linearise(indices: Sequence[Index], shape: Sequence[Index]) -> Index:
    """Returns the row-major position of `indices` in a tensor of `shape`."""
    linear = const(0)
    for index, dim in zip_equal(indices, shape):
        # The index of an axis of extent 1 is 0. Leaving it out keeps the formula simple.
        linear = linear if as_int(dim) == 1 else linear * dim + index
    return linear


def delinearise(linear: Index, shape: Sequence[Index]) -> Point:
    """Returns the indices of the element at row-major position `linear` in a tensor of `shape`.

    No size in `shape` may be the constant 0, because the sizes become divisors.
    """
    indices: list[Index] = []
    stride = const(1)
    for axis in reversed(range(len(shape))):
        if as_int(shape[axis]) == 1:
            indices.append(const(0))
            continue
        quotient = linear // stride
        leading = all(as_int(d) == 1 for d in shape[:axis])
        indices.append(quotient if leading else quotient % shape[axis])
        stride = stride * shape[axis]
    return tuple(reversed(indices))


# ---- transpose, expand, slice, tile --------------------------------------------------------------


def _transpose_infer(attrs: TransposeAttrs, x: TensorType) -> TensorType:
    require(
        sorted(attrs.perm) == list(range(x.rank)),
        f"{list(attrs.perm)} is no permutation of the {x.rank} axes of {x}",
    )
    return TensorType(x.dtype, tuple(x.shape[p] for p in attrs.perm))


def _transpose_reference(attrs: TransposeAttrs, x: Array) -> Array:
    return np.transpose(x, attrs.perm).copy()


def _transpose_element(b: ExprBuilder, i: Point, attrs: TransposeAttrs, x: TensorType) -> Scalar:
    return b.read(0, *(i[attrs.perm.index(axis)] for axis in range(len(i))))


def _expand_infer(attrs: ExpandAttrs, x: TensorType) -> TensorType:
    rank = max(x.rank, len(attrs.shape))
    pairs = list(zip_equal(_padded(x.shape, rank), _padded(attrs.shape, rank)))
    for size, due in pairs:
        require(not differ(size, due) or size is const(1), f"{size.key} is no {due.key}")
    return TensorType(x.dtype, tuple(due for _, due in pairs))


def _padded(shape: Sequence[Index], rank: int) -> Shape:
    return (*(const(1),) * (rank - len(shape)), *shape)


def _expand_reference(attrs: ExpandAttrs, x: Array) -> Array:
    return x * np.ones(sizes(attrs.shape), x.dtype)


def _expand_element(b: ExprBuilder, i: Point, attrs: ExpandAttrs, x: TensorType) -> Scalar:
    y = _expand_infer(attrs, x)
    pairs = enumerate(zip_equal(x.shape, y.shape[y.rank - x.rank :]))
    open_axes = [axis for axis, (size, due) in pairs if size not in (const(1), due)]

    def element(at: tuple[IndexLike, ...], axes: Sequence[int]) -> Scalar:
        if not axes:
            return b.read(0, *at)  # the select drops the reads outside the input
        axis, *other_axes = axes
        first = element(replaced(at, axis, 0), other_axes)
        is_one = fn("eq", index_value(x.shape[axis], I64), 1)
        return choose(is_one, first, element(at, other_axes))

    return element(aligned(x.shape, i), open_axes)


def _slice_infer(attrs: SliceAttrs, x: TensorType) -> TensorType:
    counts = {len(attrs.starts), len(attrs.steps), len(attrs.sizes), x.rank}
    require(len(counts) == 1, f"slice needs one start, step and size for each axis of {x}")
    require(0 not in attrs.steps, "slice steps must not be zero")
    for axis, step in enumerate(attrs.steps):
        parts = (attrs.starts[axis], attrs.sizes[axis], x.shape[axis])
        start, size, extent = map(as_int, parts)
        if start is not None and extent is not None and size:
            ends = (start, start + (size - 1) * step)
            inside = min(ends) >= 0 and max(ends) < extent
            require(inside, f"elements {ends[0]} to {ends[1]} of axis {axis} are not all in {x}")
    return TensorType(x.dtype, attrs.sizes)


def _slice_reference(attrs: SliceAttrs, x: Array) -> Array:
    starts, lengths = sizes(attrs.starts), sizes(attrs.sizes)
    picks = [
        start + step * np.arange(n) for start, step, n in zip_equal(starts, attrs.steps, lengths)
    ]
    return (x[np.ix_(*picks)] if picks else x).copy()


def _slice_element(b: ExprBuilder, i: Point, attrs: SliceAttrs, x: TensorType) -> Scalar:
    if as_int(element_count(attrs.sizes)) == 0:
        return literal(0, x.dtype)
    at = (start + k * step for start, step, k in zip_equal(attrs.starts, attrs.steps, i))
    return b.read(0, *at)


def _tile_infer(attrs: TileAttrs, x: TensorType) -> TensorType:
    require(len(attrs.repeats) == x.rank, f"tile needs one repeat for each axis of {x}")
    shape = tuple(d * r for d, r in zip_equal(x.shape, attrs.repeats))
    return TensorType(x.dtype, shape)


def _tile_reference(attrs: TileAttrs, x: Array) -> Array:
    return np.tile(x, sizes(attrs.repeats))


def _tile_element(b: ExprBuilder, i: Point, attrs: TileAttrs, x: TensorType) -> Scalar:
    if as_int(element_count((*x.shape, *attrs.repeats))) == 0:
        return literal(0, x.dtype)
    return b.read(0, *(k % d for k, d in zip_equal(i, x.shape)))


# ---- concat and split ----------------------------------------------------------------------------


def _concat_infer(attrs: ConcatAttrs, *parts: TensorType) -> TensorType:
    dtype, first = same_dtype(*present(parts)), parts[0]
    require(all(p.rank == first.rank for p in parts), f"concat of different ranks: {parts}")
    require(attrs.axis < first.rank, f"axis {attrs.axis} is outside {first}")
    shape = list(first.shape)
    for part in parts[1:]:
        for axis, dim in enumerate(part.shape):
            if axis == attrs.axis:
                shape[axis] = shape[axis] + dim
                continue
            agree(shape[axis], dim, f"parts differ at axis {axis}")
    return TensorType(dtype, tuple(shape))


def _concat_reference(attrs: ConcatAttrs, *parts: Array) -> Array:
    return np.concatenate(parts, axis=attrs.axis)


def _concat_element(b: ExprBuilder, i: Point, attrs: ConcatAttrs, *parts: TensorType) -> Scalar:
    ends: list[Index] = []
    reads: list[Scalar] = []
    end = const(0)
    for number, part in enumerate(parts):
        at = replaced(i, attrs.axis, i[attrs.axis] - end)
        reads.append(b.read(number, *at))  # the select drops the reads outside the operand
        end = end + part.shape[attrs.axis]
        ends.append(end)
    body = reads[-1]
    for value, stop in zip_equal(reads[-2::-1], ends[-2::-1]):
        body = choose(index_value(i[attrs.axis], I64) < stop, value, body)
    return body


def _split_infer(attrs: SplitAttrs, x: TensorType) -> OutTypes:
    require(attrs.axis < x.rank, f"axis {attrs.axis} is outside {x}")
    length = sum(attrs.sizes, const(0))
    agree(x.shape[attrs.axis], length, "the axis and the sum of its parts")
    return tuple(TensorType(x.dtype, replaced(x.shape, attrs.axis, size)) for size in attrs.sizes)


def _split_reference(attrs: SplitAttrs, x: Array) -> OutArrays:
    cuts = np.cumsum(sizes(attrs.sizes))[:-1]
    return tuple(p.copy() for p in np.split(x, cuts, axis=attrs.axis))


def _split_expr(b: ExprBuilder, attrs: SplitAttrs, x: TensorType) -> tuple[StageRef, ...]:
    start = const(0)
    outputs = []
    for part, size in zip_equal(_split_infer(attrs, x), attrs.sizes):
        i = b.point(part)
        at = replaced(i, attrs.axis, i[attrs.axis] + start)
        empty = part.count == 0
        outputs.append(b.stage(i, literal(0, part.dtype) if empty else b.read(0, *at)))
        start = start + size
    return tuple(outputs)


# ---- rows of the op table ------------------------------------------------------------------------


def move_row(
    name: str,
    attrs: type[Any],
    infer: Function,
    reference: Function,
    element: Function,
    doc: str,
    **more: Any,
) -> OpSpec:
    """Returns the op-table row of an op that copies elements; `more` are arguments of `op_row`."""
    return op_row(name, attrs, infer, reference, MOVED, doc, element=element, traits=_MOVES, **more)


OPS = (
    move_row(
        "reshape", ReshapeAttrs, _reshape_infer, _reshape_reference, _reshape_element,
        "The same elements in row-major order under another shape.",
    ),
    move_row(
        "transpose", TransposeAttrs, _transpose_infer, _transpose_reference, _transpose_element,
        "Permutes the axes.",
    ),
    move_row(
        "expand", ExpandAttrs, _expand_infer, _expand_reference, _expand_element,
        "Repeats along axes of extent one.",
    ),
    move_row(
        "slice", SliceAttrs, _slice_infer, _slice_reference, _slice_element,
        "A strided part of each axis.",
    ),
    move_row(
        "tile", TileAttrs, _tile_infer, _tile_reference, _tile_element,
        "Repeats the whole tensor along each axis.",
    ),
    move_row(
        "concat", ConcatAttrs, _concat_infer, _concat_reference, _concat_element,
        "Joins tensors along an axis.",
        arity=(1, 1 << 16),
    ),
    op_row(
        "split", SplitAttrs, _split_infer, _split_reference, MOVED,
        "Cuts a tensor along an axis into parts of given sizes.",
        expr=_split_expr, traits=_MOVES,
    ),
)  # fmt: skip
