"""Triton's names of element types."""

from __future__ import annotations

import math
from dataclasses import astuple
from types import MappingProxyType

from tcc.ir.graph import rounded_number
from tcc.ir.narrow import FORMATS, FloatFormat, encode
from tcc.ir.types import (
    BF16,
    BOOL,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F16,
    F32,
    DType,
    DTypeKind,
)

NARROW_FLOATS = (F16, BF16)


def type_name(dtype: DType) -> str:
    """Returns the name of a type in Triton: `tl.float32` for f32.

    A bool is an `int1`. A narrow float is the byte that holds its bits.
    """
    if dtype is BOOL:
        return "tl.int1"
    if dtype.is_narrow:
        return "tl.int8" if dtype.kind is DTypeKind.INT else "tl.uint8"
    if dtype is BF16:
        return "tl.bfloat16"
    return f"tl.{dtype.kind.value}{dtype.bits}"


def pointer_type(dtype: DType) -> str:
    """Returns the type of a pointer to `dtype` in Triton's signatures: `*fp32` for f32."""
    if dtype.is_narrow:
        return "*i8" if dtype.kind is DTypeKind.INT else "*u8"
    if dtype.is_float:
        return f"*{'bf' if dtype is BF16 else 'fp'}{dtype.bits}"
    return "*i1" if dtype is BOOL else f"*{dtype.name}"


_NATIVE = MappingProxyType(
    {
        F8E4M3FN: ("tl.float8e4nv", "ocp"),
        F8E5M2: ("tl.float8e5", "ocp"),
        F8E4M3FNUZ: ("tl.float8e4b8", "fnuz"),
        F8E5M2FNUZ: ("tl.float8e5b16", "fnuz"),
    }
)


def float8_facts(dtype: DType) -> tuple[str, ...]:
    """Returns texts for an 8-bit float: its type in Triton, its kind, and its format's fields.

    The kind, "ocp" or "fnuz" with quotes, says which matrix units multiply it.
    """
    native, kind = _NATIVE[dtype]
    return native, f'"{kind}"', *format_fields(FORMATS[dtype])


def format_fields(form: FloatFormat) -> tuple[str, ...]:
    """Returns the fields of a float format, as the arguments of device functions."""
    return tuple(map(str, astuple(form)))


def arithmetic(dtype: DType) -> DType:
    """Returns the type in which a device computes functions of `dtype`: f32 for f16 and bf16."""
    return F32 if dtype in NARROW_FLOATS else dtype


def literal_text(value: bool | int | float, dtype: DType) -> str:
    """Returns `value`, rounded to `dtype`, as a Python literal that Triton accepts."""
    if dtype.is_narrow and dtype.is_float:
        return str(int(encode(value, dtype)))
    if not dtype.is_float:
        return str(bool(value)) if dtype is BOOL else str(int(value))
    number = rounded_number(value, dtype)
    return repr(number) if math.isfinite(number) else f'float("{number!r}")'
