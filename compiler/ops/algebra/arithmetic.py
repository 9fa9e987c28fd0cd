"""Elementwise functions of several operands: arithmetic, comparison, logic, bits, selection."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, cast
from tcc.ir.op import (
    Array,
    NoAttrs,
    OnnxBinding,
    OpSpec,
    Tolerance,
    Trait,
)
from tcc.ir.types import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    STRING,
    DType,
    DTypeKind,
    TensorType,
    dtype_of,
)
from tcc.ops.formula import choose, fn, read_aligned
from tcc.ops.pointwise import NumpyFunction, pointwise_op
from tcc.ops.reference import truncated
from tcc.ops.rows import op_row
from tcc.ops.shapes import (
    BOOLS,
    FLOATS,
    INTEGERS,
    MOVED,
    NUMERIC,
    Point,
    broadcast_shapes,
    broadcast_types,
    check_dtype,
    same_dtype,
)
from tcc.zipped import zip_equal

MANY = 1 << 16  # the operand limit of variadic ops, above what models use


@frozen
class ModAttrs:
    """With `fmod`, the remainder has the sign of the dividend (C's fmod), else of the divisor."""

    fmod: bool = False


@frozen
class BitShiftAttrs:
    """`direction` is "LEFT" or "RIGHT"."""

    direction: str

    def __post_init__(self) -> None:
        if self.direction not in ("LEFT", "RIGHT"):
            raise ValueError(f"there is no direction {self.direction!r}")


def _binary(
    name: str,
    numpy: NumpyFunction,
    doc: str,
    *,
    dtypes: Sequence[DType] = NUMERIC,
    result: DType | None = None,
    scalar: str = "",
    exact: bool = False,
) -> OpSpec:
    """Returns the row of the op table for a function of two scalars.

    `scalar` is the function's name in the scalar table if it differs from `name`.
    """
    return pointwise_op(
        name, lambda _, x, y: fn(scalar or name, x, y), lambda _, x, y: numpy(x, y), doc,
        dtypes=dtypes, result=result,
        tolerance=Tolerance.EXACT if exact or result is BOOL else Tolerance.ELEMENTWISE,
    )  # fmt: skip


def _bitwise(function: str, numpy: NumpyFunction) -> OpSpec:
    return _binary(
        f"bitwise_{function}", numpy, f"{function.capitalize()} of every bit.",
        dtypes=INTEGERS, scalar=f"bit_{function}", exact=True,
    )  # fmt: skip


def _divide(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return x / y
    safe = np.where(y == 0, np.ones_like(y), y)
    floor = x // safe
    inexact = (x % safe != 0) & ((x < 0) != (safe < 0))
    return np.where(y == 0, np.zeros_like(floor), floor + inexact.astype(floor.dtype))


def _modulo(attrs: ModAttrs, x: Array, y: Array) -> Any:
    function: Callable[..., Any] = np.fmod if attrs.fmod else np.mod
    if x.dtype.kind not in "iu":
        return function(x, y)
    return np.where(y == 0, np.zeros_like(x), function(x, np.where(y == 0, np.ones_like(y), y)))


def _shift(attrs: BitShiftAttrs, x: Scalar, y: Scalar) -> Scalar:
    """Returns `x` shifted by `y` bits.

    Where `y` is at least the width of the element type, the result is 0, or -1 for a negative
    number that is shifted right.
    """
    function = "shift_left" if attrs.direction == "LEFT" else "shift_right"
    overshift: Scalar | int = 0
    if attrs.direction == "RIGHT" and x.dtype.kind is DTypeKind.INT:
        overshift = fn("shift_right", x, x.dtype.bits - 1)
    return choose(y < x.dtype.bits, fn(function, x, y), overshift)


def _shift_numpy(attrs: BitShiftAttrs, x: Array, y: Array) -> Array:
    y = np.broadcast_arrays(x, y)[1]
    inside = y < x.dtype.itemsize * 8
    by = np.where(inside, y, np.zeros_like(y))
    shifted = x << by if attrs.direction == "LEFT" else x >> by
    signs = attrs.direction == "RIGHT" and x.dtype.kind == "i"
    overshift = np.where(x < 0, -1, 0) if signs else 0
    return np.where(inside, shifted, overshift).astype(shifted.dtype)


# ---- any number of operands ---------------------------------------------------------------------


def _nary(
    name: str,
    formula: Callable[..., Scalar],
    numpy: NumpyFunction,
    doc: str,
    *,
    dtypes: Sequence[DType],
    exact: bool = False,
) -> OpSpec:
    return pointwise_op(
        name, lambda _, *terms: formula(*terms), lambda _, *arrays: numpy(*arrays), doc,
        dtypes=dtypes, arity=(1, MANY),
        tolerance=Tolerance.EXACT if exact else Tolerance.ACCUMULATE,
        since=8,
    )  # fmt: skip


def _fold(function: str) -> Callable[..., Scalar]:
    return lambda *terms: reduce(lambda a, b: fn(function, a, b), terms)


def _mean(*terms: Scalar) -> Scalar:
    return _fold("add")(*terms) / len(terms)


# ---- powers: base and exponent may have different types -----------------------------------------

_POW_BASES = (I32, I64, *FLOATS)


def _pow_dtype(base: DType, exponent: DType) -> DType:
    """Returns the type in which the power of a base and an exponent of these types is computed."""
    if base.is_integer:
        if exponent.is_float:
            return F64
        return I64 if I64 in (base, exponent) or exponent.bits > 32 else I32
    return F64 if F64 in (base, exponent) else F32


def _pow_infer(_: NoAttrs, x: TensorType, y: TensorType) -> TensorType:
    check_dtype(x.dtype, _POW_BASES, "the base")
    check_dtype(y.dtype, NUMERIC, "the exponent")
    return TensorType(x.dtype, broadcast_shapes(x.shape, y.shape))


def _pow_element(b: ExprBuilder, at: Point, _: NoAttrs, x: TensorType, y: TensorType) -> Scalar:
    compute = _pow_dtype(x.dtype, y.dtype)
    base, exponent = (cast(read_aligned(b, n, t, at), compute) for n, t in enumerate((x, y)))
    return fn("pow", base, exponent)


def _pow_reference(_: NoAttrs, x: Array, y: Array) -> Array:
    if x.dtype.kind == "i" and y.dtype.kind in "iu":
        out = np.broadcast_arrays(x, y)
        wrap = 1 << (8 * x.dtype.itemsize)
        pairs = zip_equal(*(o.ravel() for o in out))
        flat = [_int_power(int(a), int(e), wrap) for a, e in pairs]
        signed = [(v + wrap // 2) % wrap - wrap // 2 for v in flat]
        return np.array(signed, x.dtype).reshape(out[0].shape)
    with np.errstate(all="ignore"):
        power = np.power(x.astype(np.float64), y.astype(np.float64))
    return truncated(power, dtype_of(x)) if x.dtype.kind == "i" else power.astype(x.dtype)


def _int_power(base: int, exponent: int, wrap: int) -> int:
    """Returns the power modulo `wrap`; for a negative exponent, the power truncated to an
    integer."""
    if exponent >= 0:
        return pow(base, exponent, wrap)
    return base ** (-exponent % 2) if abs(base) == 1 else 0


_POW = op_row(
    "pow", NoAttrs, _pow_infer, _pow_reference, _POW_BASES,
    "x to the power y, in the type of x; integers wrap, and negative powers truncate to 0 or 1.",
    Tolerance.ELEMENTWISE,
    element=_pow_element, traits=Trait.ELEMENTWISE,
    onnx=OnnxBinding("Pow"),
)  # fmt: skip


# ---- selection ----------------------------------------------------------------------------------


def _where_infer(_: NoAttrs, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    check_dtype(condition.dtype, BOOLS, "the condition")
    return TensorType(same_dtype(x, y), broadcast_types((condition, x, y)))


def _where_element(b: ExprBuilder, at: Point, _: NoAttrs, *types: TensorType) -> Scalar:
    return choose(*(read_aligned(b, n, t, at) for n, t in enumerate(types)))


def _where_reference(_: NoAttrs, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


_WHERE = op_row(
    "where", NoAttrs, _where_infer, _where_reference, MOVED,
    "x where the condition holds, else y.",
    element=_where_element, traits=Trait.ELEMENTWISE,
    onnx=OnnxBinding("Where", since=9),
)  # fmt: skip


OPS = (
    _binary("add", np.add, "x + y."),
    _binary("sub", np.subtract, "x - y."),
    _binary("mul", np.multiply, "x * y."),
    _binary("div", _divide, "x / y; integers truncate and division by zero gives 0."),
    pointwise_op(
        "mod", lambda attrs, x, y: fn("rem" if attrs.fmod else "mod", x, y), _modulo,
        "Remainder with the sign of the divisor, or of the dividend with fmod.",
        dtypes=NUMERIC, attrs=ModAttrs, since=10,
    ),
    _POW,
    _nary(
        "max", _fold("max"), lambda *a: reduce(np.maximum, a),
        "The largest operand; NaN if an operand is NaN; of two zeros either.",
        dtypes=NUMERIC, exact=True,
    ),
    _nary(
        "min", _fold("min"), lambda *a: reduce(np.minimum, a),
        "The least operand; NaN if an operand is NaN; of two zeros either.",
        dtypes=NUMERIC, exact=True,
    ),
    _nary(
        "sum", _fold("add"), lambda *a: reduce(np.add, a),
        "The sum of the operands.",
        dtypes=FLOATS,
    ),
    _nary(
        "mean", _mean, lambda *a: reduce(np.add, a) / np.asarray(len(a), a[0].dtype),
        "The arithmetic mean of the operands.",
        dtypes=FLOATS,
    ),
    _binary(
        "equal", np.equal, "x == y.", dtypes=(*NUMERIC, BOOL, STRING),
        scalar="eq", result=BOOL,
    ),
    _binary("less", np.less, "x < y.", scalar="lt", result=BOOL),
    _binary("less_or_equal", np.less_equal, "x <= y.", scalar="le", result=BOOL),
    _binary("greater", np.greater, "x > y.", scalar="gt", result=BOOL),
    _binary("greater_or_equal", np.greater_equal, "x >= y.", scalar="ge", result=BOOL),
    _binary("and", np.logical_and, "Logical and.", dtypes=BOOLS, result=BOOL),
    _binary("or", np.logical_or, "Logical or.", dtypes=BOOLS, result=BOOL),
    _binary("xor", np.logical_xor, "Logical xor.", dtypes=BOOLS, result=BOOL),
    _bitwise("and", np.bitwise_and),
    _bitwise("or", np.bitwise_or),
    _bitwise("xor", np.bitwise_xor),
    pointwise_op(
        "bit_shift", _shift, _shift_numpy,
        "x shifted by y bits; by the whole width or more gives 0.",
        dtypes=INTEGERS, attrs=BitShiftAttrs,
        tolerance=Tolerance.EXACT, since=11,
    ),
    _WHERE,
)  # fmt: skip
