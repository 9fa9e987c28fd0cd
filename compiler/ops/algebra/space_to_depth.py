"""Movement in blocks and in sequences: depth_to_space, space_to_depth, reverse_sequence."""

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, index_value
from tcc.ir.index import as_int
from tcc.ir.op import Array, OnnxBinding
from tcc.ir.types import I64, TensorType
from tcc.ops.algebra.movement import move_row
from tcc.ops.formula import choose
from tcc.ops.operands import require
from tcc.ops.shapes import Point, agree, replaced


@frozen
class DepthToSpaceAttrs:
    """Groups of `blocksize ** 2` channels become blocks of the image.

    The position in the block is the outer part of the operand's channel number if `mode` is "DCR",
    and the inner part if it is "CRD".
    """

    blocksize: int
    mode: str


@frozen
class SpaceToDepthAttrs:
    blocksize: int


@frozen
class ReverseSequenceAttrs:
    """The attributes of a reversal of sequences.

    `batch_axis` and `time_axis` are 0 and 1, in either order. For each position n of the batch
    axis, the first lengths[n] elements along the time axis are reversed.
    """

    batch_axis: int
    time_axis: int


def _depth_to_space_infer(attrs: DepthToSpaceAttrs, x: TensorType) -> TensorType:
    s = attrs.blocksize
    require(x.rank == 4, f"depth_to_space takes rank 4, not {x}")
    require(s > 0, f"blocks of size {s}")
    require(attrs.mode in ("DCR", "CRD"), f"unknown depth_to_space mode {attrs.mode}")
    channels = as_int(x.shape[1])
    require(channels is None or channels % (s * s) == 0, f"{s * s} does not divide axis 1 of {x}")
    n, c, h, w = x.shape
    return TensorType(x.dtype, (n, c // (s * s), h * s, w * s))


def _depth_to_space_reference(attrs: DepthToSpaceAttrs, x: Array) -> Array:
    s = attrs.blocksize
    n, c, h, w = x.shape
    if attrs.mode == "DCR":
        blocks = x.reshape(n, s, s, c // (s * s), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // (s * s), s, s, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c // (s * s), h * s, w * s)


def _depth_to_space_element(
    b: ExprBuilder, i: Point, attrs: DepthToSpaceAttrs, x: TensorType
) -> Scalar:
    (n, c, h, w), s = i, attrs.blocksize
    channels = x.shape[1] // (s * s)
    block = (h % s) * s + w % s
    channel = block * channels + c if attrs.mode == "DCR" else c * (s * s) + block
    return b.read(0, n, channel, h // s, w // s)


def _space_to_depth_infer(attrs: SpaceToDepthAttrs, x: TensorType) -> TensorType:
    s = attrs.blocksize
    require(x.rank == 4, f"space_to_depth takes rank 4, not {x}")
    require(s > 0, f"blocks of size {s}")
    n, c, h, w = x.shape
    for size in (as_int(h), as_int(w)):
        require(size is None or size % s == 0, f"{s} does not divide the image of {x}")
    return TensorType(x.dtype, (n, c * (s * s), h // s, w // s))


def _space_to_depth_reference(attrs: SpaceToDepthAttrs, x: Array) -> Array:
    s = attrs.blocksize
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // s, s, w // s, s).transpose(0, 3, 5, 1, 2, 4)
    return blocks.reshape(n, c * s * s, h // s, w // s)


def _space_to_depth_element(
    b: ExprBuilder, i: Point, attrs: SpaceToDepthAttrs, x: TensorType
) -> Scalar:
    (n, c, h, w), s = i, attrs.blocksize
    channels = x.shape[1]
    block = c // channels
    return b.read(0, n, c % channels, h * s + block // s, w * s + block % s)


def _reverse_sequence_infer(
    attrs: ReverseSequenceAttrs, x: TensorType, lengths: TensorType
) -> TensorType:
    require(x.rank >= 2, f"reverse_sequence takes rank 2 or more, not {x}")
    require({attrs.batch_axis, attrs.time_axis} == {0, 1}, "batch and time must be axes 0 and 1")
    require(lengths.rank == 1, f"the lengths must be a vector, not {lengths}")
    agree(lengths.shape[0], x.shape[attrs.batch_axis], "the lengths and the sequences")
    return x


def _reverse_sequence_reference(attrs: ReverseSequenceAttrs, x: Array, lengths: Array) -> Array:
    y = x.copy()
    rows = y if attrs.batch_axis == 0 else np.swapaxes(y, 0, 1)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = row[:length][::-1].copy()
    return y


def _reverse_sequence_element(
    b: ExprBuilder, i: Point, attrs: ReverseSequenceAttrs, x: TensorType, lengths: TensorType
) -> Scalar:
    length = b.read(1, i[attrs.batch_axis])
    step = index_value(i[attrs.time_axis], I64)
    back = length - 1 - step
    at = b.position(choose(step < length, back, step), x.shape[attrs.time_axis])
    indices = replaced(i, attrs.time_axis, at)
    # A length above the extent gives indices outside the tensor, where the read gives the fill.
    return b.read(0, *indices, fill=0)


OPS = (
    move_row(
        "depth_to_space", DepthToSpaceAttrs,
        _depth_to_space_infer, _depth_to_space_reference, _depth_to_space_element,
        "Spreads groups of channels over blocks of the image.",
        onnx=OnnxBinding("DepthToSpace"),
    ),
    move_row(
        "space_to_depth", SpaceToDepthAttrs,
        _space_to_depth_infer, _space_to_depth_reference, _space_to_depth_element,
        "Collects blocks of the image into channels.",
        onnx=OnnxBinding("SpaceToDepth"),
    ),
    move_row(
        "reverse_sequence", ReverseSequenceAttrs,
        _reverse_sequence_infer, _reverse_sequence_reference, _reverse_sequence_element,
        "Reverses the first `lengths[b]` steps of each sequence.",
        onnx=OnnxBinding("ReverseSequence", since=10),
    ),
)  # fmt: skip
