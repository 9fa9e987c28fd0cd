"""Reinterprets the bits of a tensor as another element type."""

from typing import Any

from tcc.frozen import frozen
from tcc.ir.op import Array
from tcc.ir.types import DType, TensorType
from tcc.ops.operands import require
from tcc.ops.rows import op_row
from tcc.ops.shapes import COMMON


@frozen
class BitCastAttrs:
    """`to` is the result's element type; it has as many bits as the operand's."""

    to: DType


def _has_numpy_type(dtype: DType) -> bool:
    """True if NumPy has a type of the same width, so that its arrays hold the type's bits."""
    return bool(dtype.carrier.itemsize * 8 == dtype.bits)


def _infer(attrs: BitCastAttrs, x: TensorType) -> TensorType:
    require(x.dtype.bits == attrs.to.bits, f"{x} and {attrs.to} differ in width")
    reinterpretable = _has_numpy_type(x.dtype) and _has_numpy_type(attrs.to)
    require(reinterpretable, f"the bits of {x} cannot be read as {attrs.to}")
    return TensorType(attrs.to, x.shape)


def _reference(attrs: BitCastAttrs, x: Array) -> Any:
    return x.view(attrs.to.carrier).copy()


OPS = (
    op_row(
        "bit_cast", BitCastAttrs, _infer, _reference,
        tuple(d for d in COMMON if _has_numpy_type(d)),
        "The same bits as elements of another type of the same width.",
    ),
)  # fmt: skip
