"""Narrow element types: ONNX's rounding to them, and packing of several elements into a byte."""

from functools import reduce
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, cast
from tcc.ir.index import Index
from tcc.ir.narrow import (
    FORMATS,
    rounded,
)
from tcc.ir.narrow import (
    encode as codes_of,
)
from tcc.ir.narrow import (
    pack as pack_codes,
)
from tcc.ir.narrow import (
    unpack as unpack_codes,
)
from tcc.ir.op import (
    Array,
    Trait,
)
from tcc.ir.types import (
    BF16,
    F4E2M1,
    F8E8M0,
    F16,
    F32,
    F64,
    I2,
    I4,
    I8,
    I32,
    I64,
    U2,
    U4,
    U8,
    DType,
    TensorType,
    tensor,
)
from tcc.ops.formula import choose, fn
from tcc.ops.rows import op_row
from tcc.ops.shapes import Point, check_dtype

ROUNDINGS = ("up", "down", "nearest")
NARROW_FLOATS = (*FORMATS, F8E8M0)
_LEAST, _MOST = 2.0**-127, 2.0**127  # the smallest and the largest value of f8e8m0


# ---- rounding -----------------------------------------------------------------------------------


@frozen
class NarrowAttrs:
    """The attributes of a conversion to the narrow float type `to`.

    With `saturate`, infinities and values beyond the type's largest value become the largest value.
    Without `saturate`, they become the type's infinity or NaN. `rounding` matters for f8e8m0 alone:
    "up" rounds away from zero, and "nearest" rounds to the nearest value, ties up.
    """

    to: DType
    saturate: bool = True
    rounding: str = "up"

    def __post_init__(self) -> None:
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"there is no rounding {self.rounding!r}")


def narrowed(value: Scalar, attrs: NarrowAttrs) -> Scalar:
    """Returns an f32 value converted to the narrow type `attrs.to`."""
    if attrs.to is F8E8M0:
        return _power(value, attrs)
    if attrs.saturate:
        largest = FORMATS[attrs.to].largest
        value = fn("min", fn("max", value, -largest), largest)
    return cast(value, attrs.to)


def _power(value: Scalar, attrs: NarrowAttrs) -> Scalar:
    if attrs.saturate:
        value = fn("min", fn("max", value, _LEAST), _MOST)
    else:
        value = choose(value < _LEAST, float("nan"), value)
    below = cast(cast(value, F8E8M0), F32)
    if attrs.rounding == "down":
        return cast(value, F8E8M0)
    moves = value > below if attrs.rounding == "up" else value >= below * 1.5
    up = choose(moves, below * 2.0, below)
    if attrs.saturate:
        up = fn("min", up, _MOST)
    return cast(up, F8E8M0)


def narrow_reference(attrs: NarrowAttrs, x: Array) -> Array:
    """Returns `x` converted to the narrow type `attrs.to`, by NumPy."""
    with np.errstate(all="ignore"):
        value = x.astype(np.float32)
        if attrs.to is not F8E8M0:
            if attrs.saturate:
                largest = np.float32(FORMATS[attrs.to].largest)
                value = np.clip(value, -largest, largest)
            return rounded(value, attrs.to)
        wide = value.astype(np.float64)
        if attrs.saturate:
            wide = np.clip(wide, _LEAST, _MOST)
        finite = np.isfinite(wide) & (wide >= _LEAST)
        mantissa, exponent = np.frexp(np.where(finite, wide, 1.0))  # wide = mantissa * 2**exponent
        exponent = exponent - 1
        if attrs.rounding != "down":
            exponent += mantissa > 0.5 if attrs.rounding == "up" else mantissa >= 0.75
        if attrs.saturate:
            exponent = np.minimum(exponent, 127)
        representable = finite & (exponent <= 127)
        return np.where(representable, np.ldexp(1.0, exponent), np.nan).astype(np.float32)


def _narrow_infer(attrs: NarrowAttrs, x: TensorType) -> TensorType:
    check_dtype(attrs.to, NARROW_FLOATS, "the result")
    return TensorType(attrs.to, x.shape)


# ---- packed elements -----------------------------------------------------------------------------


@frozen
class UnpackAttrs:
    """The bytes of the operand hold `count` elements of type `to`."""

    to: DType
    count: Index


@frozen
class PackAttrs:
    """Packs the lowest `bits` bits of each element; `bits` is 2 or 4."""

    bits: int

    def __post_init__(self) -> None:
        if self.bits not in (2, 4):
            raise ValueError(f"elements of {self.bits} bits are not packed")


_INTEGERS = (I2, I4, U2, U4)
_PACKED = (*_INTEGERS, F4E2M1)


def _check_vector(type: TensorType) -> None:
    if type.rank != 1:
        raise ValueError(f"the operand has rank {type.rank}, it needs 1")


