"""Element types and tensor types.

`DTYPES` is the one table of element types: width, DLPack code, NumPy carrier, ONNX name.  Sub-byte
and narrow floating types are carried in NumPy by the type's `carrier` (values exact).

Strings and lists are handles: programs hold them as 8-byte words that name entries of a run's heap.
Strings are carried as object arrays of `str`, lists as object scalars that hold a tuple of arrays.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.ir.index import Index, IndexLike, as_index, as_int, const
from tcc.record import record


class DTypeKind(Enum):
    """What arithmetic means for a type."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"
    STRING = "string"
    LIST = "list"


@record
class DType:
    """One element type.

    `bits` is the width at the surface, where elements of less than a byte are packed from the
    lowest bits up (4 for int4, 8 for bool); inside a program each has a byte of its own, in its
    lowest bits.  `dlpack` is the DLPack type code; `carrier` the NumPy type whose arrays hold
    values of this type between passes.
    """

    name: str
    kind: DTypeKind
    bits: int
    dlpack: int
    carrier: Any

    @property
    def bytes(self) -> int:
        """Bytes of one element inside a program: one for what has less than a byte."""
        return -(-self.bits // 8)

    @property
    def stored(self) -> DType:
        """The type as which functions of the host see elements: bytes where there is less."""
        if not self.is_packed:
            return self
        return DTYPES["i8" if self.kind is DTypeKind.INT else "u8"]

    @property
    def is_packed(self) -> bool:
        """Whether several elements share a byte at the surface."""
        return self.bits < 8

    @property
    def is_narrow(self) -> bool:
        """Whether the type is for storage: converted and moved, but not computed with."""
        return self.bits < 8 or (self.is_float and self.bits == 8)

    @property
    def is_float(self) -> bool:
        return self.kind is DTypeKind.FLOAT

    @property
    def is_integer(self) -> bool:
        return self.kind in (DTypeKind.INT, DTypeKind.UINT)

    @property
    def is_handle(self) -> bool:
        """Whether elements are words that name entries of a run's heap."""
        return self.kind in (DTypeKind.STRING, DTypeKind.LIST)

    def __repr__(self) -> str:
        return self.name


def _row(name: str, kind: DTypeKind, bits: int, dlpack: int, carrier: Any) -> tuple[str, DType]:
    return name, DType(name, kind, bits, dlpack, np.dtype(carrier))


# bf16 and narrower floats are carried as f32: every value of theirs is exact there, and NumPy has
# none of them of its own.
DTYPES = MappingProxyType(
    dict(
        (
            _row("bool", DTypeKind.BOOL, 8, 6, np.bool_),
            _row("i8", DTypeKind.INT, 8, 0, np.int8),
            _row("i16", DTypeKind.INT, 16, 0, np.int16),
            _row("i32", DTypeKind.INT, 32, 0, np.int32),
            _row("i64", DTypeKind.INT, 64, 0, np.int64),
            _row("u8", DTypeKind.UINT, 8, 1, np.uint8),
            _row("u16", DTypeKind.UINT, 16, 1, np.uint16),
            _row("u32", DTypeKind.UINT, 32, 1, np.uint32),
            _row("u64", DTypeKind.UINT, 64, 1, np.uint64),
            _row("f16", DTypeKind.FLOAT, 16, 2, np.float16),
            _row("bf16", DTypeKind.FLOAT, 16, 4, np.float32),
            _row("f32", DTypeKind.FLOAT, 32, 2, np.float32),
            _row("f64", DTypeKind.FLOAT, 64, 2, np.float64),
            _row("string", DTypeKind.STRING, 128, 3, np.object_),
            _row("i2", DTypeKind.INT, 2, 0, np.int8),
            _row("i4", DTypeKind.INT, 4, 0, np.int8),
            _row("u2", DTypeKind.UINT, 2, 1, np.uint8),
            _row("u4", DTypeKind.UINT, 4, 1, np.uint8),
            _row("f4e2m1", DTypeKind.FLOAT, 4, 17, np.float32),
            _row("f8e4m3fn", DTypeKind.FLOAT, 8, 10, np.float32),
            _row("f8e4m3fnuz", DTypeKind.FLOAT, 8, 11, np.float32),
            _row("f8e5m2", DTypeKind.FLOAT, 8, 12, np.float32),
            _row("f8e5m2fnuz", DTypeKind.FLOAT, 8, 13, np.float32),
            _row("f8e8m0", DTypeKind.FLOAT, 8, 14, np.float32),
        )
    )
)

BOOL, I8, I16, I32, I64 = (DTYPES[n] for n in ("bool", "i8", "i16", "i32", "i64"))
U8, U16, U32, U64 = (DTYPES[n] for n in ("u8", "u16", "u32", "u64"))
F16, BF16, F32, F64 = (DTYPES[n] for n in ("f16", "bf16", "f32", "f64"))
STRING = DTYPES["string"]
I2, I4, U2, U4 = (DTYPES[n] for n in ("i2", "i4", "u2", "u4"))
F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ = (
    DTYPES[n] for n in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")
)
F8E8M0, F4E2M1 = DTYPES["f8e8m0"], DTYPES["f4e2m1"]
# What matrix units multiply of a byte, beside integers.
FLOAT8 = (F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ)


def integer_limits(dtype: DType) -> tuple[int, int]:
    """The least and the largest value of an integer type."""
    if dtype.kind is DTypeKind.UINT:
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def dtype_of(array: np.ndarray[Any, Any]) -> DType:
    """The element type that NumPy has as `array.dtype`; raises KeyError for unknown ones."""
    return _BY_CARRIER[array.dtype]


_BY_CARRIER = {
    d.carrier: d
    for d in DTYPES.values()
    if d.carrier.itemsize * 8 == d.bits or d.kind is DTypeKind.STRING
}


@record
class TensorType:
    """Element type and dimensions; a dimension is a non-negative `Index` over size symbols."""

    dtype: DType
    shape: tuple[Index, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as ints, or None where a dimension is symbolic."""
        sizes = tuple(as_int(dim) for dim in self.shape)
        known = tuple(size for size in sizes if size is not None)
        return known if len(known) == len(sizes) else None

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(dim.key for dim in self.shape)}]"


def tensor(dtype: DType, *shape: IndexLike) -> TensorType:
    """`tensor(F32, 2, n)` is `f32[2,n]`."""
    return TensorType(dtype, tuple(as_index(dim) for dim in shape))


def element_count(shape: tuple[Index, ...]) -> Index:
    """The product of the dimensions; one for a scalar."""
    total = const(1)
    for dim in shape:
        total = total * dim
    return total
