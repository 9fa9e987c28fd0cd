"""Element types as Triton calls them."""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np
from tcc.ir.graph import carrier
from tcc.ir.narrow import encode
from tcc.ir.types import BF16, BOOL, F16, F32, DType, Kind

_WORDS = MappingProxyType({Kind.INT: "int", Kind.UINT: "uint", Kind.FLOAT: "float"})
NARROW_FLOATS = (F16, BF16)


def type_name(dtype: DType) -> str:
    """`tl.float32` of f32; a bool is an `int1`, a narrow float the byte with its code."""
    if dtype is BOOL:
        return "tl.int1"
    if dtype.is_narrow:
        return "tl.int8" if dtype.kind is Kind.INT else "tl.uint8"
    if dtype is BF16:
        return "tl.bfloat16"
    return f"tl.{_WORDS[dtype.kind]}{dtype.bits}"


def pointer_type(dtype: DType) -> str:
    """`*fp32` of f32: how a signature calls a pointer to it."""
    if dtype.is_narrow:
        return "*i8" if dtype.kind is Kind.INT else "*u8"
    if dtype.is_float:
        return f"*{'bf' if dtype is BF16 else 'fp'}{dtype.bits}"
    if dtype is BOOL:
        return "*i1"
    return f"*{'i' if dtype.kind is Kind.INT else 'u'}{dtype.bits}"


def arithmetic(dtype: DType) -> DType:
    """The type in which a device computes functions of `dtype`: f32 for the narrower floats."""
    return F32 if dtype in NARROW_FLOATS else dtype


def literal_text(value: bool | int | float, dtype: DType) -> str:
    """`value`, rounded to `dtype`, as a Python literal that Triton takes."""
    if dtype.is_narrow and dtype.is_float:
        return str(int(encode(value, dtype)))
    if not dtype.is_float:
        return str(bool(value)) if dtype is BOOL else str(int(value))
    with np.errstate(all="ignore"):
        number = float(carrier(np.asarray(value, dtype.carrier), dtype))
    return repr(number) if math.isfinite(number) else f'float("{number!r}")'
