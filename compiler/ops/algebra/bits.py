"""The bits of a tensor read as another element type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tcc.ir.op import Array, OpSpec, Sample, Tolerance
from tcc.ir.types import F32, F64, I32, I64, U8, U16, DType, TensorType
from tcc.ops.operands import Arrays, Types, array, require
from tcc.ops.shapes import COMMON, required


@dataclass(frozen=True, slots=True)
class BitCastAttrs:
    """`to` is as wide as the operand's element type."""

    to: DType


def _own_carrier(dtype: DType) -> bool:
    """Whether NumPy has the type, so that its arrays hold the type's own bits."""
    return bool(dtype.carrier.itemsize * 8 == dtype.bits)


def _infer(types: Types, attrs: BitCastAttrs) -> tuple[TensorType, ...]:
    x = required(types, 0)
    require(x.dtype.bits == attrs.to.bits, f"{x} and {attrs.to} differ in width")
    known = _own_carrier(x.dtype) and _own_carrier(attrs.to)
    require(known, f"the bits of {x} cannot be read as {attrs.to}")
    return (TensorType(attrs.to, x.shape),)


def _reference(arrays: Arrays, attrs: BitCastAttrs) -> tuple[Array, ...]:
    return (array(arrays, 0).view(attrs.to.carrier).copy(),)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = np.array([0.0, -0.0, 1.5, np.inf, -3e38], np.float32)
    yield Sample((x,), BitCastAttrs(I32), "f32-i32")
    yield Sample((rng.integers(0, 1 << 20, (2, 3)).astype(np.int32),), BitCastAttrs(F32), "i32-f32")
    yield Sample((rng.standard_normal((3, 2)),), BitCastAttrs(I64), "f64-i64")
    yield Sample((rng.integers(0, 99, 4),), BitCastAttrs(F64), "i64-f64")
    yield Sample((np.array([True, False]),), BitCastAttrs(U8), "bool-u8")
    yield Sample((np.array(-2, np.int16),), BitCastAttrs(U16), "scalar")
    yield Sample((np.zeros((0, 3), np.float32),), BitCastAttrs(I32), "empty")


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "bit_cast", BitCastAttrs, (1, 1), _infer, _reference, _samples,
        tuple(d for d in COMMON if _own_carrier(d)), Tolerance.EXACT,
        "The same bits as elements of another type of the same width.",
        call="bit_cast",
    ),
)  # fmt: skip
