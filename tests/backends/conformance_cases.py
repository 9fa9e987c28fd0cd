"""The models that every backend must run, with their meaning in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser

from tests.draws import RNG, seeded

Array = np.ndarray[Any, np.dtype[Any]]
Feeds = Mapping[str, Array]

with seeded("cases: weights"):
    _W = RNG.standard_normal((13, 5)).astype(np.float32)
    _K = RNG.standard_normal((5, 3, 3, 3)).astype(np.float32)
    _TABLE = RNG.standard_normal((6, 7)).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A conformance case.

    `text` is a graph in ONNX's syntax, `weights` its constants. `inputs` makes the inputs for a
    size, and `means` computes the outputs in order. Floats agree within `tolerance` of the largest
    output.
    """

    text: str
    inputs: Callable[[np.random.Generator, int], dict[str, Array]]
    means: Callable[..., tuple[Array, ...]]
    weights: Feeds = field(default_factory=dict)
    sizes: tuple[int, ...] = (1,)
    tolerance: float = 1e-5

    @property
    def model(self) -> onnx.ModelProto:
        proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {self.text}')
        for name, array in self.weights.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return proto


def _floats(*shape: int, dtype: type = np.float32) -> Callable[..., dict[str, Array]]:
    return lambda rng, _: {"x": rng.standard_normal(shape).astype(dtype)}


def _exact_conv(x: Array, w: Array) -> Array:
    """Returns a convolution of stride 2 in f64, padded by rows 1 and 2 and by columns 0 and 1."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 2), (0, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    return np.einsum("ncijhw,ochw->noij", windows, w.astype(np.float64))


def _softmax(x: Array) -> Array:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


CASES: dict[str, Case] = {
    "elementwise": Case(
        "m (float[3,37] x) => (float[3,37] y) { a = Tanh(x) b = Exp(a) c = Abs(x) d = Sqrt(c) "
        "y = Sub(b, d) }",
        _floats(3, 37),
        lambda x: (np.exp(np.tanh(x)) - np.sqrt(np.abs(x)),),
    ),
    "broadcast": Case(
        "m (float[3,1,5] x, float[4,1] b) => (float[3,4,5] y) { y = Mul(x, b) }",
        lambda rng, _: {
            "x": rng.standard_normal((3, 1, 5)).astype(np.float32),
            "b": rng.standard_normal((4, 1)).astype(np.float32),
        },
        lambda x, b: (x * b,),
    ),
    "reductions": Case(
        "m (float[3,19,5] x) => (float[3,5] s, float[3,5] h, float[3,5] l, float[3,5] p, "
        "int64[3,5] a, float[3,5] m) { axes = Constant<value_ints=[1]>() "
        "s = ReduceSum<keepdims=0>(x, axes) h = ReduceMax<axes=[1],keepdims=0>(x) "
        "l = ReduceMin<axes=[1],keepdims=0>(x) p = ReduceProd<axes=[1],keepdims=0>(x) "
        "a = ArgMax<axis=1,keepdims=0>(x) m = ReduceMean<axes=[1],keepdims=0>(x) }",
        _floats(3, 19, 5),
        lambda x: (x.sum(1), x.max(1), x.min(1), x.prod(1), x.argmax(1), x.mean(1)),
    ),
    "matmul": Case(
        "m (float[7,13] x) => (float[7,5] y) { y = MatMul(x, w) }",
        _floats(7, 13),
        lambda x: (x.astype(np.float64) @ _W,),
        {"w": _W},
    ),
    "convolution": Case(
        "m (float[1,3,9,11] x) => (float[1,5,5,5] y) "
        "{ c = Conv<strides=[2,2],pads=[1,0,2,1]>(x, w) y = Relu(c) }",
        _floats(1, 3, 9, 11),
        lambda x: (np.maximum(_exact_conv(x, _K), 0),),
        {"w": _K},
    ),
    "layouts": Case(
        "m (float[2,3,5,4] x) => (float[4,30] y, float[2,5,6,4] z) { "
        "t = Transpose<perm=[3,0,2,1]>(x) shape = Constant<value_ints=[4,30]>() "
        "y = Reshape(t, shape) "
        "u = Transpose<perm=[0,2,1,3]>(x) z = Concat<axis=2>(u, u) }",
        _floats(2, 3, 5, 4),
        lambda x: (
            x.transpose(3, 0, 2, 1).reshape(4, 30),
            np.concatenate([x.transpose(0, 2, 1, 3)] * 2, 2),
        ),
    ),
    "gathers": Case(
        "m (int64[3,2] x) => (float[3,2,7] y) { r = Gather<axis=0>(t, x) y = Neg(r) }",
        lambda rng, _: {"x": rng.integers(-6, 6, (3, 2))},
        lambda x: (-_TABLE[x],),
        {"t": _TABLE},
    ),
    "integers": Case(
        "m (int32[29] x, int32[29] b) => (int32[29] q, int32[29] r, uint8[29] n, int64[29] s) "
        "{ q = Div(x, b) r = Mod(x, b) n = Cast<to=2>(x) w = Cast<to=7>(x) s = Mul(w, w) }",
        lambda rng, _: {
            "x": rng.integers(-(2**31), 2**31, 29).astype(np.int32),
            "b": rng.integers(1, 99, 29).astype(np.int32),
        },
        lambda x, b: (
            (np.sign(x) * (np.abs(x.astype(np.int64)) // b)).astype(np.int32),
            x % b,
            x.astype(np.uint8),
            x.astype(np.int64) ** 2,
        ),
    ),
    "halves": Case(
        "m (float16[5,33] x) => (float16[5] y) { d = Mul(x, x) axes = Constant<value_ints=[1]>() "
        "y = ReduceSum<keepdims=0>(d, axes) }",
        _floats(5, 33, dtype=np.float16),
        lambda x: ((x.astype(np.float64) ** 2).sum(1),),
        tolerance=4e-3,
    ),
    "symbolic": Case(
        "m (float[n,k] x) => (float[n,k] y) { y = Softmax<axis=-1>(x) }",
        lambda rng, n: {"x": rng.standard_normal((n, 2 * n + 1)).astype(np.float32)},
        lambda x: (_softmax(x),),
        sizes=(1, 6, 41),
    ),
    "control": Case(
        "m (float[9] x, bool up) => (float[9] y) { y = If(up) <then_branch = a () => (float[9] p) "
        "{ p = Exp(x) }, else_branch = b () => (float[9] q) { q = Neg(x) }> }",
        lambda rng, n: {
            "x": rng.standard_normal(9).astype(np.float32),
            "up": np.asarray(bool(n)),
        },
        lambda x, up: (np.exp(x) if up else -x,),
        sizes=(0, 1),
    ),
}

# The result's size is data-dependent. A backend runs these, or refuses them by the operator's name.
HARD: dict[str, Case] = {
    "NonZero": Case(
        "m (float[12] x) => (int64[1,k] y) { y = NonZero(x) }",
        lambda rng, _: {"x": rng.integers(0, 2, 12).astype(np.float32)},
        lambda x: (np.stack(np.nonzero(x)),),
    ),
    "Unique": Case(
        "m (float[12] x) => (float[k] y) { y = Unique(x) }",
        lambda rng, _: {"x": rng.integers(0, 5, 12).astype(np.float32)},
        lambda x: (np.unique(x),),
    ),
}
