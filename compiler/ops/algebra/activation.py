"""Activation functions: ONNX's formulas, rewritten so that overflow gives no wrong result."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.expr.scalar import Scalar
from tcc.ir.op import Array, NoAttrs, OpSpec, Tolerance
from tcc.ops.formula import choose, fn
from tcc.ops.pointwise import pointwise_op
from tcc.ops.shapes import FLOATS, NUMERIC, first_shape


@frozen
class LeakyReluAttrs:
    """`alpha` is the slope for negative operands."""

    alpha: float = 0.01


@frozen
class EluAttrs:
    """`-alpha` is the limit of the result at minus infinity."""

    alpha: float = 1.0


@frozen
class SeluAttrs:
    """The two constants of a self-normalising activation: `gamma * elu(x, alpha)`."""

    alpha: float = 1.6732631921768188
    gamma: float = 1.0507010221481323


@frozen
class HardSigmoidAttrs:
    """The clipped line `max(0, min(1, alpha * x + beta))`."""

    alpha: float = 0.2
    beta: float = 0.5


@frozen
class SiluAttrs:
    """The function `x * sigmoid(alpha * x)`."""

    alpha: float = 1.0


@frozen
class GeluAttrs:
    """`approximate` is "none" (the exact formula, with erf) or "tanh"."""

    approximate: str = "none"

    def __post_init__(self) -> None:
        if self.approximate not in ("none", "tanh"):
            raise ValueError(f"there is no approximation {self.approximate!r}")


_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715


# ---- formulas -----------------------------------------------------------------------------------


def sigmoid(x: Scalar) -> Scalar:
    """Returns 1 / (1 + exp(-x)).

    Where the exponential overflows to infinity, the quotient is exactly 0.
    """
    return 1.0 / (1.0 + fn("exp", -x))


def softplus(x: Scalar) -> Scalar:
    """Returns log(1 + exp(x)), computed as max(x, 0) + log1p(exp(-|x|))."""
    return fn("max", x, 0.0) + fn("log1p", fn("exp", -abs(x)))


def _gelu(attrs: GeluAttrs, x: Scalar) -> Scalar:
    if attrs.approximate == "tanh":
        cubic = x * x * x * _TANH_CUBIC
        inner = fn("tanh", (x + cubic) * _TANH_SCALE)
    else:
        inner = fn("erf", x * math.sqrt(0.5))
    return x * 0.5 * (inner + 1.0)


def _selu(attrs: SeluAttrs, x: Scalar) -> Scalar:
    return choose(x <= 0.0, fn("expm1", x) * attrs.alpha, x) * attrs.gamma


def _clamp(x: Scalar, lo: float, hi: float) -> Scalar:
    return fn("min", fn("max", x, lo), hi)


def _hard_swish(_: NoAttrs, x: Scalar) -> Scalar:
    return x * _clamp(x * (1.0 / 6.0) + 0.5, 0.0, 1.0)


def _clip(_: NoAttrs, x: Scalar, lo: Scalar | None = None, hi: Scalar | None = None) -> Scalar:
    raised = x if lo is None else fn("max", x, lo)
    return raised if hi is None else fn("min", raised, hi)


# ---- NumPy references ----------------------------------------------------------------------------


def _like(x: Array, value: float) -> Array:
    return np.asarray(value, x.dtype)


def _sigmoid_numpy(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(np.isnan(x), x, np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def _softplus_numpy(x: Array) -> Array:
    return np.logaddexp(x, np.zeros_like(x))


def _gelu_numpy(attrs: GeluAttrs, x: Array) -> Any:
    wide = x.astype(np.float64)
    if attrs.approximate == "tanh":
        inner = np.tanh(_TANH_SCALE * (wide + _TANH_CUBIC * wide**3))
    else:
        flat = [math.erf(v / math.sqrt(2.0)) for v in wide.ravel()]
        inner = np.array(flat).reshape(x.shape)
    return 0.5 * wide * (1.0 + inner)


def _clip_numpy(_: NoAttrs, x: Array, lo: Array | None = None, hi: Array | None = None) -> Array:
    raised = x if lo is None else np.maximum(x, lo)
    return raised if hi is None else np.minimum(raised, hi)


# ---- rows of the op table ------------------------------------------------------------------------


def _activation(
    name: str,
    formula: Callable[..., Scalar],
    numpy: Callable[..., Any],
    doc: str,
    attrs: type[Any] = NoAttrs,
    *,
    onnx: str = "",
    since: int = 1,
    exact: bool = False,
) -> OpSpec:
    """Returns the row of the op table for an activation of one float operand.

    With `exact`, results must equal the reference's results; otherwise the tolerance `ACTIVATION`
    applies.
    """
    return pointwise_op(
        name, formula, numpy, doc, dtypes=FLOATS, attrs=attrs,
        tolerance=Tolerance.EXACT if exact else Tolerance.ACTIVATION, onnx=onnx, since=since,
    )  # fmt: skip


OPS = (
    _activation(
        "relu", lambda _, x: fn("max", x, 0.0), lambda _, x: np.maximum(x, _like(x, 0)),
        "max(x, 0); NaN stays.",
        exact=True,
    ),
    _activation(
        "leaky_relu", lambda attrs, x: choose(x < 0.0, x * attrs.alpha, x),
        lambda attrs, x: np.where(x < 0, x * _like(x, attrs.alpha), x),
        "x, times alpha where negative.",
        LeakyReluAttrs,
    ),
    _activation(
        "elu", lambda attrs, x: choose(x < 0.0, fn("expm1", x) * attrs.alpha, x),
        lambda attrs, x: np.where(x < 0, _like(x, attrs.alpha) * np.expm1(x), x),
        "x, and alpha * (exp(x) - 1) where negative.",
        EluAttrs,
    ),
    _activation(
        "selu", _selu,
        lambda a, x: a.gamma * np.where(x > 0, x, a.alpha * np.expm1(x)),
        "gamma * x, and gamma * alpha * (exp(x) - 1) where not positive.",
        SeluAttrs,
    ),
    _activation(
        "hard_sigmoid", lambda attrs, x: _clamp(x * attrs.alpha + attrs.beta, 0.0, 1.0),
        lambda a, x: np.clip(_like(x, a.alpha) * x + _like(x, a.beta), 0, 1),
        "alpha * x + beta, held between 0 and 1.",
        HardSigmoidAttrs,
    ),
    _activation(
        "hard_swish", _hard_swish, lambda _, x: x * np.clip(x / _like(x, 6) + _like(x, 0.5), 0, 1),
        "x * (x / 6 + 1/2 held between 0 and 1).",
        since=14,
    ),
    _activation(
        "sigmoid", lambda _, x: sigmoid(x), lambda _, x: _sigmoid_numpy(x),
        "1 / (1 + exp(-x)).",
    ),
    _activation(
        "softplus", lambda _, x: softplus(x), lambda _, x: _softplus_numpy(x),
        "log(1 + exp(x)).",
    ),
    _activation(
        "softsign", lambda _, x: x / (abs(x) + 1.0),
        lambda _, x: x / (1 + np.abs(x)),
        "x / (1 + |x|).",
    ),
    _activation(
        "gelu", _gelu, _gelu_numpy,
        "x times the normal distribution function of x, by erf or by its tanh approximation.",
        GeluAttrs, since=20,
    ),
    _activation(
        "mish", lambda _, x: x * fn("tanh", softplus(x)),
        lambda _, x: x * np.tanh(_softplus_numpy(x)),
        "x * tanh(softplus(x)).",
        since=18,
    ),
    _activation(
        "silu", lambda attrs, x: x * sigmoid(x * attrs.alpha),
        lambda attrs, x: x * _sigmoid_numpy(_like(x, attrs.alpha) * x),
        "x * sigmoid(alpha * x).",
        SiluAttrs, onnx="Swish", since=24,
    ),
    pointwise_op(
        "prelu", lambda _, x, slope: choose(x < 0, x * slope, x),
        lambda _, x, slope: np.where(x < 0, x * slope, x),
        "x, times the slope where negative; the slope broadcasts to x.",
        dtypes=NUMERIC, shape=first_shape,
        onnx="PRelu",
    ),
    pointwise_op(
        "clip", _clip, _clip_numpy,
        "x held between two scalars, each of which may be absent; NaN stays.",
        dtypes=NUMERIC, shape=first_shape,
        tolerance=Tolerance.EXACT, since=11,
    ),
)  # fmt: skip
