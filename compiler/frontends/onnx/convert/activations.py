"""Activation functions by the names that recurrent operators give them, with parameters."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from tcc.frontends.emit import emit
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.recurrent import Activation

# Maps a lower-case name to a function of an operand and parameters, with their defaults.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Operand], Mapping[str, float]]] = {
    **{name: (partial(emit, name), {}) for name in "tanh sigmoid relu softsign softplus".split()},
    "leakyrelu": (partial(emit, "leaky_relu"), {"alpha": 0.01}),
    "elu": (partial(emit, "elu"), {"alpha": 1.0}),
    "thresholdedrelu": (lambda x, alpha: (x > alpha).select(x, 0), {"alpha": 1.0}),
    "hardsigmoid": (partial(emit, "hard_sigmoid"), {"alpha": 0.2, "beta": 0.5}),
    "affine": (lambda x, alpha, beta: x * alpha + beta, {"alpha": 1.0, "beta": 0.0}),
    "scaledtanh": (
        lambda x, alpha, beta: (x * beta).tanh() * alpha,
        {"alpha": 1.0, "beta": 1.0},
    ),
}


def activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    """Returns the activation function with this lower-case name.

    The function takes its parameters, if it has any, from the iterators.
    """
    if name not in _FUNCTIONS:
        raise Refusal(f"the activation '{name[:40]}' is not known")
    function, defaults = _FUNCTIONS[name]
    numbers = {"alpha": alphas, "beta": betas}
    values = {key: next(numbers[key], default) for key, default in defaults.items()}
    return partial(function, **values)
