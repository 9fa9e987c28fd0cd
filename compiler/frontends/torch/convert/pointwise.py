"""Converters of pointwise operators that are one op: operands are cast to the dtype that torch
computes in, and numbers become scalars."""

import math
from typing import Any

import numpy as np
from tcc.frontends.emit import emit, family
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import (
    CallContext,
    Computed,
    Converter,
    Converters,
    ResultType,
    Truths,
    named,
    numbers,
)
from tcc.ir.index import Index
from tcc.ir.types import BOOL, F16, F32, DType, DTypeKind

_SMALLEST_F16, _LARGEST_F16 = float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)


@family
def _unary(op: str, x: Computed) -> Operand:
    return x.emit(op)


def _binary(op: str, of_truths: str) -> Converter:
    """Returns a converter: `op` of the first two arguments, or `of_truths` for booleans."""

    return lambda ctx: emit(of_truths if ctx.result_dtype() is BOOL else op, *ctx.both())


@family
def _comparison(op: str, ctx: CallContext) -> Operand:
    dtype = ctx.promoted("self", "other")
    operands = ctx.both(dtype)
    if dtype is BOOL and op != "equal":
        operands = [numbers(x) for x in operands]
    truths = emit("equal" if op == "not_equal" else op, *operands)
    return ~truths if op == "not_equal" else truths


def _logical(op: str) -> Converter:
    return lambda ctx: emit(op, *ctx.both(BOOL))


def _bitwise_not(x: Operand) -> Operand:
    return x.emit("not" if x.dtype is BOOL else "bitwise_not")


@family
def _shift(direction: str, x: Computed, other: Computed, dtype: ResultType) -> Operand:
    if not dtype.is_integer:
        raise Refusal(f"it shifts {dtype.name}")
    if dtype.kind is DTypeKind.INT:  # for torch, a negative shift is a shift by all bits
        other = (other >= 0).select(other, dtype.bits)
    return x.bit_shift(other, direction=direction)


# ---- arithmetic ----------------------------------------------------------------------------------


@family
def _sum(op: str, ctx: CallContext, x: Computed, other: Computed) -> Operand:
    """Returns a sum or difference; the second operand is multiplied by `alpha`."""
    if x.dtype is BOOL:
        return x | other
    if ctx.real("alpha") != 1:
        other = other * ctx.operand("alpha", x.dtype)
    return x.emit(op, other)


def _factor_type(ctx: CallContext) -> DType:
    """Returns the dtype in which a product or quotient is computed.

    It is the dtype of the result, or f32 if a number is outside the range of f16, as in torch.
    """
    dtype = ctx.result_dtype()
    operands = [ctx.arguments[name] for name in ("self", "other")]
    return F32 if dtype is F16 and any(map(_is_beyond_f16, operands)) else dtype


def _is_beyond_f16(value: Any) -> bool:
    """True if f16 may hold an operand only as zero, a denormal or infinity.  torch converts integer
    tensors with axes to f16 before it computes."""
    if isinstance(value, Operand):
        scalar = value.rank == 0 and value.dtype.is_integer
        return scalar or (value.dtype.is_float and value.dtype is not F16)
    if isinstance(value, Index):
        return True
    if not isinstance(value, int | float) or value == 0 or math.isinf(value):
        return False
    return abs(value) < _SMALLEST_F16 or abs(value) > _LARGEST_F16


def _mul(ctx: CallContext) -> Operand:
    x, y = ctx.both(_factor_type(ctx))
    return x & y if x.dtype is BOOL else x * y


def _neg(x: Operand) -> Operand:
    return 0 - x if x.dtype.kind is DTypeKind.UINT else -x


def truncated(x: Operand) -> Operand:
    """Rounds `x` towards zero."""
    if not x.dtype.is_float:
        return x
    down, up = x.floor(), x.ceil()
    return (x < 0).select(up, down)


def _div(ctx: CallContext) -> Operand:
    x, y = ctx.both(_factor_type(ctx))
    mode = ctx.arguments.get("rounding_mode")
    result = _floor_quotient(x, y) if mode == "floor" else x / y
    return truncated(result) if mode == "trunc" else result


def _divided_type(ctx: CallContext) -> DType:
    """Returns the dtype in which remainders and integer quotients are computed.

    The dtype of the result would not do: a result that is updated in place may be narrower.
    """
    dtype = ctx.result_dtype()
    return ctx.promoted("self", "other") if dtype.is_integer else dtype


def quotient(x: Operand, y: Operand) -> Operand:
    """Returns x / y, rounded down for integers."""
    return x / y if x.dtype.is_float else _floor_quotient(x, y)


