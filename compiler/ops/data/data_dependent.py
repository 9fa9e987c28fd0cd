"""Ops with data-dependent loops: sorting, selection, suppression.

They have no expression; each is a C function of the runtime. If the size of a result depends on
data, the attribute `size` is a size symbol, which gets its value when the op runs.
"""

import numpy as np
from tcc.frozen import frozen
from tcc.ir.index import Index, as_int, const
from tcc.ir.op import (
    Array,
    FreeAxes,
    OutArrays,
    OutTypes,
    Trait,
)
from tcc.ir.types import BOOL, F32, I32, I64, TensorType, element_count
from tcc.ops.operands import integer, require
from tcc.ops.rows import op_row
from tcc.ops.shapes import (
    COMMON,
    NUMERIC,
    STORED,
    agree,
    check_axis,
    replaced,
)


@frozen
class TopKAttrs:
    """The op finds the `k` largest (or smallest) elements along `axis`; equal elements keep
    their order."""

    axis: int
    k: Index
    largest: bool
    sorted: bool


@frozen
class NonZeroAttrs:
    """`size` is the number of nonzero elements."""

    size: Index


@frozen
class CompressAttrs:
    """The attributes of a selection of elements along `axis` by conditions.

    If `axis` is None, x is flattened first. `size` is the number of true conditions; conditions
    beyond the end of the axis do not count.
    """

    axis: int | None
    size: Index


@frozen
class UniqueAttrs:
    """The attributes of a selection of the distinct slices along `axis`.

    If `axis` is None, x is flattened first, and its distinct elements are selected. `size` is the
    number of distinct slices or elements.
    """

    axis: int | None
    sorted: bool
    size: Index


@frozen
class NonMaxSuppressionAttrs:
    """`center_point_box` is the encoding of boxes.

    0 means two opposite corners (y1, x1, y2, x2), and 1 means (x centre, y centre, width, height).
    """

    center_point_box: int
    size: Index


@frozen
class BindSizeAttrs:
    """The op gives the size symbol `symbol` the value of an element of the operand.

    `element` is the row-major position of the element. Its value must be in the symbol's range. If
    `signed`, negative values are allowed too.
    """

    symbol: Index
    element: int
    signed: bool = False


# ---- top_k ---------------------------------------------------------------------------------------


def _top_k_infer(attrs: TopKAttrs, x: TensorType) -> OutTypes:
    check_axis(attrs.axis, x.rank)
    k, extent = as_int(attrs.k), as_int(x.shape[attrs.axis])
    require(k is None or extent is None or k <= extent, f"top {k} of axis {attrs.axis} of {x}")
    shape = replaced(x.shape, attrs.axis, attrs.k)
    return TensorType(x.dtype, shape), TensorType(I64, shape)


def _top_k_free(attrs: TopKAttrs, x: TensorType) -> list[FreeAxes]:
    return [FreeAxes((n,), (n, n)) for n in range(x.rank) if n != attrs.axis]


def _top_k_reference(attrs: TopKAttrs, x: Array) -> OutArrays:
    k = integer(attrs.k)
    if attrs.largest:
        # Equal elements must keep their order. A stable ascending sort of the reversed axis, read
        # backwards, does that.
        back = np.argsort(np.flip(x, attrs.axis), axis=attrs.axis, kind="stable")
        order = x.shape[attrs.axis] - 1 - np.flip(back, attrs.axis)
    else:
        order = np.argsort(x, axis=attrs.axis, kind="stable")
    best = np.take(order, range(k), axis=attrs.axis)
    return np.take_along_axis(x, best, axis=attrs.axis), best.astype(np.int64)


# ---- non_zero and compress -----------------------------------------------------------------------


def _non_zero_infer(attrs: NonZeroAttrs, x: TensorType) -> TensorType:
    return TensorType(I64, (const(x.rank), attrs.size))


def _non_zero_reference(attrs: NonZeroAttrs, x: Array) -> Array:
    if not x.ndim:
        return np.zeros((0, int(x != 0)), np.int64)
    return np.stack(np.nonzero(x)).astype(np.int64)


def _compress_infer(attrs: CompressAttrs, x: TensorType, condition: TensorType) -> TensorType:
    require(condition.dtype is BOOL and condition.rank == 1, f"{condition} is no vector of bool")
    return _selected(x, attrs)


def _selected(x: TensorType, attrs: CompressAttrs | UniqueAttrs) -> TensorType:
    """Returns the type of `size` selected elements of `x`, or of `size` slices along
    `attrs.axis`."""
    if attrs.axis is None:
        return TensorType(x.dtype, (attrs.size,))
    check_axis(attrs.axis, x.rank)
    return TensorType(x.dtype, replaced(x.shape, attrs.axis, attrs.size))


def _compress_reference(attrs: CompressAttrs, x: Array, condition: Array) -> Array:
    extent = x.size if attrs.axis is None else x.shape[attrs.axis]
    return np.compress(condition[:extent], x, axis=attrs.axis)


# ---- unique --------------------------------------------------------------------------------------


def _unique_infer(attrs: UniqueAttrs, x: TensorType) -> OutTypes:
    vector = TensorType(I64, (attrs.size,))
    values = _selected(x, attrs)
    count = element_count(x.shape) if attrs.axis is None else x.shape[attrs.axis]
    return values, vector, TensorType(I64, (count,)), vector


