"""Runs the graphs of `graphs.py` in PyTorch, as a module of plain torch functions.

A graph becomes a torch.fx module, whose forward is straight-line Python. So it runs eagerly without
an interpreter, and torch.compile treats it as an ordinary module.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from gpu.draws import ArrayDraw, array_of


def draws_of(graph: Mapping[str, Any]) -> dict[str, ArrayDraw]:
    """Returns, by name, the draws of those tensors of a graph that are drawn from seeds."""
    draws = {name: t["draw"] for name, t in graph["tensors"].items() if "draw" in t}
    return {n: ArrayDraw(**{**draw, "shape": tuple(draw["shape"])}) for n, draw in draws.items()}


def build(graph: Mapping[str, Any]) -> fx.GraphModule:
    """Returns a module that takes the graph's inputs in order and returns a tuple of its outputs.

    Raises ValueError for an unknown operator.
    """
    return _Builder(graph).build()


class _Builder:
    def __init__(self, graph: Mapping[str, Any]) -> None:
        self._graph = graph
        self._root = torch.nn.Module()
        self._fx = fx.Graph()
        self._values: dict[str, fx.Node] = {}

    def build(self) -> fx.GraphModule:
        for i, name in enumerate(self._graph["inputs"]):
            self._values[name] = self._fx.placeholder(f"in{i}")
        for node in self._graph["nodes"]:
            self._node(node)
        self._fx.output(tuple(self._value(name) for name in self._graph["outputs"]))
        self._fx.eliminate_dead_code()
        return fx.GraphModule(self._root, self._fx).eval()

    def _node(self, node: Mapping[str, Any]) -> None:
        """Adds the torch operations of an ONNX node to the graph, and its results to the values.

        Raises ValueError for an unknown operator.
        """
        op, attributes = node["op"], dict(node["at"])
        if op not in FUNCTIONS:
            raise ValueError(f"the torch reference does not support the operator {op}")
        function, literal = FUNCTIONS[op]
        operands = [
            None if not name else self._literal(name) if place in literal else self._value(name)
            for place, name in enumerate(node["in"])
        ]
        if op == "Split":
            attributes["count"] = len(node["out"])
        result = self._fx.call_function(function, tuple(operands), attributes)
        if op == "Split":
            for place, name in enumerate(node["out"]):
                self._values[name] = self._fx.call_function(operator.getitem, (result, place))
        else:
            self._values[node["out"][0]] = result

    def _value(self, name: str) -> fx.Node:
        if name not in self._values:
            place = f"w{len(self._values)}"
            self._root.register_buffer(place, tensor_of(self._graph["tensors"][name]))
            self._values[name] = self._fx.get_attr(place)
        return self._values[name]

    def _literal(self, name: str) -> list[Any]:
        if name not in self._graph["tensors"]:
            raise ValueError(f"'{name}' decides a shape, but is not a constant")
        values: list[Any] = tensor_of(self._graph["tensors"][name]).reshape(-1).tolist()
        return values


def tensor_of(tensor: Mapping[str, Any]) -> Tensor:
    """Returns a tensor of the graph's JSON as a torch tensor on the CPU."""
    values = torch.from_numpy(array_of(tensor))
    return values.bfloat16() if tensor["dtype"] == "bfloat16" else values


# ---- operators ----------------------------------------------------------------------------------


def _reshape(x: Tensor, shape: Sequence[int], allowzero: int = 0) -> Tensor:
    keep = not allowzero
    return x.reshape([x.shape[i] if keep and n == 0 else n for i, n in enumerate(shape)])


def _flatten(x: Tensor, axis: int = 1) -> Tensor:
    return x.reshape(prod(x.shape[:axis]), -1)


def _transpose(x: Tensor, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(tuple(perm) if perm is not None else tuple(range(x.ndim))[::-1])


def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    a, b = a.T if transA else a, b.T if transB else b
    if c is not None and alpha == beta == 1.0:
        return torch.addmm(c, a, b)
    matmul = a @ b if alpha == 1.0 else alpha * (a @ b)
    return matmul if c is None else matmul + beta * c


def _padding(pads: Sequence[int] | None, auto_pad: str) -> Sequence[int]:
    if auto_pad not in ("NOTSET", "VALID"):
        raise ValueError(f"the torch reference does not support auto_pad {auto_pad}")
    half = len(pads or ()) // 2
    if pads and list(pads[:half]) != list(pads[half:]):
        raise ValueError("the torch reference does not support uneven padding")
    return tuple((pads or ())[:half]) or (0,)


_CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
_TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


def _conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    strides: Sequence[int] = (1,),
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] = (1,),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    auto_pad: str = "NOTSET",
) -> Tensor:
    padding = _padding(pads, auto_pad)
    return _CONVOLUTIONS[x.ndim](x, w, b, tuple(strides), padding, tuple(dilations), group)