def _unpack_infer(attrs: UnpackAttrs, data: TensorType) -> TensorType:
    check_dtype(data.dtype, (U8,))
    check_dtype(attrs.to, _PACKED, "the result")
    _check_vector(data)
    share = 8 // attrs.to.bits
    if data.shape[0] is not (attrs.count + share - 1) // share:
        raise ValueError(f"{data.shape[0].key} bytes do not hold {attrs.count.key} elements")
    return tensor(attrs.to, attrs.count)


def _unpack_element(b: ExprBuilder, at: Point, attrs: UnpackAttrs, data: TensorType) -> Scalar:
    bits, share = attrs.to.bits, 8 // attrs.to.bits
    code = fn("shift_right", b.read(0, at[0] // share), at[0] % share * bits)
    return _value(fn("bit_and", code, (1 << bits) - 1), attrs.to)


def _value(code: Scalar, to: DType) -> Scalar:
    """Returns the element of type `to` that a bit pattern (u8) encodes."""
    if to is not F4E2M1:
        return cast(code, to)
    size = cast(fn("bit_and", code, 7), I32)
    exponent, fraction = fn("shift_right", size, 1), fn("bit_and", size, 1)
    normal = fn("shift_left", fraction + 2, exponent)
    quarters = cast(choose(size < 2, size * 2, normal), F32)
    magnitude = quarters * 0.25
    return cast(choose(code >= 8, -magnitude, magnitude), to)


def _unpack_reference(attrs: UnpackAttrs, data: Array) -> Any:
    codes = unpack_codes(data, attrs.count.const, attrs.to)
    if attrs.to is F4E2M1:
        sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[codes & 7]
        return np.where(codes > 7, -sizes, sizes)
    wide = codes.astype(np.int8)
    if attrs.to in (I2, I4):
        wide = np.where(wide >> (attrs.to.bits - 1), wide - (1 << attrs.to.bits), wide)
    return wide.astype(attrs.to.carrier)


def _pack_infer(attrs: PackAttrs, x: TensorType) -> TensorType:
    check_dtype(x.dtype, (I8, U8, *_PACKED))
    if x.dtype is F4E2M1 and attrs.bits != 4:
        raise ValueError(f"elements of {x.dtype.name} have 4 bits")
    _check_vector(x)
    share = 8 // attrs.bits
    return tensor(U8, (x.shape[0] + share - 1) // share)


def _pack_element(b: ExprBuilder, at: Point, attrs: PackAttrs, x: TensorType) -> Scalar:
    share = 8 // attrs.bits
    codes = (_code(b.read(0, at[0] * share + n, fill=0)) for n in range(share))
    masked = (fn("bit_and", code, (1 << attrs.bits) - 1) for code in codes)
    shifted = (fn("shift_left", code, n * attrs.bits) for n, code in enumerate(masked))
    return reduce(lambda byte, part: fn("bit_or", byte, part), shifted)


def _code(element: Scalar) -> Scalar:
    """Returns the bit pattern (u8) that encodes an element."""
    if element.dtype is not F4E2M1:
        return cast(element, U8)
    value = cast(element, F32)
    halves = cast(abs(value) * 2.0, I32)
    above = fn("shift_right", halves, 1) + 2
    top = fn("shift_right", halves, 2) + 4
    size = choose(halves < 4, halves, choose(halves < 8, above, top))
    negative = 1.0 / value < 0.0  # unlike `value < 0.0`, true for -0.0
    return cast(choose(negative, size + 8, size), U8)


def _pack_reference(attrs: PackAttrs, x: Array) -> Array:
    if x.dtype.kind == "f":
        return pack_codes(codes_of(x, F4E2M1), F4E2M1)
    return pack_codes(x.astype(np.uint8), U4 if attrs.bits == 4 else U2)


_ELEMENTWISE = Trait.ELEMENTWISE

OPS = (
    op_row(
        "to_narrow", NarrowAttrs, _narrow_infer, narrow_reference,
        (F32, F16, BF16, F64, I32, I64),
        "Conversion to a narrow float type, saturating or not; f8e8m0 rounds as asked.",
        element=lambda b, at, attrs, _: narrowed(cast(b.read(0, *at), F32), attrs),
        traits=_ELEMENTWISE,
    ),
    op_row(
        "unpack", UnpackAttrs, _unpack_infer, _unpack_reference, (U8,),
        "Elements of 4 or 2 bits from bytes, the first from the lowest bits.",
        element=_unpack_element,
    ),
    op_row(
        "pack", PackAttrs, _pack_infer, _pack_reference, (I8, U8, *_PACKED),
        "The lowest 4 or 2 bits of each element, packed into bytes from the lowest bits up.",
        element=_pack_element,
    ),
)  # fmt: skip
