"""Functions of one element: arithmetic, rounding, transcendental functions, predicates, casts."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar
from tcc.ir.narrow import rounded
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
    DType,
    TensorType,
)
from tcc.ops.formula import fn
from tcc.ops.pointwise import NumpyFunction, pointwise_op
from tcc.ops.reference import truncated
from tcc.ops.rows import op_row
from tcc.ops.shapes import (
    ALL,
    BOOLS,
    FLOATS,
    INTEGERS,
    MOVED,
    NUMERIC,
    SIGNED,
    Point,
)


@frozen
class CastAttrs:
    """`to` is the element type of the result."""

    to: DType


def _function(
    name: str,
    numpy: NumpyFunction,
    doc: str,
    *,
    dtypes: Sequence[DType] = FLOATS,
    exact: bool = False,
    scalar: str = "",
    result: DType | None = None,
    onnx: str = "",
) -> OpSpec:
    """Returns the op-table row of a function of one scalar.

    `scalar` is the function's name in the scalar table, and `onnx` that of the ONNX operator, where
    they do not follow from `name`. `result` is the result's element type if it differs from the
    operand's.
    """
    return pointwise_op(
        name, lambda _, x: fn(scalar or name, x), lambda _, x: numpy(x), doc, dtypes=dtypes,
        result=result, tolerance=Tolerance.EXACT if exact else Tolerance.ELEMENTWISE, onnx=onnx,
    )  # fmt: skip


def _erf(x: Array) -> Array:
    return np.array([math.erf(float(v)) for v in x.ravel()], x.dtype).reshape(x.shape)


def _sign(x: Array) -> Array:
    return np.where(x == 0, x, np.sign(x))


# ---- ops that copy or convert one element: identity and cast -------------------------------------


def _copied(b: ExprBuilder, at: Point, _: object, x: TensorType) -> Scalar:
    return b.read(0, *at)


def _cast_infer(attrs: CastAttrs, x: TensorType) -> TensorType:
    return TensorType(attrs.to, x.shape)


def _cast_reference(attrs: CastAttrs, x: Array) -> Any:
    to = attrs.to
    if to is BOOL:
        return x != 0
    with np.errstate(all="ignore"):
        if to.is_integer and x.dtype.kind == "f":
            return truncated(x, to)
        value = x.astype(to.carrier)
        return rounded(value, to) if to.is_narrow else value


_IDENTITY = op_row(
    "identity", NoAttrs, lambda _, x: x, lambda _, x: np.array(x), MOVED,
    "The operand itself.",
    element=_copied,
    traits=Trait.ELEMENTWISE | Trait.MOVEMENT, onnx=OnnxBinding("Identity"),
)  # fmt: skip

_CAST = op_row(
    "cast", CastAttrs, _cast_infer, _cast_reference, ALL,
    "Conversion by value: float to integer truncates and saturates, NaN gives 0; bool is != 0.",
    element=_copied, traits=Trait.ELEMENTWISE,
)  # fmt: skip

OPS = (
    _function("abs", np.abs, "Absolute value.", dtypes=NUMERIC, exact=True),
    _function("neg", np.negative, "Negation.", dtypes=SIGNED, exact=True),
    _function("sign", _sign, "-1 or 1; 0 and NaN stay.", dtypes=NUMERIC, exact=True),
    _function("floor", np.floor, "Rounding downwards.", exact=True),
    _function("ceil", np.ceil, "Rounding upwards.", exact=True),
    _function("round", np.rint, "Rounding to nearest, ties to even.", exact=True),
    _function("sqrt", np.sqrt, "Square root."),
    _function("exp", np.exp, "e to the power x."),
    _function("log", np.log, "Natural logarithm."),
    _function("sin", np.sin, "Sine of radians."),
    _function("cos", np.cos, "Cosine of radians."),
    _function("tan", np.tan, "Tangent of radians."),
    _function("asin", np.arcsin, "Inverse sine."),
    _function("acos", np.arccos, "Inverse cosine."),
    _function("atan", np.arctan, "Inverse tangent."),
    _function("sinh", np.sinh, "Hyperbolic sine."),
    _function("cosh", np.cosh, "Hyperbolic cosine."),
    _function("tanh", np.tanh, "Hyperbolic tangent."),
    _function("asinh", np.arcsinh, "Inverse hyperbolic sine."),
    _function("acosh", np.arccosh, "Inverse hyperbolic cosine."),
    _function("atanh", np.arctanh, "Inverse hyperbolic tangent."),
    _function("erf", _erf, "Gauss error function."),
    _function(
        "not", np.logical_not,
        "Logical negation.", dtypes=BOOLS, exact=True,
    ),
    _function(
        "bitwise_not", np.invert,
        "Every bit flipped.", dtypes=INTEGERS, exact=True, scalar="bit_not",
    ),
    pointwise_op(
        "reciprocal", lambda _, x: 1.0 / x, lambda _, x: np.ones_like(x) / x, "1 / x.",
        dtypes=FLOATS,
    ),
    _function(
        "is_nan", np.isnan,
        "True where x is not a number.", exact=True, result=BOOL, onnx="IsNaN",
    ),
    _function("is_inf", np.isinf, "True where x is an infinity.", exact=True, result=BOOL),
    _IDENTITY,
    _CAST,
)  # fmt: skip