def _conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    strides: Sequence[int] = (1,),
    pads: Sequence[int] | None = None,
    output_padding: Sequence[int] = (0,),
    dilations: Sequence[int] = (1,),
    group: int = 1,
    kernel_shape: Sequence[int] = (),
    auto_pad: str = "NOTSET",
) -> Tensor:
    padding, extra = _padding(pads, auto_pad), tuple(output_padding)
    function = _TRANSPOSED[x.ndim]
    return function(x, w, b, tuple(strides), padding, extra, group, tuple(dilations))


def _max_pool(
    x: Tensor,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] = (1, 1),
    ceil_mode: int = 0,
    auto_pad: str = "NOTSET",
) -> Tensor:
    padding = _padding(pads, auto_pad)
    kernel, steps = tuple(kernel_shape), tuple(strides)
    return F.max_pool2d(x, kernel, steps, padding, tuple(dilations), bool(ceil_mode))


def _batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Tensor:
    return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)


def _layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    return F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


def _gather(x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    axis %= x.ndim
    index = torch.where(index < 0, index + x.shape[axis], index)
    if axis == 0 and x.ndim == 2:
        return F.embedding(index, x)
    flat = x.index_select(axis, index.reshape(-1))
    return flat.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _gather_nd(x: Tensor, index: Tensor, batch_dims: int = 0) -> Tensor:
    if batch_dims:
        raise ValueError("the torch reference does not support GatherND over batches")
    return x[tuple(index.unbind(-1))]


_TYPES = {
    1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16,
    11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip


def _cast(x: Tensor, to: int, saturate: int = 1) -> Tensor:
    return x.to(_TYPES[to])


def _split(
    x: Tensor,
    sizes: Sequence[int] | None = None,
    axis: int = 0,
    num_outputs: int = 0,
    count: int = 0,
) -> tuple[Tensor, ...]:
    parts = -(-x.shape[axis] // count)
    return torch.split(x, list(sizes) if sizes else parts, axis)


def _concat(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, axis)


def _softmax(x: Tensor, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


def _where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(condition, x, y)


def _reduce(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(
        x: Tensor,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        return function(x, tuple(axes or range(x.ndim)), bool(keepdims))

    reduce.__name__ = f"reduce_{function.__name__}"
    return reduce


def _unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def _global_average_pool(x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def _attention(q: Tensor, k: Tensor, v: Tensor, is_causal: int = 0) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=bool(is_causal), enable_gqa=grouped)


def _matmul_integer(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double()).to(torch.int32)  # exact, because sums stay below 2**53


def _dequantize(x: Tensor, scale: Tensor) -> Tensor:
    return x.to(scale.dtype) * scale


def _matmul_bits(
    x: Tensor, b: Tensor, scales: Tensor, K: int, N: int, bits: int, block_size: int
) -> Tensor:
    if bits != 4:
        raise ValueError("the torch reference supports MatMulNBits of four bits only")
    digits = torch.stack((b & 15, b >> 4), -1).reshape(N, K // block_size, block_size)
    weights = (digits.to(x.dtype) - 8) * scales.to(x.dtype).reshape(N, -1, 1)
    return x @ weights.reshape(N, K).T


def _scatter_rows(x: Tensor, index: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    if index.shape[-1] != 1 or reduction not in ("add", "max"):
        raise ValueError("the torch reference supports ScatterND of sums and maxima of rows only")
    rows = index[..., 0]
    if reduction == "add":
        return x.index_add(0, rows, updates)
    places = rows.reshape(-1, *[1] * (x.ndim - 1)).expand_as(updates)
    return x.scatter_reduce(0, places, updates, "amax")


def _leaky_relu(x: Tensor, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(x, alpha)


# Maps an operator to (function, positions of the operands that must be constants).
FUNCTIONS: dict[str, tuple[Callable[..., Any], frozenset[int]]] = {
    **{
        name: (function, frozenset())
        for name, function in {
            "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div,
            "Pow": torch.pow, "And": torch.logical_and, "Not": torch.logical_not,
            "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Erf": torch.erf,
            "Exp": torch.exp, "Sqrt": torch.sqrt, "Neg": torch.neg, "IsNaN": torch.isnan,
            "Where": _where, "MatMul": torch.matmul, "Gemm": _gemm, "Conv": _conv,
            "ConvTranspose": _conv_transpose, "MaxPool": _max_pool,
            "GlobalAveragePool": _global_average_pool, "BatchNormalization": _batch_norm,
            "LayerNormalization": _layer_norm, "Softmax": _softmax, "Gather": _gather,
            "GatherND": _gather_nd, "Cast": _cast, "Transpose": _transpose, "Flatten": _flatten,
            "Concat": _concat, "Attention": _attention, "MatMulInteger": _matmul_integer,
            "DequantizeLinear": _dequantize, "MatMulNBits": _matmul_bits,
            "ScatterND": _scatter_rows, "LeakyRelu": _leaky_relu,
        }.items()
    },
    **{
        name: (function, frozenset({1}))
        for name, function in {
            "Reshape": _reshape, "Split": _split, "Unsqueeze": _unsqueeze,
            "ReduceSum": _reduce(torch.sum), "ReduceMean": _reduce(torch.mean),
            "ReduceMax": _reduce(torch.amax),
        }.items()
    },
}  # fmt: skip
