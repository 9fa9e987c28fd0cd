"""Conversions between elements in memory and elements in registers.

bool is a byte in memory (nonzero is true) and i1 in registers. f16, bf16 and narrower floats are
bits in memory; in registers they are f32 values that the narrow type can represent. An integer of
less than a byte occupies a byte.
"""

import numpy as np
from tcc.backends.cpu.llvm.blocks import register_element
from tcc.backends.cpu.llvm.half import half_bits, half_value
from tcc.backends.cpu.llvm.narrow import narrow_bits, narrow_value
from tcc.backends.cpu.llvm.text import Code, Reg, float_const, int_const
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


def from_memory(code: Code, reg: Reg, dtype: DType) -> Reg:
    """Returns a loaded value as a register value."""
    if dtype is BOOL:
        return code.compare("icmp ne", reg, 0)
    if dtype is F16:
        return half_value(code, reg)
    if dtype.is_narrow:
        return narrow_value(code, reg, dtype)
    if dtype is BF16:
        return _bf16_value(code, code.convert("zext", reg, "i32"))
    return reg


def to_memory(code: Code, reg: Reg, dtype: DType) -> Reg:
    """Returns a register value in its form in memory."""
    if dtype is BOOL:
        return code.convert("zext", reg, "i8")
    if dtype is F16:
        return half_bits(code, reg)
    if dtype.is_narrow:
        return narrow_bits(code, reg, dtype)
    if dtype is BF16:
        bits = code.bitcast(reg, "i32")
        return code.convert("trunc", code.op("lshr", bits, 16), "i16")
    return reg


def round_to(code: Code, reg: Reg, dtype: DType) -> Reg:
    """Returns an f32 rounded to a narrower float type (ties to even); for other types `reg`
    itself."""
    if dtype.is_narrow:
        return narrow_value(code, narrow_bits(code, reg, dtype), dtype)
    if dtype is F16:
        return half_value(code, half_bits(code, reg))
    if dtype is BF16:
        return _round_bf16(code, reg)
    return reg


def _round_bf16(code: Code, reg: Reg) -> Reg:
    # The conversion instructions flush denormals, so integer operations are used. NaN is handled
    # apart, because the addition could carry from its payload into the exponent.
    bits = code.bitcast(reg, "i32")
    odd = code.op("and", code.op("lshr", bits, 16), 1)
    up = code.op("add", code.op("add", bits, 0x7FFF), odd)
    quiet = code.op("or", bits, 0x400000)
    rounded = code.select(code.compare("fcmp uno", reg, reg), quiet, up)
    return code.bitcast(code.op("and", rounded, -65536), "float")


def _bf16_value(code: Code, bits: Reg) -> Reg:
    return code.bitcast(code.op("shl", bits, 16), "float")


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
