"""Rules for ops that copy elements.

Copies that keep all elements in place are dropped, and two copies in a row become one.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from tcc.ir.graph import Node, Value, types_of
from tcc.ir.graph.rewrite import Replacement, RewriteSite, Rule
from tcc.ir.index import as_index, as_int, const
from tcc.ir.types import TensorType
from tcc.known import all_known
from tcc.ops.algebra.window import reaching_taps
from tcc.passes.graph.emit import emit
from tcc.zipped import zip_equal


def result_types(site: RewriteSite) -> tuple[TensorType, ...]:
    """Returns the types of the node's results, inferred for its inputs in the new graph."""
    return site.node.op.infer(types_of(site.inputs), site.node.attrs)


def first_operand(site: RewriteSite) -> Value:
    """Returns operand 0 of a node; its op requires that operand."""
    value = site.inputs[0]
    assert value is not None
    return value


def same_type(site: RewriteSite, number: int) -> Value | None:
    """Returns operand `number` if it has the type of the node's only result, otherwise None.

    If it has another type, the node also broadcasts or casts, and cannot be dropped.
    """
    value = site.inputs[number]
    return value if value is not None and result_types(site) == (value.type,) else None


# ---- nodes that move nothing --------------------------------------------------------------------


def _moves_nothing(site: RewriteSite) -> Value | None:
    attrs = site.node.attrs
    match site.node.op.name:
        case "identity" | "reshape" | "expand" | "cast" | "split":
            return same_type(site, 0)
        case "transpose":
            return first_operand(site) if [*attrs.perm] == sorted(attrs.perm) else None
        case "concat":
            return first_operand(site) if len(site.inputs) == 1 else None
        case "tile":
            return first_operand(site) if all(as_int(n) == 1 for n in attrs.repeats) else None
        case "slice":
            is_whole = all(as_int(n) == 0 for n in attrs.starts) and set(attrs.steps) <= {1}
            return same_type(site, 0) if is_whole else None
        case "pad":
            is_empty = all(as_int(n) == 0 for n in (*attrs.before, *attrs.after))
            return first_operand(site) if is_empty else None
    return None


# ---- two copies in a row ------------------------------------------------------------------------


def same_before(site: RewriteSite) -> Node | None:
    """Returns the producer of operand 0 if it has the same op as the node, otherwise None."""
    before = site.producer(0)
    return before if before and before.op is site.node.op else None


def _double_reshape(site: RewriteSite) -> Replacement:
    before = same_before(site)
    if before is None:
        return None
    return site.builder.add(before.op, before.inputs, site.node.attrs)


def _double_transpose(site: RewriteSite) -> Value | None:
    before = same_before(site)
    if before is None:
        return None
    perm = tuple(before.attrs.perm[p] for p in site.node.attrs.perm)
    return emit(site.builder, "transpose", *before.inputs, perm=perm)


def _unit_transpose(site: RewriteSite) -> Value | None:
    """Returns a reshape in place of a transpose that permutes only axes of length 1."""
    x, perm = first_operand(site), site.node.attrs.perm
    shape = tuple(x.shape[p] for p in perm)
    long_axes = [p for p in perm if x.shape[p] is not const(1)]
    return emit(site.builder, "reshape", x, shape=shape) if long_axes == sorted(long_axes) else None


# ---- zeros before a convolution -----------------------------------------------------------------


def _padded_conv(site: RewriteSite) -> Replacement:
    """Returns a convolution with more padding, in place of a zero padding and a convolution."""
    pad = site.producer(0)
    if pad is None or pad.op.name != "pad" or pad.attrs.mode != "constant":
        return None
    before, after = (all_known(map(as_int, n)) for n in (pad.attrs.before, pad.attrs.after))
    if before is None or after is None or min(*before, *after) < 0:
        return None
    if any((*before[:2], *after[:2])) or not _zero_fill(site, pad):
        return None
    attrs, image = site.node.attrs, pad.inputs[0]
    assert image is not None
    wider = replace(
        attrs,
        before=tuple(as_index(a) + b for a, b in zip_equal(attrs.before, before[2:])),
        after=tuple(as_index(a) + b for a, b in zip_equal(attrs.after, after[2:])),
    )
    return site.builder.add(site.node.op, [image, *site.inputs[1:]], wider)


