"""Small models that together use every kind of GPU kernel. No code here depends on the vendor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Small:
    """A model in ONNX's text, and values for its inputs and initialisers.

    `precision` is a compile option. `tolerance` bounds the difference from ONNX Runtime, relative
    to the largest element.
    """

    body: str
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array] = field(default_factory=dict)
    precision: str = "f32"
    tolerance: float = 1e-4
    opset: int = 21

    def model(self) -> onnx.ModelProto:
        imports = f'opset_import: ["" : {self.opset}, "com.microsoft" : 1]'
        model = parser.parse_model(f"<ir_version: 10, {imports}> g {self.body}")
        initializers = [numpy_helper.from_array(a, name) for name, a in self.weights.items()]
        model.graph.initializer.extend(initializers)
        return model


def normal(seed: int, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> Array:
    drawn = np.random.default_rng(seed).standard_normal(shape) * scale
    return drawn.astype(dtype)


def integers(seed: int, low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def _elementwise() -> Small:
    return Small(
        """(float[5,37] x, float[5,37] y) => (float[5,37] a, float[5,37] b, float[5,37] c) {
        e = Exp(x) t = Tanh(y) p = Mul(x, y) q = Add(p, e) a = Div(q, t)
        f = Erf(a) s = Sqrt(e) g = Sigmoid(y) h = Add(f, s) b = Mul(h, g)
        l = Log(e) i = Sin(x) j = Cos(y) k = Mul(i, j) m = Softplus(l) c = Add(k, m) }""",
        {"x": normal(1, 5, 37), "y": normal(2, 5, 37)},
    )


def _halves(dtype: str) -> Small:
    return Small(
        f"""({dtype}[5,40] x, {dtype}[5,40] y) => ({dtype}[5,40] a, {dtype}[5,40] b) {{
        e = Exp(x) p = Mul(x, y) q = Add(p, e) a = Max(q, y) t = Tanh(q) b = Sub(t, x) }}""",
        {"x": normal(1, 5, 40, dtype=np.float16), "y": normal(2, 5, 40, dtype=np.float16)},
        tolerance=2e-3,
    )


def _integers() -> Small:
    return Small(
        """(int32[70] x, int32[70] y, int64[70] z, uint8[70] u, double[70] d)
        => (int32[70] a, int32[70] b, int64[70] c, uint8[70] e, float[70] f, bool[70] g,
            double[70] h, int8[70] i) {
        a = Mod(x, y) b = Div(x, y) s = Mul(z, z) c = Div(s, w) f = Cast<to = 1>(s) g = Less(x, y)
        e = BitShift<direction = "RIGHT">(u, k) r = Sqrt(d) t = Mul(r, d) h = Abs(t)
        i = Cast<to = 3>(x) }""",
        {
            "x": integers(1, -1000, 1000, 70, dtype=np.int32),
            "y": integers(2, 1, 50, 70, dtype=np.int32) * np.tile(np.int32([1, -1]), 35),
            "z": integers(3, -(10**9), 10**9, 70),
            "u": integers(4, 0, 256, 70, dtype=np.uint8),
            "d": np.abs(normal(5, 70, dtype=np.float64)),
        },
        {"w": np.array(7, np.int64), "k": np.array(3, np.uint8)},
    )  # fmt: skip


def _reductions() -> Small:
    return Small(
        """(float[6,7,50] x) => (float[6,7] s, float[6,50] m, int64[7,50] i, float[6,7,50] v) {
        s = ReduceSum<keepdims = 0>(x, two) m = ReduceMax<keepdims = 0>(x, one)
        i = ArgMax<axis = 0, keepdims = 0>(x) q = ReduceMean(x, two) d = Sub(x, q)
        r = ReduceL2(d, two) v = Div(d, r) }""",
        {"x": normal(3, 6, 7, 50)},
        {"one": np.array([1]), "two": np.array([2])},
    )


def _softmax() -> Small:
    return Small(
        """(float[3,197] x) => (float[3,197] y, float[3,197] z) {
        y = Softmax(x) z = LogSoftmax<axis = 0>(x) }""",
        {"x": normal(4, 3, 197, scale=4)},
    )


def _normalised() -> Small:
    return Small(
        """(float[6,100] x) => (float[6,100] z) { z = LayerNormalization(x, g, b) }""",
        {"x": normal(5, 6, 100)},
        {"g": normal(6, 100), "b": normal(7, 100)},
    )


def _attention(dtype: str, **facts: Any) -> Small:
    shape = f"{dtype}[1,2,n,16]"
    number = {"float": np.float32, "float16": np.float16}[dtype]
    return Small(
        f"({shape} q, {shape} k, {shape} v) => ({shape} y) {{ y = Attention(q, k, v) }}",
        {name: normal(n, 1, 2, 37, 16, dtype=number) for n, name in enumerate("qkv")},
        opset=23,
        **facts,
    )


def _product(precision: str, tolerance: float, element: str = "float") -> Small:
    """Returns relu(x w + b), whose sizes leave partial tiles in every dimension."""
    number = {"float": np.float32, "float16": np.float16}[element]
    return Small(
        f"({element}[33,136] x) => ({element}[33,50] y) {{"
        " p = MatMul(x, w) s = Add(p, b) y = Relu(s) }",
        {"x": normal(8, 33, 136, dtype=number)},
        {"w": normal(9, 136, 50, dtype=number, scale=0.1), "b": normal(10, 50, dtype=number)},
        precision,
        tolerance,
    )  # fmt: skip


def _pipelined(precision: str, tolerance: float) -> Small:
    """Returns a matmul with enough K-blocks for copies to run ahead."""
    return Small(
        "(float[80,192] x, float[192,96] y) => (float[80,96] z) { z = MatMul(x, y) }",
        {"x": normal(11, 80, 192), "y": normal(12, 192, 96, scale=0.1)},
        precision=precision,
        tolerance=tolerance,
    )


def _convolutions(precision: str = "f32", tolerance: float = 1e-4) -> Small:
    return Small(
        """(float[2,3,13,13] x) => (float[2,12,3,3] y) {
        c = Conv<pads = [1,1,1,1]>(x, w, b) r = Relu(c)
        p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)
        y = Conv<pads = [1,1,1,1], strides = [2,2]>(p, v) }""",
        {"x": normal(13, 2, 3, 13, 13)},
        {"w": normal(14, 8, 3, 3, 3, scale=0.3), "b": normal(15, 8),
         "v": normal(16, 12, 8, 3, 3, scale=0.1)},
        precision,
        tolerance,
    )  # fmt: skip


def _depthwise() -> Small:
    return Small(
        """(float[1,6,9,10] x) => (float[1,6,9,10] y, float[1,6,18,20] z) {
        y = Conv<group = 6, pads = [1,1,1,1]>(x, w)
        z = Resize<mode = "linear">(x, none, s) }""",
        {"x": normal(17, 1, 6, 9, 10)},
        {"w": normal(18, 6, 1, 3, 3), "s": np.array([1, 1, 2, 2], np.float32),
         "none": np.zeros(0, np.float32)},
    )  # fmt: skip


def _gathered() -> Small:
    return Small(
        """(int64[4,3] i, float[4,3,24] u) => (float[4,24] y, float[11,24] z) {
        g = Gather<axis = 0>(w, i) y = ReduceSum<keepdims = 0>(g, one)
        j = Unsqueeze(i, two) z = ScatterND<reduction = "add">(w, j, u) }""",
        {"i": integers(19, -11, 11, 4, 3), "u": normal(20, 4, 3, 24)},
        {"w": normal(21, 11, 24), "one": np.array([1]), "two": np.array([2])},
    )


def _running() -> Small:
    return Small(
        """(float[4,70] x) => (float[4,70] a, float[4,70] b, float[4,9] v, int64[4,9] j) {
        a = CumSum(x, one) b = CumSum<reverse = 1, exclusive = 1>(x, one)
        v, j = TopK(x, k) }""",
        {"x": normal(22, 4, 70)},
        {"one": np.array(1), "k": np.array([9])},
    )


def _found() -> Small:
    return Small(
        "(float[3,70] x, bool[70] c) => (int64[2,n] y, float[3,m] z) {"
        " y = NonZero(x) z = Compress<axis = 1>(x, c) }",
        {"x": np.maximum(normal(23, 3, 70), 0), "c": normal(24, 70) > 0.3},
    )


def _scattered() -> Small:
    return Small(
        """(float[3,70] x, int64[4,70] i, float[4,70] u) => (float[3,70] y) {
        y = ScatterElements<axis = 0, reduction = "max">(x, i, u) }""",
        {"x": normal(25, 3, 70), "i": integers(26, -3, 3, 4, 70), "u": normal(27, 4, 70)},
    )


def _dots() -> Small:
    """Returns a matmul of 7-bit u8, because ONNX Runtime's u8 s8 sums saturate on some
    processors."""
    return Small(
        """(uint8[20,96] x) => (int32[20,40] y) { y = MatMulInteger(x, w, p, q) }""",
        {"x": integers(28, 0, 128, 20, 96, dtype=np.uint8)},
        {"w": integers(29, -128, 128, 96, 40, dtype=np.int8), "p": np.array(7, np.uint8),
         "q": np.array(-3, np.int8)},
    )  # fmt: skip


def _quantised() -> Small:
    return Small(
        """(float[20,64] x) => (float[20,48] y) {
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = DequantizeLinear(w, t, o)
        y = MatMul(b, c) }""",
        {"x": normal(30, 20, 64)},
        {"w": integers(31, -128, 128, 64, 48, dtype=np.int8), "s": np.array(0.03, np.float32),
         "z": np.array(5, np.int8), "t": np.array(0.01, np.float32), "o": np.array(0, np.int8)},
    )  # fmt: skip


def _nibbles() -> Small:
    return Small(
        """(float[3,64] x) => (float[3,48] y) {
        y = com.microsoft.MatMulNBits<K = 64, N = 48, bits = 4, block_size = 32>(x, w, s) }""",
        {"x": normal(32, 3, 64)},
        {"w": integers(33, 0, 256, 48, 2, 16, dtype=np.uint8),
         "s": normal(34, 48, 2, scale=0.1)},
    )  # fmt: skip


def _narrow() -> Small:
    """Returns a conversion to float8 and back."""
    return Small(
        """(float[4,50] x) => (float[4,50] y) {
        a = QuantizeLinear<output_dtype = 17>(x, s) y = DequantizeLinear(a, s) }""",
        {"x": normal(35, 4, 50)},
        {"s": np.array(0.05, np.float32)},
    )


def _recurrent() -> Small:
    return Small(
        """(float[3,2,5] x) => (float[3,1,2,8] y, float[1,2,8] h) {
        y, h = GRU<hidden_size = 8, linear_before_reset = 1>(x, w, r, b) }""",
        {"x": normal(36, 3, 2, 5)},
        {"w": normal(37, 1, 24, 5, scale=0.4), "r": normal(38, 1, 24, 8, scale=0.4),
         "b": normal(39, 1, 48, scale=0.4)},
    )  # fmt: skip


MODELS: dict[str, Callable[[], Small]] = {
    "elementwise": _elementwise,
    "f16": lambda: _halves("float16"),
    "integers": _integers,
    "reductions": _reductions,
    "softmax": _softmax,
    "normalised": _normalised,
    "attention": lambda: _attention("float"),
    "attention of f16": lambda: _attention("float16", tolerance=4e-3),
    "product": lambda: _product("f32", 1e-4),
    "product of tf32": lambda: _product("tf32", 4e-3),
    "product of bf16": lambda: _product("bf16", 3e-2),
    "product of f16": lambda: _product("f32", 4e-3, "float16"),
    "pipelined tf32": lambda: _pipelined("tf32", 4e-3),
    "pipelined bf16": lambda: _pipelined("bf16", 3e-2),
    "pipelined f16": lambda: _pipelined("f16", 4e-3),
    "convolutions": _convolutions,
    "convolutions of bf16": lambda: _convolutions("bf16", 3e-2),
    "depthwise": _depthwise,
    "gathered": _gathered,
    "running": _running,
    "found": _found,
    "scattered": _scattered,
    "dots": _dots,
    "quantised": _quantised,
    "nibbles": _nibbles,
    "narrow": _narrow,
    "recurrent": _recurrent,
}


def names(*left_out: str) -> Sequence[str]:
    return [name for name in MODELS if name not in left_out]