def _unique_reference(attrs: UniqueAttrs, x: Array) -> OutArrays:
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=attrs.axis
    )
    inverse = inverse.reshape(-1)
    if not attrs.sorted:
        order = np.argsort(first, kind="stable")
        rank = np.argsort(order)
        values = np.take(values, order, axis=attrs.axis or 0)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return (values, *(a.astype(np.int64) for a in (first, inverse, counts)))


# ---- non_max_suppression -------------------------------------------------------------------------


def _nms_infer(
    attrs: NonMaxSuppressionAttrs,
    boxes: TensorType,
    scores: TensorType,
    max_boxes: TensorType | None = None,
    iou: TensorType | None = None,
    min_score: TensorType | None = None,
) -> TensorType:
    require(boxes.rank == 3, f"the boxes {boxes} must be [batch, box, 4]")
    agree(boxes.shape[2], const(4), "the numbers of a box")
    require(scores.rank == 3, f"the scores {scores} must be [batch, class, box]")
    require(boxes.dtype is F32 and scores.dtype is F32, "boxes and scores are f32")
    limits = ((max_boxes, I64), (iou, F32), (min_score, F32))
    for number, (limit, dtype) in enumerate(limits, 2):
        require(limit is None or limit.dtype is dtype, f"operand {number} must be {dtype}")
    return TensorType(I64, (attrs.size, const(3)))


def _corners(boxes: Array, center_point_box: int) -> Array:
    """Returns boxes as (low y, low x, high y, high x), whichever way they are encoded."""
    if center_point_box:
        x, y, w, h = boxes.T
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([_smaller(first, second), _larger(first, second)], axis=1)


def _smaller(a: Array, b: Array) -> Array:
    """Returns the smaller number as the C code does: `b` if either is NaN."""
    return np.where(a < b, a, b)


def _larger(a: Array, b: Array) -> Array:
    return np.where(a > b, a, b)


def _overlap(a: Array, b: Array) -> float:
    """Returns the area of the intersection of two boxes divided by the area of their union."""
    lengths = _smaller(a[2:], b[2:]) - _larger(a[:2], b[:2])
    if (lengths <= 0).any():
        return 0.0
    common = float(np.prod(lengths))
    areas = [float(np.prod(box[2:] - box[:2])) for box in (a, b)]
    return 0.0 if min(areas) <= 0 else common / (sum(areas) - common)


def _limit(limit: Array | None, default: float) -> float:
    return default if limit is None else float(limit.reshape(()))


def _nms_reference(
    attrs: NonMaxSuppressionAttrs,
    boxes: Array,
    scores: Array,
    max_boxes: Array | None,
    iou: Array | None,
    min_score: Array | None,
) -> Array:
    most, largest_overlap = max(int(_limit(max_boxes, 0)), 0), _limit(iou, 0.0)
    threshold = _limit(min_score, -np.inf)
    picked: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        corners = _corners(boxes[batch], attrs.center_point_box)
        selected: list[int] = []
        for box in np.argsort(-scores[batch, kind], kind="stable"):
            if len(selected) == most or not scores[batch, kind, box] > threshold:
                break
            overlaps = [_overlap(corners[box], corners[other]) for other in selected]
            if not any(o > largest_overlap and o > 0 for o in overlaps):
                selected.append(int(box))
        picked.extend((batch, kind, box) for box in selected)
    return np.array(picked, np.int64).reshape(-1, 3)


# ---- bind_size -----------------------------------------------------------------------------------


def _bind_infer(attrs: BindSizeAttrs, x: TensorType) -> OutTypes:
    require(x.dtype in (I32, I64), f"a size comes from i32 or i64, not {x}")
    count = x.count
    require(count is None or 0 <= attrs.element < count, f"{x} has no element {attrs.element}")
    return ()


# ---- rows of the op table ------------------------------------------------------------------------

_OPAQUE = Trait.OPAQUE

OPS = (
    op_row(
        "top_k", TopKAttrs, _top_k_infer, _top_k_reference, NUMERIC,
        "The k largest or smallest elements along an axis, and their places.",
        free_axes=_top_k_free,
    ),
    op_row(
        "non_zero", NonZeroAttrs, _non_zero_infer, _non_zero_reference,
        COMMON,
        "The indices of elements that are not zero, one column each, in row-major order.",
        traits=_OPAQUE,
    ),
    op_row(
        "compress", CompressAttrs, _compress_infer, _compress_reference,
        STORED,
        "The slices along an axis whose condition is true.",
        traits=_OPAQUE,
    ),
    op_row(
        "unique", UniqueAttrs, _unique_infer, _unique_reference, COMMON,
        "Distinct elements or slices, their first positions, the inverse map, and their counts.",
        traits=_OPAQUE,
    ),
    op_row(
        "non_max_suppression", NonMaxSuppressionAttrs, _nms_infer, _nms_reference,
        (F32,),
        "Boxes by falling score that overlap no better box; rows are (batch, class, box).",
        traits=_OPAQUE,
    ),
    op_row(
        "bind_size", BindSizeAttrs, _bind_infer, lambda *_: (), (I32, I64),
        "Gives a size symbol the value of one element of a tensor.",
        traits=_OPAQUE,
    ),
)  # fmt: skip
