"""Element types and tensor types.

`DTYPES` is the one table of element types: width, DLPack code, NumPy carrier, ONNX name.  NumPy
arrays hold sub-byte and narrow floating types in the type's `carrier`, with exact values.

Strings and lists are handles: programs hold them as 8-byte words that name entries of a run's heap.
Strings are carried as object arrays of `str`, lists as object scalars that hold a tuple of arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.index import Index, IndexLike, Indices, as_index, as_int, const
from tcc.known import all_known


class DTypeKind(Enum):
    """The kind of values of an element type."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"
    STRING = "string"
    LIST = "list"


@frozen
class DType:
    """An element type.

    `bits` is the width in inputs and outputs, where elements below a byte are packed from the
    lowest bits up (4 for int4, 8 for bool).  Inside a program each element has its own byte, in its
    lowest bits.  `dlpack` is the DLPack type code; `carrier` the NumPy type whose arrays hold
    values of this type between passes.
    """

    name: str
    kind: DTypeKind
    bits: int
    dlpack: int
    carrier: Any

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def bytes(self) -> int:
        """Bytes of one element inside a program: one for elements below a byte."""
        return -(-self.bits // 8)

    @property
    def stored(self) -> DType:
        """The type that host functions use to read elements in memory.

        It is i8 or u8 for elements below a byte, else this type.
        """
        if not self.is_packed:
            return self
        return DTYPES["i8" if self.kind is DTypeKind.INT else "u8"]

    @property
    def is_packed(self) -> bool:
        """True if several elements share a byte in inputs and outputs."""
        return self.bits < 8

    @property
    def is_narrow(self) -> bool:
        """True if ops only convert and move values of this type and do not compute with it."""
        return self.bits < 8 or (self.is_float and self.bits == 8)

    @property
    def is_float(self) -> bool:
        return self.kind is DTypeKind.FLOAT

    @property
    def is_integer(self) -> bool:
        return self.kind in (DTypeKind.INT, DTypeKind.UINT)

    @property
    def is_handle(self) -> bool:
        """True if elements are words that name entries of a run's heap."""
        return self.kind in (DTypeKind.STRING, DTypeKind.LIST)

    def __repr__(self) -> str:
        return self.name


def _integers(*widths: int) -> Iterator[DType]:
    """Yields the signed integer types of these widths in bits, then the unsigned types."""
    for letter, kind, dlpack in (("i", DTypeKind.INT, 0), ("u", DTypeKind.UINT, 1)):
        for bits in widths:
            carrier = np.dtype(f"{letter}{max(bits // 8, 1)}")
            yield DType(f"{letter}{bits}", kind, bits, dlpack, carrier)


def _float(name: str, bits: int, dlpack: int, carrier: Any = np.float32) -> DType:
    return DType(name, DTypeKind.FLOAT, bits, dlpack, np.dtype(carrier))


# bf16 and narrower floats are carried as f32, in which all their values are exact, because NumPy
# lacks them.
_ROWS = (
    DType("bool", DTypeKind.BOOL, 8, 6, np.dtype(np.bool_)),
    *_integers(8, 16, 32, 64),
    _float("f16", 16, 2, np.float16),
    _float("bf16", 16, 4),
    _float("f32", 32, 2),
    _float("f64", 64, 2, np.float64),
    DType("string", DTypeKind.STRING, 128, 3, np.dtype(np.object_)),
    *_integers(2, 4),
    _float("f4e2m1", 4, 17),
    _float("f8e4m3fn", 8, 10),
    _float("f8e4m3fnuz", 8, 11),
    _float("f8e5m2", 8, 12),
    _float("f8e5m2fnuz", 8, 13),
    _float("f8e8m0", 8, 14),
)
DTYPES = MappingProxyType({dtype.name: dtype for dtype in _ROWS})

BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, STRING, I2, I4, U2, U4 = _ROWS[:18]
F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0 = _ROWS[18:]
# The 8-bit floats that matrix units multiply.
FLOAT8 = (F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ)


def integer_limits(dtype: DType) -> tuple[int, int]:
    """Returns the smallest and the largest value of an integer type or of bool."""
    if dtype.kind is DTypeKind.BOOL:
        return 0, 1
    lowest = -(1 << (dtype.bits - 1)) if dtype.kind is DTypeKind.INT else 0
    return lowest, lowest + (1 << dtype.bits) - 1


def dtype_of(array: np.ndarray[Any, Any]) -> DType:
    """Returns the element type of NumPy's `array.dtype`; raises KeyError for unknown ones."""
    return _BY_CARRIER[array.dtype]


_BY_CARRIER = {
    d.carrier: d
    for d in DTYPES.values()
    if d.carrier.itemsize * 8 == d.bits or d.kind is DTypeKind.STRING
}


@frozen
class TensorType:
    """Element type and dimensions; a dimension is a non-negative `Index` over size symbols."""

    dtype: DType
    shape: Indices

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as ints, or None if a dimension is symbolic."""
        return all_known(map(as_int, self.shape))

    @property
    def count(self) -> int | None:
        """The number of elements, or None if it is symbolic."""
        return as_int(element_count(self.shape))

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(dim.key for dim in self.shape)}]"


def tensor(dtype: DType, *shape: IndexLike) -> TensorType:
    """Returns a tensor type: `tensor(F32, 2, n)` is `f32[2,n]`."""
    return TensorType(dtype, tuple(as_index(dim) for dim in shape))


def element_count(shape: Indices) -> Index:
    """Returns the product of the dimensions; one for a scalar."""
    return prod(shape, start=const(1))
