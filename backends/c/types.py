"""Element types in C: types in memory, types in expressions, and literals.

In memory, bool is a byte. f16, bf16 and narrower floats are their bits in memory, and float in
expressions. An integer of less than a byte occupies a byte.
"""

import math

import numpy as np
from tcc.errors import UserError
from tcc.ir.graph import rounded_number
from tcc.ir.types import BOOL, DTYPES, F32, F64, DType, DTypeKind, integer_limits


def stored_as(dtype: DType) -> DType:
    """Returns the type of an element in memory; raises UserError for strings and lists."""
    if dtype.is_handle:
        raise UserError(f"C files have no {dtype.name}", why="it needs a heap")
    if dtype in (F32, F64):
        return dtype
    return DTYPES[f"{'i' if dtype.kind is DTypeKind.INT else 'u'}{8 * dtype.bytes}"]


def memory_type(dtype: DType) -> str:
    """Returns the C type of an element in memory; raises UserError for strings and lists."""
    return value_type(stored_as(dtype))


def value_type(dtype: DType) -> str:
    """Returns the C type of a value in an expression."""
    if dtype.is_float:
        return "double" if dtype is F64 else "float"
    if dtype is BOOL:
        return "bool"
    return f"{'' if dtype.kind is DTypeKind.INT else 'u'}int{8 * dtype.bytes}_t"


def from_memory(text: str, dtype: DType) -> str:
    """Returns C text that converts an element loaded from memory to a value."""
    if dtype is BOOL:
        return f"({text} != 0)"
    if dtype.is_float and dtype not in (F32, F64):
        return f"{dtype.name}_value({text})"
    return wrapped(text, dtype) if dtype.is_packed else text


def to_memory(text: str, dtype: DType) -> str:
    """Returns C text that converts a value to its form in memory."""
    if dtype.is_float and dtype not in (F32, F64):
        return f"{dtype.name}_bits({text})"
    return f"{text} & {(1 << dtype.bits) - 1}" if dtype.is_packed else text


def wrapped(text: str, dtype: DType) -> str:
    """Returns C text for the lowest `dtype.bits` bits of an integer, as a value of `dtype`.

    `dtype` is an integer type of less than 8 bits.
    """
    kind = "signed" if dtype.kind is DTypeKind.INT else "unsigned"
    return f"({value_type(dtype)}){kind}_bits({text}, {dtype.bits})"


def literal(value: bool | int | float, dtype: DType) -> str:
    """Returns the C text of a constant of type `dtype`."""
    if dtype is BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return _integer(int(value), dtype)
    number = rounded_number(value, dtype)
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return f"{number!r}" if dtype is F64 else f"{np.float32(number)!s}f"


def _integer(value: int, dtype: DType) -> str:
    if dtype.bits < 32:
        return str(value)
    if dtype.kind is DTypeKind.UINT:
        return f"{value}u" if dtype.bits == 32 else f"UINT64_C({value})"
    if value == integer_limits(dtype)[0]:
        return f"INT{dtype.bits}_MIN"
    return f"INT64_C({value})" if abs(value) >> 31 else str(value)
