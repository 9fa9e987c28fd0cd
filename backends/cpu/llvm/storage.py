"""Elements in memory against elements in registers.

bool is a byte in memory (any non-zero one is true) and i1 in registers; f16, bf16 and narrower
floats lie in memory as their bits and are carried as f32 whose value the narrow type can hold.
Integers of less than a byte have one of their own.
"""

from __future__ import annotations

import struct

from tcc.backends.cpu.llvm.blocks import register_element
from tcc.backends.cpu.llvm.half import half_bits, half_value
from tcc.backends.cpu.llvm.narrow import narrow_bits, narrow_value
from tcc.backends.cpu.llvm.text import Code, Reg, float_const, int_const, round_to_f32
from tcc.ir.narrow import encode, rounded
from tcc.ir.types import BF16, BOOL, F16, F32, F64, DType


def memory_element(dtype: DType) -> str:
    """The LLVM type of one element in memory."""
    if dtype is F32:
        return "float"
    if dtype is F64:
        return "double"
    return f"i{8 * dtype.bytes}"


def from_memory(code: Code, reg: Reg, dtype: DType) -> Reg:
    """What was loaded, as a register value."""
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
    """A register value, as it is stored."""
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
    """An f32 rounded to nearest even in a narrower type; other types are left as they are."""
    if dtype.is_narrow:
        return narrow_value(code, narrow_bits(code, reg, dtype), dtype)
    if dtype is F16:
        return half_value(code, half_bits(code, reg))
    if dtype is BF16:
        return _round_bf16(code, reg)
    return reg


def _round_bf16(code: Code, reg: Reg) -> Reg:
    # In integers: the instructions for it flush denormals.  NaN is set apart, whose payload the
    # addition could carry into infinity.
    bits = code.bitcast(reg, "i32")
    odd = code.op("and", code.op("lshr", bits, 16), 1)
    up = code.op("add", code.op("add", bits, 0x7FFF), odd)
    quiet = code.op("or", bits, 0x400000)
    kept = code.select(code.compare("fcmp uno", reg, reg), quiet, up)
    return code.bitcast(code.op("and", kept, -65536), "float")


def _bf16_value(code: Code, bits: Reg) -> Reg:
    return code.bitcast(code.op("shl", bits, 16), "float")


def round_literal(value: float, dtype: DType) -> float:
    """A Python float rounded once to `dtype`."""
    if dtype is F16:
        try:
            half: float = struct.unpack("<e", struct.pack("<e", value))[0]
        except OverflowError:
            half = float("inf") if value > 0 else float("-inf")
        return half
    if dtype.is_narrow:
        return float(rounded(round_to_f32(value), dtype))
    if dtype is BF16:
        bits = _bf16_bits(value)
        wide: float = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
        return wide
    return round_to_f32(value) if dtype is F32 else value


def _bf16_bits(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", round_to_f32(value)))[0]
    if value != value:
        return 0x7FC0
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def constant(value: bool | int | float, dtype: DType, width: int = 1) -> Reg:
    """A literal in registers."""
    elem = register_element(dtype)
    if dtype.is_float:
        return float_const(round_literal(float(value), dtype), elem, width)
    return int_const(int(value), elem, width)


def stored_constant(value: bool | int | float, dtype: DType, width: int) -> Reg:
    """A literal as it lies in memory."""
    elem = memory_element(dtype)
    if dtype.is_narrow:
        carried = round_to_f32(value) if dtype.is_float else value
        return int_const(int(encode(carried, dtype)), elem, width)
    if dtype is BF16:
        return int_const(_bf16_bits(float(value)), elem, width)
    if dtype is F16:
        bits = struct.unpack("<H", struct.pack("<e", round_literal(float(value), dtype)))[0]
        return int_const(bits, elem, width)
    if dtype.is_float:
        return float_const(float(value), elem, width)
    return int_const(int(value), elem, width)
