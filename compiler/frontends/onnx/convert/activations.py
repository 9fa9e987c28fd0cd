"""Activation functions by the names that recurrent operators give them, with parameters."""

from collections.abc import Iterator

from tcc.frontends.emit import Emitter
from tcc.frontends.recurrent import Activation
from tcc.frontends.scope import Operand

_PLAIN = ("tanh", "sigmoid", "relu", "softsign", "softplus")
_ALPHA = {"leakyrelu": ("leaky_relu", 0.01), "elu": ("elu", 1.0)}
_ALPHA["thresholdedrelu"] = ("thresholded_relu", 1.0)
_ALPHA_BETA = {"affine": (1.0, 0.0), "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5)}


def _affine(ctx: Emitter, x: Operand, scale: float, shift: float) -> Operand:
    scaled = x * scale
    return scaled + shift


def _scaled_tanh(ctx: Emitter, x: Operand, alpha: float, beta: float) -> Operand:
    inner = ctx.emit("tanh", x * beta)
    return inner * alpha


def activation(
    ctx: Emitter, name: str, alphas: Iterator[float], betas: Iterator[float]
) -> Activation:
    """Returns the activation function with this lower-case name.

    The function takes its parameters, if it has any, from the iterators.
    """
    if name in _PLAIN:
        return lambda inner, x: inner.emit(name, x)
    if name in _ALPHA:
        op, default = _ALPHA[name]
        only = next(alphas, default)
        return lambda inner, x: inner.emit(op, x, alpha=only)
    if name not in _ALPHA_BETA:
        raise ctx.fail(f"the activation '{name[:40]}' is not known")
    alpha, beta = _ALPHA_BETA[name]
    alpha, beta = next(alphas, alpha), next(betas, beta)
    if name == "hardsigmoid":
        return lambda inner, x: inner.emit("hard_sigmoid", x, alpha=alpha, beta=beta)
    function = _affine if name == "affine" else _scaled_tanh
    return lambda inner, x: function(inner, x, alpha, beta)
