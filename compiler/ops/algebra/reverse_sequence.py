"""Reversal of sequences that have a length each."""

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, index_value
from tcc.ir.op import Array, OnnxBinding
from tcc.ir.types import I64, TensorType
from tcc.ops.algebra.movement import move_row
from tcc.ops.formula import choose
from tcc.ops.operands import require
from tcc.ops.shapes import Point, agree, replaced


@frozen
class ReverseSequenceAttrs:
    """The attributes of a reversal of sequences.

    `batch_axis` and `time_axis` are 0 and 1, in either order. For each position n of the batch
    axis, the first lengths[n] elements along the time axis are reversed.
    """

    batch_axis: int
    time_axis: int


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
        "reverse_sequence", ReverseSequenceAttrs,
        _reverse_sequence_infer, _reverse_sequence_reference, _reverse_sequence_element,
        "Reverses the first `lengths[b]` steps of each sequence.",
        onnx=OnnxBinding("ReverseSequence", since=10),
    ),
)  # fmt: skip