def _zero_fill(site: RewriteSite, pad: Node) -> bool:
    _, fill = (*pad.inputs, None)[:2]
    array = site.builder.array(fill)
    return fill is None or (array is not None and not array.any())


def _reaching_taps(site: RewriteSite) -> Replacement:
    """Returns a convolution without the filter taps that read only padding, at every position."""
    (_, matrix, *bias), weights, attrs = site.inputs, site.array(1), site.node.attrs
    sizes = (first_operand(site).shape[2:], attrs.before, attrs.after)
    static_sizes = all_known(all_known(map(as_int, sizes_of)) for sizes_of in sizes)
    if matrix is None or weights is None or static_sizes is None or not np.isfinite(weights).all():
        # An infinite tap times zero padding is NaN, so such a tap has to stay.
        return None
    image, low, high = static_sizes
    kernel, dilations = weights.shape[2:], attrs.dilations
    taps = list(map(reaching_taps, image, kernel, attrs.strides, low, high, dilations))
    before = [n - tap.start * d for n, tap, d in zip_equal(low, taps, dilations)]
    ends = zip_equal(high, kernel, taps, dilations)
    after = [n - (size - tap.stop) * d for n, size, tap, d in ends]
    if taps == list(map(range, kernel)) or not all(taps) or min(*before, *after) < 0:
        return None
    parts: tuple[Any, ...] = tuple(slice(tap.start, tap.stop) for tap in taps)
    reduced_weights = weights[(..., *parts)]
    b, new_attrs = site.builder, replace(attrs, before=tuple(before), after=tuple(after))
    fewer = b.constant(reduced_weights, matrix.name, matrix.dtype, b.sources(matrix))
    return b.add(site.node.op, [first_operand(site), fewer, *bias], new_attrs)


# ---- scatters of rows --------------------------------------------------------------------------


def _scattered_rows(site: RewriteSite) -> Value | None:
    """Returns a scatter_nd of rows in place of a scatter_elements along the first axis.

    All elements of a row must have the same index.
    """
    if site.node.attrs.axis:
        return None
    repeat, (x, indices, updates) = site.producer(1), site.inputs
    if repeat is None or repeat.op.name != "expand" or x is None or indices is None:
        return None
    count, *width = indices.shape
    places, column = repeat.inputs[0], (count, *(const(1) for _ in width))
    if not width or places is None or places.shape != column:
        return None
    if tuple(width) != x.shape[1:]:
        return None
    b, how = site.builder, site.node.attrs.reduction
    tuples = emit(b, "reshape", places, shape=(count, const(1)))
    return emit(b, "scatter_nd", x, tuples, updates, reduction=how)


# ---- constant conditions ------------------------------------------------------------------------


def _known_where(site: RewriteSite) -> Value | None:
    """Returns the operand of `where` that a constant condition selects for all elements.

    Returns None if that operand does not have the type of the result.
    """
    condition = site.array(0)
    if condition is None or not condition.size or condition.all() != condition.any():
        return None
    return same_type(site, 1 if condition.all() else 2)


MOVEMENT = (
    Rule("moves nothing", _moves_nothing),
    Rule("reshape of reshape", _double_reshape, "reshape"),
    Rule("transpose of transpose", _double_transpose, "transpose"),
    Rule("transpose of unit axes", _unit_transpose, "transpose"),
    Rule("padded convolution", _padded_conv, "conv"),
    Rule("taps outside of the image", _reaching_taps, "conv"),
    Rule("scatter of rows", _scattered_rows, "scatter_elements"),
    Rule("where of a constant", _known_where, "where"),
)
