"""Replaces ops by simpler ones.

    %y = conv_transpose(%x, %w) {strides=(2, 2)}     %a = conv(%x, %w')      ; 4 channels for each
                                                     %b, %c = reshape, transpose
                                                     %y = reshape(%c)        ; one in every 2 x 2

Row `decompose` of the op table says what an op becomes.  A transposed convolution with constant
weights becomes one convolution without inserted zeros: with stride s each output o of an axis lies
in the residue (o + before) mod s and depends on every s-th element of the kernel only, so the
convolution computes all residues as channels, and an index map interleaves them.  Shorter
sub-kernels get zeros.  Where the first output is no residue 0, residues read windows shifted
against each other: `phase_conv` says so, and computes no output that is cropped.  Requires folded
constants.  Establishes that no op with a `decompose` is left, nor a conv_transpose with constant
weights and dilation 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.index import Index, as_int, bounds, const
from tcc.ir.op import Array
from tcc.ir.rewrite import Inputs, rewritten
from tcc.ir.types import TensorType
from tcc.ops import OPS
from tcc.ops.phases import PhaseConvAttrs


def decompose(graph: Graph) -> Graph:
    """`graph` with every op replaced that its row decomposes."""
    return rewritten(graph, _by_row)


def _by_row(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    rule = node.op.decompose
    if rule is None:
        return None
    values: Sequence[Value] = rule(b, inputs, node.attrs)
    return values


def decompose_transposed(graph: Graph) -> Graph:
    """`graph` with transposed convolutions as convolutions, where weights are constant."""
    return rewritten(graph, _transposed)


# ---- transposed convolutions --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
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


def _axis(kernel: int, stride: int, before: int, after: int, extra: int) -> _Axis:
    taps = -(-kernel // stride)
    first = before // stride
    last = (extra + kernel - after - 1) // stride  # counted from one below the last input
    return _Axis(stride, kernel, taps, before - first * stride, taps - 1 - first, last)


def _transposed(b: GraphBuilder, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    if node.op.name != "conv_transpose" or set(node.attrs.dilations) != {1}:
        return None
    x, source = inputs[0], inputs[1]
    assert x is not None
    assert source is not None
    weights = b.array(source)
    attrs = node.attrs
    ends = [(as_int(p), as_int(q)) for p, q in zip(attrs.before, attrs.after, strict=True)]
    if weights is None:
        return None
    axes = [
        _axis(k, s, p, q, e)
        for k, s, (p, q), e in zip(
            weights.shape[2:], attrs.strides, ends, attrs.output_padding, strict=True
        )
        if p is not None and q is not None
    ]
    (y,) = node.op.infer([None if v is None else v.type for v in inputs], attrs)
    if len(axes) < len(ends) or 0 in (y.static_shape or ()):
        return None
    if any(a.skip for a in axes):
        phases = _phases(b, inputs, weights, y, axes, attrs.group)
        if phases is not None:
            return b.add(OPS["phase_conv"], *phases, loc=node.loc)
    cropped = _crop(b, x, axes, node.loc)
    if cropped is None:
        return None
    filters = b.constant(_sub_kernels(weights, axes, attrs.group), source.name, source.type.dtype)
    conv = OPS["conv"].attrs(
        (1,) * len(axes),
        tuple(max(a.before, 0) for a in axes),
        tuple(max(a.after, 0) for a in axes),
        (1,) * len(axes),
        attrs.group,
    )
    bias = inputs[2] if len(inputs) > 2 else None
    repeated = None if bias is None else _repeated(b, bias, axes, attrs.group)
    operands = [cropped, filters, *([repeated] if repeated is not None else [])]
    (value,) = b.add(OPS["conv"], operands, conv, loc=node.loc)
    value = _interleave(b, value, y, axes, attrs.group, node.loc)
    if bias is not None and repeated is None:
        column = OPS["reshape"].attrs((bias.type.shape[0], *[const(1)] * len(axes)))
        (shift,) = b.add(OPS["reshape"], [bias], column, loc=node.loc)
        (value,) = b.add(OPS["add"], [value, shift], loc=node.loc)
    return (value,)


def _phases(
    b: GraphBuilder,
    inputs: Inputs,
    weights: Array,
    y: TensorType,
    axes: Sequence[_Axis],
    groups: int,
) -> tuple[list[Value | None], PhaseConvAttrs] | None:
    """Operands and attributes of a `phase_conv`; None where phases differ in their outputs."""
    if any(n % a.stride is not const(0) for n, a in zip(y.shape[2:], axes, strict=True)):
        return None
    split = _split_kernels(weights, axes, groups)
    for at, axis in enumerate(axes, 1):  # phase r holds the outputs of residue r + skip
        split = np.roll(split, -axis.skip, at)
    rank, channels = len(axes), y.shape[1].const
    order = (*range(1, rank + 1), 0, *range(rank + 1, split.ndim))
    moved = split.transpose(order).reshape(
        *split.shape[1 : rank + 1], channels, *split.shape[rank + 2 :]
    )
    source = inputs[1]
    assert source is not None
    filters = b.constant(np.ascontiguousarray(moved), source.name, source.type.dtype)
    attrs = PhaseConvAttrs(
        tuple(n // a.stride for n, a in zip(y.shape[2:], axes, strict=True)),
        tuple(a.skip for a in axes),
        tuple(a.before for a in axes),
        groups,
    )
    return [inputs[0], filters, *inputs[2:]], attrs


def _crop(b: GraphBuilder, x: Value, axes: Sequence[_Axis], loc: str) -> Value | None:
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
    attrs = OPS["slice"].attrs(
        (const(0), const(0), *map(const, starts)),
        (1,) * x.type.rank,
        (*x.type.shape[:2], *image),
    )
    return b.add(OPS["slice"], [x], attrs, loc=loc)[0]


def _sub_kernels(weights: Array, axes: Sequence[_Axis], groups: int) -> Array:
    """Filters [group * residue * channel, inputs of a group, taps...]."""
    split = _split_kernels(weights, axes, groups)
    return np.ascontiguousarray(split).reshape(-1, *split.shape[len(axes) + 2 :])


def _split_kernels(weights: Array, axes: Sequence[_Axis], groups: int) -> Array:
    """Filters [group, residues..., channel, inputs of a group, taps...] of kernels
    [group * input, channel, kernel...]: sub-kernels are reversed, short ones filled with zeros."""
    inputs, channels = weights.shape[0] // groups, weights.shape[1]
    full = [(0, a.taps * a.stride - a.kernel) for a in axes]
    padded = np.pad(weights, ((0, 0), (0, 0), *full))
    split = padded.reshape(groups, inputs, channels, *(n for a in axes for n in (a.taps, a.stride)))
    taps = tuple(range(3, split.ndim, 2))
    residues = tuple(range(4, split.ndim, 2))
    return np.flip(split, taps).transpose(0, *residues, 2, 1, *taps)


def _repeated(b: GraphBuilder, bias: Value, axes: Sequence[_Axis], groups: int) -> Value | None:
    """A constant bias for every residue of every group."""
    array = b.array(bias)
    if array is None:
        return None
    residues = int(np.prod([a.stride for a in axes]))
    each = np.repeat(array.reshape(groups, 1, -1), residues, axis=1)
    return b.constant(each.reshape(-1), bias.name, bias.type.dtype)


def _interleave(
    b: GraphBuilder, value: Value, y: TensorType, axes: Sequence[_Axis], groups: int, loc: str
) -> Value:
    """[n, group * residue * channel, positions...] as [n, group * channel, outputs...]."""
    if all(a.stride == 1 for a in axes):
        return value
    n, _channels, *image = value.type.shape
    strides = [const(a.stride) for a in axes]
    own = y.shape[1] // groups
    shape = (n, const(groups), *strides, own, *image)
    rank = len(axes)
    order = [m for d in range(rank) for m in (3 + rank + d, 2 + d)]
    whole = [p * s for p, s in zip(image, strides, strict=True)]
    (value,) = b.add(OPS["reshape"], [value], OPS["reshape"].attrs(shape), loc=loc)
    perm = (0, 1, 2 + rank, *order)
    (value,) = b.add(OPS["transpose"], [value], OPS["transpose"].attrs(perm), loc=loc)
    merged = OPS["reshape"].attrs((n, y.shape[1], *whole))
    (value,) = b.add(OPS["reshape"], [value], merged, loc=loc)
    if (n, y.shape[1], *whole) == y.shape:
        return value
    starts: tuple[Index, ...] = (const(0), const(0), *(const(a.skip) for a in axes))
    cut = OPS["slice"].attrs(starts, (1,) * y.rank, y.shape)
    return b.add(OPS["slice"], [value], cut, loc=loc)[0]
