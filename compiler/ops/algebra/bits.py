"""Reinterprets the bits of a tensor as another element type."""

from tcc.frozen import frozen
from tcc.ir.op import Arrays, OpSpec, OutArrays, OutTypes, Types
from tcc.ir.types import DType, TensorType
from tcc.ops.operands import require
from tcc.ops.shapes import COMMON, required


@frozen
class BitCastAttrs:
    """`to` is the result's element type; it has as many bits as the operand's."""

    to: DType


def _has_numpy_type(dtype: DType) -> bool:
    """True if NumPy has a type of the same width, so that its arrays hold the type's bits."""
    return bool(dtype.carrier.itemsize * 8 == dtype.bits)


def _infer(types: Types, attrs: BitCastAttrs) -> OutTypes:
    x = required(types, 0)
    require(x.dtype.bits == attrs.to.bits, f"{x} and {attrs.to} differ in width")
    reinterpretable = _has_numpy_type(x.dtype) and _has_numpy_type(attrs.to)
    require(reinterpretable, f"the bits of {x} cannot be read as {attrs.to}")
    return (TensorType(attrs.to, x.shape),)


def _reference(arrays: Arrays, attrs: BitCastAttrs) -> OutArrays:
    return (required(arrays, 0).view(attrs.to.carrier).copy(),)


OPS = (
    OpSpec(
        "bit_cast", BitCastAttrs, 1, _infer, _reference,
        tuple(d for d in COMMON if _has_numpy_type(d)),
        "The same bits as elements of another type of the same width.",
        call="bit_cast",
    ),
)  # fmt: skip
