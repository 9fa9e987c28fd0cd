"""Conversions between elements in memory and elements in registers.

bool is a byte in memory (nonzero is true) and i1 in registers. f16, bf16 and narrower floats are
bits in memory; in registers they are f32 values that the narrow type can represent. An integer of
less than a byte occupies a byte.
"""

import numpy as np
from tcc.backends.cpu.llvm.blocks import register_element
from tcc.backends.cpu.llvm.half import half_bits, half_value
from tcc.backends.cpu.llvm.narrow import narrow_bits, narrow_value
from tcc.backends.cpu.llvm.text import Reg, float_const, int_const
from tcc.backends.cpu.llvm.values import LlvmValue
from tcc.ir.graph import rounded_number
from tcc.ir.types import BF16, BOOL, F16, F32, F64, DType
from tcc.passes.layout.weights import stored_bytes


def memory_element(dtype: DType) -> str:
    """Returns the LLVM type of an element in memory."""
    if dtype is F32:
        return "float"
    if dtype is F64:
        return "double"
    return f"i{8 * dtype.bytes}"


def from_memory(value: LlvmValue, dtype: DType) -> LlvmValue:
    """Returns a loaded value as a register value."""
    if dtype is BOOL:
        return value.ne(0)
    if dtype is F16:
        return half_value(value)
    if dtype.is_narrow:
        return narrow_value(value, dtype)
    if dtype is BF16:
        return (value.convert("zext", "i32") << 16).bitcast("float")
    return value


def to_memory(value: LlvmValue, dtype: DType) -> LlvmValue:
    """Returns a register value in its form in memory."""
    if dtype is BOOL:
        return value.convert("zext", "i8")
    if dtype is F16:
        return half_bits(value)
    if dtype.is_narrow:
        return narrow_bits(value, dtype)
    if dtype is BF16:
        return value.bitcast("i32").op("lshr", 16).convert("trunc", "i16")
    return value


def round_to(value: LlvmValue, dtype: DType) -> LlvmValue:
    """Returns an f32 rounded to a narrower float type (ties to even); for other types `value`
    itself."""
    if dtype.is_narrow:
        return narrow_value(narrow_bits(value, dtype), dtype)
    if dtype is F16:
        return half_value(half_bits(value))
    return _round_bf16(value) if dtype is BF16 else value


def _round_bf16(value: LlvmValue) -> LlvmValue:
    # The conversion instructions flush denormals, so integer operations are used. NaN is handled
    # apart, because the addition could carry from its payload into the exponent.
    bits = value.bitcast("i32")
    odd = bits.op("lshr", 16) & 1
    up = bits + 0x7FFF + odd
    quiet = bits | 0x400000
    rounded = value.compare("fcmp uno", value).select(quiet, up)
    return (rounded & -65536).bitcast("float")


def literal(value: bool | int | float, dtype: DType, width: int = 1) -> Reg:
    """Returns a literal as a register value."""
    elem = register_element(dtype)
    if dtype.is_float:
        return float_const(rounded_number(value, dtype), elem, width)
    return int_const(int(value), elem, width)


def stored_constant(value: bool | int | float, dtype: DType, width: int) -> Reg:
    """Returns a literal in its form in memory."""
    elem = memory_element(dtype)
    if dtype.is_narrow or dtype in (BF16, F16):
        exact = rounded_number(value, dtype) if dtype.is_float else value
        raw = stored_bytes(np.asarray([exact], dtype.carrier), dtype)
        return int_const(int.from_bytes(raw.tobytes(), "little"), elem, width)
    if dtype.is_float:
        return float_const(float(value), elem, width)
    return int_const(int(value), elem, width)
