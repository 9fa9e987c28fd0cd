"""Replaces ops by simpler ops.

    %y = conv_transpose(%x, %w) {strides=(2, 2)}     %a = conv(%x, %w')      ; 4 channels for each
                                                     %b, %c = reshape, transpose
                                                     %y = reshape(%c)        ; one in every 2 x 2

A transposed convolution with constant weights becomes convolutions without inserted zeros.  With
stride s, output o of an axis belongs to the residue (o + before) mod s, and depends only on every
s-th element of the filter.  So a convolution computes the residues as channels, and a transpose
interleaves them.

If the stride does not divide the filter's size, the first residues have a tap more than the last
residues.  The first and the last residues then become separate convolutions, because zeros in place
of the missing taps would turn infinities into NaN.

Requires folded constants.  Establishes that no conv_transpose with constant weights and dilation 1
is left, except for nodes that the caller keeps, and nodes whose filters would become too large.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, types_of
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import Indices, as_int, bounds, const
from tcc.ir.op import Array
from tcc.ir.types import F32, F64, DType, TensorType
from tcc.known import all_known
from tcc.ops import OPS
from tcc.ops.shapes import present, replaced
from tcc.passes.graph.emit import emit
from tcc.zipped import zip_equal


def decompose_transposed(graph: Graph, whole: Callable[[Node], bool] | None = None) -> Graph:
    """Returns `graph` with convolutions in place of transposed convolutions of constant weights.

    A node for which `whole` returns True stays as it is.
    """
    return rewritten(graph, partial(_transposed, whole=whole))


def is_derived(node: Node) -> bool:
    """Returns True if the step `derive` can find the convolutions of a transposed convolution.

    It can if the node has one group, a stride above 1 and numeric sizes, and if the stride divides
    the filter's size along each axis.
    """
    return _is_regular(node, (F32, F64)) and not any(k % s for k, s in _sizes(node))


def may_take_forms(node: Node) -> bool:
    """Returns True if the step `derive` may compute a transposed convolution in one piece.

    It may find the node's convolutions, or a fast algorithm that computes all residues together.
    """
    return is_derived(node) or _is_regular(node, (F32,))


def _is_regular(node: Node, dtypes: Sequence[DType]) -> bool:
    (y,), attrs = node.outputs, node.attrs
    is_static = all(as_int(n) is not None for n in y.shape[2:])
    covers_stride = all(k >= s for k, s in _sizes(node))
    strided = attrs.group == 1 and max(attrs.strides) > 1
    return y.dtype in dtypes and is_static and covers_stride and strided


def _sizes(node: Node) -> list[tuple[int, int]]:
    """Returns the pair (taps, stride) of each spatial axis."""
    weights = node.inputs[1]
    assert weights is not None
    taps = (as_int(n) or 0 for n in weights.shape[2:])
    return list(zip_equal(taps, node.attrs.strides))


# ---- transposed convolutions --------------------------------------------------------------------


_MOST_FILTERS = 1 << 22  # the most elements in the filters of all residues, zeros included


class _Span(NamedTuple):
    """A range of residues (output positions modulo the stride): `first` to `end` - 1.

    An output with a residue of this range sums `taps` taps of the filter.
    """

    first: int
    end: int
    taps: int


@frozen
class _Axis:
    """A spatial axis of a transposed convolution, as an axis of ordinary convolutions.

    Each position of the convolutions computes `stride` outputs from `taps` inputs.  Output o has
    the position (o + skip) // stride and the residue (o + skip) % stride.  `kernel` is the filter's
    size.  `before` and `after` are the convolutions' padding, which may be negative.
    """

    stride: int
    kernel: int
    taps: int
    skip: int
    before: int
    after: int

    @property
    def spans(self) -> tuple[_Span, ...]:
        """The ranges of residues that have equally many taps.

        Residues without taps are in no range.
        """
        longer_residues = self.kernel % self.stride
        first_span = _Span(0, longer_residues or self.stride, self.taps)
        if not longer_residues or self.taps == 1:
            return (first_span,)
        return first_span, _Span(longer_residues, self.stride, self.taps - 1)


def _axis(kernel: int, stride: int, before: int, after: int, extra: int) -> _Axis:
    taps = -(-kernel // stride)
    first = before // stride
    # The position of the last output, relative to the last input.
    last = (extra + kernel - after - 1) // stride
    return _Axis(stride, kernel, taps, before - first * stride, taps - 1 - first, last)


def _transposed(
    b: GraphBuilder, node: Node, inputs: Inputs, *, whole: Callable[[Node], bool] | None
) -> Replacement:
    if node.op.name != "conv_transpose" or (whole is not None and whole(node)):
        return None
    (x, source), bias = present(inputs[:2]), (*inputs, None)[2]
    weights = b.arrays(source)
    if weights is None:
        return None
    value = phases(b, node.attrs, (x, source, bias), weights, b.arrays(bias))
    return None if value is None else (value,)


def phases(
    b: GraphBuilder,
    attrs: Any,
    operands: tuple[Value, Value, Value | None],
    weights: Sequence[Array],
    shift: Sequence[Array] | None,
) -> Value | None:
    """Adds convolutions that compute a transposed convolution, and returns its result.

    `operands` are image, weights and bias.  `weights` has the arrays of the weights, one per rank
    or one for all, and `shift` those of the bias if it is constant.  Returns None if the new
    filters would be too large, if sizes or padding do not allow it, or if the result is empty.
    """
    x, source, bias = operands
    before, after = (all_known(map(as_int, ends)) for ends in (attrs.before, attrs.after))
    if before is None or after is None or set(attrs.dilations) != {1}:
        return None
    kernel = weights[0].shape[2:]
    axes = list(map(_axis, kernel, attrs.strides, before, after, attrs.output_padding))
    filters = prod(weights[0].shape[:2]) * prod(a.taps * a.stride for a in axes)
    # The limit refuses strides that are far larger than the filter.
    if filters > max(_MOST_FILTERS, 8 * weights[0].size):
        return None
    (y,) = OPS["conv_transpose"].infer(types_of(operands), attrs)
    if 0 in (y.static_shape or ()):
        return None
    constant = None if _has_empty_residues(axes) else shift
    sizes = [a.taps for a in axes], [a.stride for a in axes]
    kernels = [split_kernels(array, *sizes, attrs.group) for array in weights]
    value = _Parts(b, axes, kernels, constant).residues(x, source)
    if value is None:
        return None
    value = _interleave(b, value, y, axes)
    if bias is not None and constant is None:
        column = (bias.shape[0], *[const(1)] * len(axes))
        value = emit(b, "add", value, emit(b, "reshape", bias, shape=column))
    return value


def _has_empty_residues(axes: Sequence[_Axis]) -> bool:
    """Returns True if some residue has no taps, because the stride is larger than the filter."""
    return any(a.spans[-1].end < a.stride for a in axes)


@frozen
class _Parts:
    """The convolutions that compute a transposed convolution.

    Residues with equally many taps along every axis share a convolution.  `kernels` has the
    arrays that `split_kernels` returns, one per rank or one for all.  `bias` has the constants that
    the convolutions add, if any.
    """

    b: GraphBuilder
    axes: Sequence[_Axis]
    kernels: Sequence[Array]
    bias: Sequence[Array] | None

    def residues(self, x: Value, source: Value) -> Value | None:
        """Returns the outputs of all residues, as [n, group, residues..., channel, positions...].

        There is one `residues` axis and one `positions` axis for each spatial axis: the element is
        the output at position * stride + residue - skip.  `x` is the image; constants get the
        name and type of `source`, the weights.  Returns None if padding leaves no elements of the
        image.
        """
        every = product(*(a.spans for a in self.axes))
        parts = all_known(self._part(x, source, spans) for spans in every)
        if parts is None:
            return None
        for at in range(len(self.axes) - 1, -1, -1):
            count = len(self.axes[at].spans)
            groups = (parts[n : n + count] for n in range(0, len(parts), count))
            parts = tuple(self._all_residues(group, at) for group in groups)
        return parts[0]

    def _all_residues(self, parts: Sequence[Value], at: int) -> Value:
        """Returns `parts` joined along the residues of axis `at`.

        Residues without taps are zeros.
        """
        value, axis = parts[0], self.axes[at]
        if len(parts) > 1:
            value = emit(self.b, "concat", *parts, axis=2 + at)
        missing = axis.stride - axis.spans[-1].end
        if missing:
            none = (const(0),) * value.rank
            after = replaced(none, 2 + at, const(missing))
            value = emit(self.b, "pad", value, before=none, after=after, mode="constant")
        return value

    def _part(self, x: Value, source: Value, spans: Sequence[_Span]) -> Value | None:
        """Returns the outputs of the residues in `spans`, which has a range for each spatial axis.

        The result is [n, group, residues..., channel, positions...], as in `residues`.  Returns
        None if padding leaves no elements of the image.
        """
        b, rank, group = self.b, len(self.axes), self.kernels[0].shape[0]
        late = [a.taps - s.taps for a, s in zip_equal(self.axes, spans)]
        axes = [replace(a, before=a.before - n) for a, n in zip_equal(self.axes, late)]
        cropped = _crop(b, x, axes)
        if cropped is None:
            return None
        residues = [slice(s.first, s.end) for s in spans]
        taps = [slice(n, None) for n in late]
        at = (slice(None), *residues, slice(None), slice(None), *taps)
        kernels = [np.ascontiguousarray(kernel[at]) for kernel in self.kernels]
        shape = kernels[0].shape
        arrays = [kernel.reshape(-1, *shape[rank + 2 :]) for kernel in kernels]
        names = b.sources(source)
        operands = [cropped, b.constant_per_rank(arrays, source.name, source.dtype, names)]
        if self.bias is not None:
            count = prod(shape[1 : rank + 1])
            biases = [
                np.repeat(bias.reshape(group, 1, -1), count, axis=1).reshape(-1)
                for bias in self.bias
            ]
            operands.append(b.constant_per_rank(biases, "bias", source.dtype))
        value = emit(
            b,
            "conv",
            *operands,
            strides=(1,) * rank,
            before=tuple(max(a.before, 0) for a in axes),
            after=tuple(max(a.after, 0) for a in axes),
            dilations=(1,) * rank,
            group=group,
        )
        n, _, *image = value.shape
        shape = (n, *map(const, kernels[0].shape[: rank + 2]), *image)
        return emit(b, "reshape", value, shape=shape)


def _crop(b: GraphBuilder, x: Value, axes: Sequence[_Axis]) -> Value | None:
    """Returns `x` without the elements that a negative padding removes.

    Returns None if possibly no element would remain.
    """
    starts = [max(-a.before, 0) for a in axes]
    ends = [max(-a.after, 0) for a in axes]
    if not any((*starts, *ends)):
        return x
    image = [n - p - q for n, p, q in zip_equal(x.shape[2:], starts, ends)]
    if any((bounds(n)[0] or 0) < 1 for n in image):
        return None
    return _sliced(b, x, starts, (*x.shape[:2], *image))


def _sliced(b: GraphBuilder, x: Value, starts: Sequence[int], sizes: Indices) -> Value:
    """Returns the part of `x` that begins at `starts` along the spatial axes, in shape `sizes`."""
    first = (const(0), const(0), *map(const, starts))
    return emit(b, "slice", x, starts=first, steps=(1,) * x.rank, sizes=sizes)


def split_kernels(
    weights: Array, taps: Sequence[int], strides: Sequence[int], groups: int
) -> Array:
    """Returns the filters of a transposed convolution, split into a filter for each residue.

    Takes filters [group * input, channel, size...], and returns [group, residues..., channel,
    inputs of a group, taps...].  The taps of a residue's filter are reversed.  If it has fewer
    taps, it begins with zeros.
    """
    inputs, channels = weights.shape[0] // groups, weights.shape[1]
    pairs = list(zip_equal(taps, strides))
    full = [(0, t * s - k) for (t, s), k in zip_equal(pairs, weights.shape[2:])]
    padded = np.pad(weights, ((0, 0), (0, 0), *full))
    split = padded.reshape(groups, inputs, channels, *(n for pair in pairs for n in pair))
    at, residues = tuple(range(3, split.ndim, 2)), tuple(range(4, split.ndim, 2))
    return np.flip(split, at).transpose(0, *residues, 2, 1, *at)


def _interleave(b: GraphBuilder, value: Value, y: TensorType, axes: Sequence[_Axis]) -> Value:
    """Returns the result of a transposed convolution, whose residues are interleaved.

    `value` is [n, group, residues..., channel, positions...], and the result [n, group * channel,
    outputs...].
    """
    rank, n = len(axes), value.shape[0]
    image = value.shape[3 + rank :]
    order = [m for d in range(rank) for m in (3 + rank + d, 2 + d)]
    full_shape = (n, y.shape[1], *(p * const(a.stride) for p, a in zip_equal(image, axes)))
    value = emit(b, "transpose", value, perm=(0, 1, 2 + rank, *order))
    value = emit(b, "reshape", value, shape=full_shape)
    return value if full_shape == y.shape else _sliced(b, value, [a.skip for a in axes], y.shape)
