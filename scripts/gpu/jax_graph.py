"""Runs the graphs of `graphs.py` in JAX, to compare its time with tcc's; needs jax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gpu.draws import array_of

Array: TypeAlias = Any
Run = Callable[..., tuple[Array, ...]]


def build(graph: Mapping[str, Any], dtype: str | None) -> tuple[Run, dict[str, Array]]:
    """Returns (function, weights by name); function(weights, *inputs) returns a tuple of outputs.

    Float weights have the type `dtype` (None: float32), and all weights are on JAX's default
    device. Raises ValueError for an unknown operator.
    """
    missing = sorted({node["op"] for node in graph["nodes"]} - FUNCTIONS.keys())
    if missing:
        raise ValueError(f"the JAX reference does not support {', '.join(missing)}")
    constants = {name: array_of(tensor) for name, tensor in graph["tensors"].items()}
    weight_names = {
        name
        for node in graph["nodes"]
        for place, name in enumerate(node["in"])
        if name in constants and place not in FUNCTIONS[node["op"]][1]
    }

    def run(weights: Mapping[str, Array], *inputs: Array) -> tuple[Array, ...]:
        values = {**weights, **dict(zip(graph["inputs"], inputs, strict=True))}
        for node in graph["nodes"]:
            _node(node, values, constants)
        return tuple(values[name] for name in graph["outputs"])

    return run, {name: to_device(constants[name], dtype) for name in sorted(weight_names)}


def to_device(array: np.ndarray[Any, Any], dtype: str | None) -> Array:
    """Returns the array in JAX; floats are converted to `dtype` unless it is None."""
    converted = jnp.asarray(array)
    return (
        converted.astype(dtype)
        if dtype and jnp.issubdtype(converted.dtype, jnp.floating)
        else converted
    )


def _node(node: Mapping[str, Any], values: dict[str, Array], constants: Mapping[str, Any]) -> None:
    """Computes the results of `node` and adds them to `values`.

    `values` has the operands by name, and `constants` those that must be known in advance.
    """
    function, literal = FUNCTIONS[node["op"]]
    operands = [
        None if not name
        else constants[name].reshape(-1).tolist() if place in literal
        else values[name]
        for place, name in enumerate(node["in"])
    ]  # fmt: skip
    attributes = dict(node["at"])
    if node["op"] == "Split":
        attributes["count"] = len(node["out"])
    results = function(*operands, **attributes)
    if not isinstance(results, tuple):
        results = (results,)
    values.update(zip(node["out"], results, strict=True))


def _reshape(x: Array, shape: Sequence[int], allowzero: int = 0) -> Array:
    return x.reshape([x.shape[i] if not allowzero and n == 0 else n for i, n in enumerate(shape)])


def _gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    matmul = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return matmul if c is None else matmul + beta * c


def _conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    auto_pad: str = "NOTSET",
) -> Array:
    rank = x.ndim - 2
    unit_steps = (1,) * rank
    padding = list(zip(pads[:rank], pads[rank:], strict=True)) or [(0, 0)] * rank
    y = lax.conv_general_dilated(
        x, w, tuple(strides) or unit_steps, padding, rhs_dilation=tuple(dilations) or unit_steps,
        feature_group_count=group,
    )  # fmt: skip
    return y if b is None else y + b.reshape(-1, *unit_steps)


def _max_pool(
    x: Array,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    ceil_mode: int = 0,
    auto_pad: str = "NOTSET",
) -> Array:
    padding = [(0, 0), (0, 0), *zip(pads[:2], pads[2:], strict=True)]
    low = np.array(-np.inf, x.dtype)
    return lax.reduce_window(x, low, lax.max, (1, 1, *kernel_shape), (1, 1, *strides), padding)


def _batch_norm(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Array:
    tail = (-1, *(1,) * (x.ndim - 2))
    factor = scale * lax.rsqrt(var + epsilon)
    return x * factor.reshape(tail) + (bias - mean * factor).reshape(tail)


def _layer_norm(
    x: Array,
    scale: Array,
    bias: Array | None = None,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axes, keepdims=True)
    normal = centred * lax.rsqrt((centred * centred).mean(axes, keepdims=True) + epsilon)
    y = normal.astype(x.dtype) * scale
    return y if bias is None else y + bias


def _gather(x: Array, index: Array, axis: int = 0) -> Array:
    return jnp.take(x, index, axis, mode="wrap")


def _gather_nd(x: Array, index: Array, batch_dims: int = 0) -> Array:
    return x[tuple(jnp.moveaxis(index, -1, 0))]


_TYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 16: "bfloat16"}


def _split(
    x: Array, sizes: Sequence[int] | None = None, axis: int = 0, num_outputs: int = 0,
    count: int = 0,
) -> tuple[Array, ...]:  # fmt: skip
    part = -(-x.shape[axis] // count)
    cuts = np.cumsum(sizes)[:-1] if sizes else range(part, x.shape[axis], part)
    return tuple(jnp.split(x, list(cuts), axis))


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(
        x: Array,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Array:
        return function(x, axis=tuple(axes or range(x.ndim)), keepdims=bool(keepdims))

    return reduce


def _attention(q: Array, k: Array, v: Array, is_causal: int = 0) -> Array:
    # ONNX's axes are [batch, heads, rows, size], JAX's [batch, rows, heads, size].
    transposed = (x.swapaxes(1, 2) for x in (q, k, v))
    return jax.nn.dot_product_attention(*transposed, is_causal=bool(is_causal)).swapaxes(1, 2)


# Maps an operator to (function, positions of the operands that must be constants).
FUNCTIONS: dict[str, tuple[Callable[..., Any], frozenset[int]]] = {
    **{
        name: (function, frozenset())
        for name, function in {
            "Add": jnp.add, "Sub": jnp.subtract, "Mul": jnp.multiply, "Div": jnp.divide,
            "Pow": jnp.power, "And": jnp.logical_and, "Not": jnp.logical_not,
            "Relu": jax.nn.relu, "Sigmoid": jax.nn.sigmoid, "Tanh": jnp.tanh,
            "Erf": jax.scipy.special.erf, "Exp": jnp.exp, "Sqrt": jnp.sqrt, "Neg": jnp.negative,
            "IsNaN": jnp.isnan, "Where": jnp.where, "MatMul": jnp.matmul, "Gemm": _gemm,
            "Conv": _conv, "MaxPool": _max_pool, "BatchNormalization": _batch_norm,
            "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.ndim)), keepdims=True),
            "LayerNormalization": _layer_norm, "Gather": _gather, "GatherND": _gather_nd,
            "Softmax": lambda x, axis=-1: jax.nn.softmax(x, axis),
            "Cast": lambda x, to, saturate=1: x.astype(_TYPES[to]),
            "Transpose": lambda x, perm=None: jnp.transpose(x, perm),
            "Flatten": lambda x, axis=1: x.reshape(prod(x.shape[:axis]), -1),
            "Concat": lambda *parts, axis: jnp.concatenate(parts, axis),
            "Attention": _attention,
        }.items()
    },
    **{
        name: (function, frozenset({1}))
        for name, function in {
            "Reshape": _reshape, "Split": _split,
            "Unsqueeze": lambda x, axes: jnp.expand_dims(x, tuple(axes)),
            "ReduceSum": _reduce(jnp.sum), "ReduceMean": _reduce(jnp.mean),
            "ReduceMax": _reduce(jnp.max),
        }.items()
    },
}  # fmt: skip
