"""Elements in memory against elements in registers.

bool is a byte in memory (any non-zero one is true) and i1 in registers; f16, bf16 and narrower
floats lie in memory as their bits and are carried as f32 whose value the narrow type can hold.
Integers of less than a byte have one of their own.
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


def literal(value: bool | int | float, dtype: DType, width: int = 1) -> Reg:
    """A literal in registers."""
    elem = register_element(dtype)
    if dtype.is_float:
        return float_const(rounded_number(value, dtype), elem, width)
    return int_const(int(value), elem, width)


def stored_constant(value: bool | int | float, dtype: DType, width: int) -> Reg:
    """A literal as it lies in memory."""
    elem = memory_element(dtype)
    if dtype.is_narrow or dtype in (BF16, F16):
        exact = rounded_number(value, dtype) if dtype.is_float else value
        raw = stored_bytes(np.asarray([exact], dtype.carrier), dtype)
        return int_const(int.from_bytes(raw.tobytes(), "little"), elem, width)
    if dtype.is_float:
        return float_const(float(value), elem, width)
    return int_const(int(value), elem, width)
