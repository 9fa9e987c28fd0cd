"""Replaces ops by simpler ones.

    %y = conv_transpose(%x, %w) {strides=(2, 2)}     %a = conv(%x, %w')      ; 4 channels for each
                                                     %b, %c = reshape, transpose
                                                     %y = reshape(%c)        ; one in every 2 x 2

Row `decompose` of the op table says what an op becomes.  A transposed convolution with constant
weights becomes convolutions without inserted zeros: with stride s each output o of an axis lies
in the residue (o + before) mod s and depends on every s-th element of the kernel only, so a
convolution computes residues as channels, and an index map interleaves them.  Where the stride does
not divide the kernel, the first residues have an element more than the others: these are
convolutions of their own, for zeros in their place would make NaN of infinities.  Requires folded
constants.  Establishes that no conv_transpose with constant weights and dilation 1 is left, but for
those that later passes want whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.index import Indices, as_int, bounds, const
from tcc.ir.op import Array
from tcc.ir.types import F32, F64, DType, TensorType
from tcc.known import all_known
from tcc.ops import OPS
from tcc.passes.graph.emit import emit
from tcc.record import record


def decompose_transposed(graph: Graph, *, whole: Callable[[Node], bool] | None = None) -> Graph:
    """`graph` with transposed convolutions as convolutions, where weights are constant and the node
    is not to stay `whole`."""
    return rewritten(graph, partial(_transposed, whole=whole))


def is_derived(node: Node) -> bool:
    """Whether phases of a transposed convolution are loops that a search finds: in one group, with
    a stride, of sizes that are known, and with phases of as many taps each."""
    return _is_regular(node, (F32, F64)) and not any(k % s for k, s in _sizes(node))


def may_take_forms(node: Node) -> bool:
    """Whether a search or a bilinear form may compute all phases of a transposed convolution."""
    return is_derived(node) or _is_regular(node, (F32,))


def _is_regular(node: Node, dtypes: Sequence[DType]) -> bool:
    (y,), attrs = node.outputs, node.attrs
    known = all(as_int(n) is not None for n in y.type.shape[2:])
    reached = all(k >= s for k, s in _sizes(node))
    strided = attrs.group == 1 and max(attrs.strides) > 1
    return y.type.dtype in dtypes and known and reached and strided


def _sizes(node: Node) -> list[tuple[int, int]]:
    """The taps and the stride along each axis."""
    weights = node.inputs[1]
    assert weights is not None
    taps = (as_int(n) or 0 for n in weights.type.shape[2:])
    return list(zip(taps, node.attrs.strides, strict=True))


# ---- transposed convolutions --------------------------------------------------------------------


_MOST_FILTERS = 1 << 22  # elements of sub-kernels with their zeros


class _Span(NamedTuple):
    """Residues `first` up to `end`, each of `taps` inputs."""

    first: int
    end: int
    taps: int


@record
class _Axis:
    """One spatial axis.

    Output o is element (o + skip) % stride of what position (o + skip) // stride computes from
    `taps` inputs; `before` and `after` are the convolution's padding, which may be negative.
    """

    stride: int
    kernel: int
    taps: int
    skip: int
    before: int
    after: int

    @property
    def spans(self) -> tuple[_Span, ...]:
        """Neighbouring residues with as many taps each; none of residues without."""
        rest = self.kernel % self.stride
        longer = _Span(0, rest or self.stride, self.taps)
        if not rest or self.taps == 1:
            return (longer,)
        return longer, _Span(rest, self.stride, self.taps - 1)


def _axis(kernel: int, stride: int, before: int, after: int, extra: int) -> _Axis:
    taps = -(-kernel // stride)
    first = before // stride
    last = (extra + kernel - after - 1) // stride  # counted from one below the last input
    return _Axis(stride, kernel, taps, before - first * stride, taps - 1 - first, last)


def _transposed(
    b: GraphBuilder, node: Node, inputs: Inputs, *, whole: Callable[[Node], bool] | None
) -> Replacement:
    if node.op.name != "conv_transpose" or (whole is not None and whole(node)):
        return None
    x, source, bias = (*inputs, None)[:3]
    assert x is not None
    assert source is not None
    weights = b.array(source)
    shift = None if bias is None else b.array(bias)
    value = None if weights is None else phases(b, node.attrs, (x, source, bias), weights, shift)
    return None if value is None else (value,)


def phases(
    b: GraphBuilder,
    attrs: Any,
    operands: tuple[Value, Value, Value | None],
    weights: Array,
    shift: Array | None,
) -> Value | None:
    """Adds a transposed convolution's phases, by the arrays of its weights and of its bias, if that
    is constant; None where there are too many, or none."""
    x, source, bias = operands
    if set(attrs.dilations) != {1}:
        return None
    ends = [(as_int(p), as_int(q)) for p, q in zip(attrs.before, attrs.after, strict=True)]
    axes = [
        _axis(k, s, p, q, e)
        for k, s, (p, q), e in zip(
            weights.shape[2:], attrs.strides, ends, attrs.output_padding, strict=True
        )
        if p is not None and q is not None
    ]
    filters = prod(weights.shape[:2]) * prod(a.taps * a.stride for a in axes)
    if filters > max(_MOST_FILTERS, 8 * weights.size):  # strides far beyond the kernel
        return None
    (y,) = OPS["conv_transpose"].infer([None if v is None else v.type for v in operands], attrs)
    if len(axes) < len(ends) or 0 in (y.static_shape or ()):
        return None
    constant = None if _thin(axes) else shift
    sizes = [a.taps for a in axes], [a.stride for a in axes]
    parts = _Parts(b, axes, split_kernels(weights, *sizes, attrs.group), constant)
    value = parts.residues(x, source)
    if value is None:
        return None
    value = _interleave(b, value, y, axes)
    if bias is not None and constant is None:
        column = (bias.type.shape[0], *[const(1)] * len(axes))
        value = emit(b, "add", value, emit(b, "reshape", bias, shape=column))
    return value


def _thin(axes: Sequence[_Axis]) -> bool:
    """Whether residues are left that no element of the kernel reaches."""
    return any(a.spans[-1].end < a.stride for a in axes)


@record
class _Parts:
    """The convolutions of one node: of the residues that have as many taps along every axis.

    `kernels` are those of `_split_kernels`; `bias` is what the convolutions add, if anything.
    """

    b: GraphBuilder
    axes: Sequence[_Axis]
    kernels: Array
    bias: Array | None

    def residues(self, x: Value, source: Value) -> Value | None:
        """[n, group, residues..., channel, positions...]; None where no element may be left."""
        every = product(*(a.spans for a in self.axes))
        parts = all_known(self._part(x, source, spans) for spans in every)
        if parts is None:
            return None
        for at in range(len(self.axes) - 1, -1, -1):
            count = len(self.axes[at].spans)
            groups = (parts[n : n + count] for n in range(0, len(parts), count))
            parts = tuple(self._joined(group, at) for group in groups)
        return parts[0]

    def _joined(self, parts: Sequence[Value], at: int) -> Value:
        """All residues of axis `at`: zeros for those that the kernel does not reach."""
        value, axis = parts[0], self.axes[at]
        if len(parts) > 1:
            value = emit(self.b, "concat", *parts, axis=2 + at)
        missing = axis.stride - axis.spans[-1].end
        if missing:
            none = [const(0)] * value.type.rank
            rest = [*none]
            rest[2 + at] = const(missing)
            value = emit(
                self.b, "pad", value, before=tuple(none), after=tuple(rest), mode="constant"
            )
        return value

    def _part(self, x: Value, source: Value, spans: Sequence[_Span]) -> Value | None:
        """[n, group, residues of the spans..., channel, positions...]."""
        b, rank, group = self.b, len(self.axes), self.kernels.shape[0]
        late = [a.taps - s.taps for a, s in zip(self.axes, spans, strict=True)]
        axes = [replace(a, before=a.before - n) for a, n in zip(self.axes, late, strict=True)]
        cropped = _crop(b, x, axes)
        if cropped is None:
            return None
        residues = [slice(s.first, s.end) for s in spans]
        taps = [slice(n, None) for n in late]
        own = self.kernels[(slice(None), *residues, slice(None), slice(None), *taps)]
        array = np.ascontiguousarray(own).reshape(-1, *own.shape[rank + 2 :])
        operands = [cropped, b.constant(array, source.name, source.type.dtype)]
        if self.bias is not None:
            count = prod(own.shape[1 : rank + 1])
            each = np.repeat(self.bias.reshape(group, 1, -1), count, axis=1)
            operands.append(b.constant(each.reshape(-1), "bias", source.type.dtype))
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
        n, _, *image = value.type.shape
        shape = (n, *map(const, own.shape[: rank + 2]), *image)
        return emit(b, "reshape", value, shape=shape)


def _crop(b: GraphBuilder, x: Value, axes: Sequence[_Axis]) -> Value | None:
    """`x` without the elements that padding by a negative number drops.

    None where no element may be left.
    """
    starts = [max(-a.before, 0) for a in axes]
    ends = [max(-a.after, 0) for a in axes]
    if not any((*starts, *ends)):
        return x
    image = [n - p - q for n, p, q in zip(x.type.shape[2:], starts, ends, strict=True)]
    if any((bounds(n)[0] or 0) < 1 for n in image):
        return None
    return _cut(b, x, starts, (*x.type.shape[:2], *image))


def _cut(b: GraphBuilder, x: Value, starts: Sequence[int], sizes: Indices) -> Value:
    """The part of an image that begins at `starts`."""
    first = (const(0), const(0), *map(const, starts))
    return emit(b, "slice", x, starts=first, steps=(1,) * x.type.rank, sizes=sizes)


def split_kernels(
    weights: Array, taps: Sequence[int], strides: Sequence[int], groups: int
) -> Array:
    """Filters [group, residues..., channel, inputs of a group, taps...] of kernels
    [group * input, channel, kernel...]: sub-kernels are reversed, short ones begin with zeros."""
    inputs, channels = weights.shape[0] // groups, weights.shape[1]
    pairs = list(zip(taps, strides, strict=True))
    full = [(0, t * s - k) for (t, s), k in zip(pairs, weights.shape[2:], strict=True)]
    padded = np.pad(weights, ((0, 0), (0, 0), *full))
    split = padded.reshape(groups, inputs, channels, *(n for pair in pairs for n in pair))
    at, residues = tuple(range(3, split.ndim, 2)), tuple(range(4, split.ndim, 2))
    return np.flip(split, at).transpose(0, *residues, 2, 1, *at)


def _interleave(b: GraphBuilder, value: Value, y: TensorType, axes: Sequence[_Axis]) -> Value:
    """[n, group, residues..., channel, positions...] as [n, group * channel, outputs...]."""
    rank, n = len(axes), value.type.shape[0]
    image = value.type.shape[3 + rank :]
    order = [m for d in range(rank) for m in (3 + rank + d, 2 + d)]
    whole = (n, y.shape[1], *(p * const(a.stride) for p, a in zip(image, axes, strict=True)))
    value = emit(b, "transpose", value, perm=(0, 1, 2 + rank, *order))
    value = emit(b, "reshape", value, shape=whole)
    return value if whole == y.shape else _cut(b, value, [a.skip for a in axes], y.shape)
