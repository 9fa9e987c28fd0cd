"""Element types in C: how they lie in memory, how expressions hold them, and literals.

bool is a byte in memory; f16, bf16 and narrower floats lie there as their bits and are held as
float, integers of less than a byte have a byte of their own.
"""

from __future__ import annotations

import math

import numpy as np
from tcc.errors import UserError
from tcc.ir.narrow import rounded
from tcc.ir.types import BF16, BOOL, F16, F32, F64, DType


def memory_type(dtype: DType) -> str:
    """The C type of one element in memory; raises UserError for strings and lists."""
    if dtype.is_handle:
        raise UserError(f"C files have no {dtype.name}", why="it needs a heap")
    if dtype in (F32, F64):
        return value_type(dtype)
    signed = dtype.is_integer and dtype.name.startswith("i")
    return f"{'' if signed else 'u'}int{8 * dtype.bytes}_t"


def value_type(dtype: DType) -> str:
    """The C type of a value in an expression."""
    if dtype.is_float:
        return "double" if dtype is F64 else "float"
    return "bool" if dtype is BOOL else memory_type(dtype)


def from_memory(text: str, dtype: DType) -> str:
    """What was loaded, as a value."""
    if dtype is BOOL:
        return f"({text} != 0)"
    if dtype.is_float and dtype not in (F32, F64):
        return f"{dtype.name}_value({text})"
    return wrapped(text, dtype) if dtype.is_packed else text


def to_memory(text: str, dtype: DType) -> str:
    """A value, as it is stored."""
    if dtype.is_float and dtype not in (F32, F64):
        return f"{dtype.name}_bits({text})"
    return f"{text} & {(1 << dtype.bits) - 1}" if dtype.is_packed else text


def wrapped(text: str, dtype: DType) -> str:
    """An integer's lowest bits, of a type of less than a byte, as its value."""
    kind = "signed" if dtype.name.startswith("i") else "unsigned"
    return f"({value_type(dtype)}){kind}_bits({text}, {dtype.bits})"


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant of the type."""
    if dtype is BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return _integer(int(value), dtype)
    number = float(value)
    if dtype is F16:
        number = float(np.float64(number).astype(np.float16))
    elif dtype is BF16:
        number = _bf16(number)
    elif dtype.is_narrow:
        number = float(rounded(np.float32(number), dtype))
    if math.isnan(number):
        return "NAN"
    suffix = "" if dtype is F64 else "f"
    if suffix:
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return f"{number!r}" if dtype is F64 else f"{np.float32(number)!s}f"


def _bf16(value: float) -> float:
    with np.errstate(over="ignore"):
        bits = int(np.float32(value).view(np.uint32))
    if value == value:
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return float(np.uint32(bits & 0xFFFFFFFF).view(np.float32))


def _integer(value: int, dtype: DType) -> str:
    unsigned = dtype.name.startswith("u")
    if dtype.bits < 32:
        return str(value)
    if unsigned:
        return f"{value}u" if dtype.bits == 32 else f"UINT64_C({value})"
    if value == -(1 << (dtype.bits - 1)):
        return f"INT{dtype.bits}_MIN"
    return f"INT64_C({value})" if abs(value) >> 31 else str(value)