def _floor_quotient(x: Operand, y: Operand) -> Operand:
    """Returns x / y rounded down; it is computed from the remainder, which is exact."""
    quotient = x / y
    if x.dtype.kind is DTypeKind.UINT:
        return quotient
    remainder, differs_in_sign = _signed_remainder(x, y)
    below = differs_in_sign.cast(x.dtype)
    if not x.dtype.is_float:
        return quotient - below
    rounded = ((x - remainder) / y - below).round()
    return y.equals(0).select(quotient, rounded)


def _signed_remainder(x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """Returns the remainder of a division rounded towards zero, and a mask.

    The mask is true where the remainder's sign differs from the divisor's.
    """
    remainder = x.mod(y, fmod=True)
    return remainder, ~remainder.equals(0) & ((remainder < 0) ^ (y < 0))


def _remainder(ctx: CallContext) -> Operand:
    """Returns the remainder with the sign of the divisor."""
    x, y = ctx.both(_divided_type(ctx))
    if not x.dtype.is_float:
        return x.mod(y, fmod=False)
    remainder, differs_in_sign = _signed_remainder(x, y)
    return differs_in_sign.select(remainder + y, remainder)


def _pow(ctx: CallContext, dtype: ResultType) -> Operand:
    base, exponent = list(ctx.arguments)[:2]
    value = ctx.arguments[exponent]
    x = ctx.operand(base, dtype)
    if isinstance(value, int | float) and dtype.is_float:
        if value == 2:
            return x * x
        if value == 0.5:
            return x.sqrt()
    return x ** ctx.operand(exponent, dtype)


def _where(condition: Truths, x: Computed, other: Computed) -> Operand:
    return condition.select(x, other)


def _clamp(x: Computed, min: Computed | None = None, max: Computed | None = None) -> Operand:
    """Clamps to bounds.

    Where the lower bound is above the upper bound, the result is the upper one. NaN stays NaN.
    """
    if min:
        x = x.maximum(min)
    return x.minimum(max) if max else x


@family
def _extremum(op: str, x: Computed, other: Computed) -> Operand:
    """Returns fmax or fmin, which prefer a number to NaN."""
    extremum = x.emit(op, other)
    if not x.dtype.is_float:
        return extremum
    number = other.is_nan().select(x, extremum)
    return x.is_nan().select(other, number)


# ---- activations ---------------------------------------------------------------------------------


def _gelu(x: Computed, approximate: str) -> Operand:
    return x.gelu(approximate=approximate)


def _leaky_relu(x: Computed, negative_slope: float) -> Operand:
    return x.leaky_relu(alpha=negative_slope)


def _elu(x: Operand, alpha: float, scale: float, input_scale: float) -> Operand:
    if scale == input_scale == 1:
        return x.elu(alpha=alpha)
    rising = x * scale
    falling = ((x * input_scale).exp() - 1) * (alpha * scale)
    return (x > 0).select(rising, falling)


def _softplus(x: Operand, beta: float, threshold: float) -> Operand:
    scaled = x if beta == 1 else x * beta
    soft = scaled.softplus()
    if beta != 1:
        soft = soft / beta
    return (scaled > threshold).select(x, soft)


def _hardtanh(x: Operand, min_val: Computed, max_val: Computed) -> Operand:
    return x.maximum(min_val).minimum(max_val)


def _relu(x: Operand) -> Operand:
    return x.relu() if x.dtype.is_float else x.maximum(0)


_UNARY = (
    "asin acos atan sinh cosh tanh asinh acosh atanh erf sin cos tan exp log sqrt reciprocal "
    "sigmoid mish silu"
).split()
_COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_or_equal", "gt": "greater",
    "ge": "greater_or_equal",
}  # fmt: skip

CONVERTERS: Converters = {
    **named(
        _gelu,
        _leaky_relu,
        _bitwise_not,
        _mul,
        _div,
        _remainder,
        _pow,
        _clamp,
        _elu,
        _softplus,
        _hardtanh,
        _relu,
        _neg,
    ),
    **{name: _unary(name) for name in _UNARY},
    "hardswish": _unary("hard_swish"),
    **{name: _comparison(op) for name, op in _COMPARISONS.items()},
    **{f"logical_{op}": _logical(op) for op in ("and", "or", "xor")},
    **{f"bitwise_{op}": _binary(f"bitwise_{op}", op) for op in ("and", "or", "xor")},
    "logical_not": lambda ctx: ~ctx.operand("self", BOOL),
    "bitwise_left_shift": _shift("LEFT"),
    "__lshift__": _shift("LEFT"),
    "bitwise_right_shift": _shift("RIGHT"),
    "__rshift__": _shift("RIGHT"),
    "add": _sum("add"),
    "sub": _sum("sub"),
    "fmod": lambda ctx: emit("mod", *ctx.both(_divided_type(ctx)), fmod=True),
    "maximum": _binary("max", "or"),
    "minimum": _binary("min", "and"),
    "fmax": _extremum("max"),
    "fmin": _extremum("min"),
    "where.self": _where,
    "log_sigmoid": lambda x: -(-x).softplus(),
}
