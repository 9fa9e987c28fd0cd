"""Builds the single kernels that are checked, each as a small ONNX model; needs onnx."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.parser

_NAMES = {"f32": "float", "f16": "float16", "bf16": "bfloat16"}
_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the kernels.

    A kernel that memory bandwidth limits is measured with an operand of each size in `megabytes`:
    the first fits into caches, the second does not, and the last gives a long run. At the size
    `both_types_at`, it is measured in bf16 as well as in f32.
    """

    megabytes: tuple[int, ...] = (8, 128, 512)
    both_types_at: int = 128
    width: int = 4096
    square: int = 8192
    depths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    decode: tuple[tuple[str, int, int], ...] = (("", 8192, 8192), ("_wide", 14336, 4096))
    batch: int = 32
    channels: int = 256
    image: int = 56
    heads: int = 64
    length: int = 4096
    head: int = 128


# Sizes for a rehearsal on a CPU. Where possible, kernels have the same names as at full size.
SMALL = Sizes(
    (1,), 1, 512, 128, (64, 256), (("", 128, 128), ("_wide", 256, 64)), 2, 16, 8, 4, 64, 32
)


# Sizes for a quick check on a GPU: the smallest that fill the tiles of all kernels, even in Gluon.
CHECKED = Sizes(
    (1,), 1, 512, 2048, (512,), (("", 512, 512), ("_wide", 1024, 256)), 2, 32, 8, 40, 256, 128
)


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A model of one kernel, and the options of its compile.

    `bytes` and `flops` are the least traffic and arithmetic of a run. `group` says what its speed
    is compared with: a copy ("memory"), cuBLAS or rocBLAS ("matrix"), or nothing ("other").
    `indices` maps integer inputs to their exclusive upper bounds.
    """

    name: str
    group: str
    dtype: str
    model: onnx.ModelProto
    bytes: int
    flops: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)


def kernels(sizes: Sizes = Sizes()) -> Iterator[MeasuredKernel]:
    """Yields all kernels, the most important first."""
    yield from _attention(sizes)
    yield from _matmuls(sizes)
    yield from _memory(sizes)
    yield from _convolutions(sizes)


def _model(dtype: str, inputs: str, outputs: str, body: str) -> onnx.ModelProto:
    """Returns a model from ONNX's text form, in which T stands for the element type."""
    text = f'<ir_version: 10, opset_import: ["" : 23]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return onnx.parser.parse_model(text.replace("T[", f"{_NAMES[dtype]}["))


def _memory(sizes: Sizes) -> Iterator[MeasuredKernel]:
    for megabytes in sizes.megabytes:
        for dtype in ("f32", "bf16") if megabytes == sizes.both_types_at else ("f32",):
            yield from _memory_of(dtype, megabytes, sizes.width)


def _memory_of(dtype: str, megabytes: int, width: int) -> Iterator[MeasuredKernel]:
    size = megabytes << 20
    rows = size // (width * _BYTES[dtype])
    x, row = f"T[{rows},{width}]", f"T[{width}]"
    cases = {
        "elementwise": (f"{x} a, {x} b", f"{x} y", "m = Mul(a, b) s = Sub(m, a) y = Relu(s)", 3),
        "softmax": (f"{x} a", f"{x} y", "y = Softmax<axis = -1>(a)", 2),
        "layernorm": (
            f"{x} a, {row} scale, {row} shift",
            f"{x} y",
            "y = LayerNormalization<axis = -1>(a, scale, shift)",
            2,
        ),
        "transpose": (
            f"{x} a", f"T[{width},{rows}] y", "y = Transpose<perm = [1, 0]>(a)", 2,
        ),
        "gather": (
            f"{x} a, int64[{rows}] index", f"{x} y", "y = Gather<axis = 0>(a, index)", 2,
        ),
        "reduce_rows": (
            f"{x} a",
            f"T[{rows}] y",
            "axes = Constant<value_ints = [1]>() y = ReduceSum<keepdims = 0>(a, axes)",
            1,
        ),
        "reduce_columns": (
            f"{x} a",
            f"T[{width}] y",
            "axes = Constant<value_ints = [0]>() y = ReduceSum<keepdims = 0>(a, axes)",
            1,
        ),
    }  # fmt: skip
    for name, (inputs, outputs, body, times) in cases.items():
        model = _model(dtype, inputs, outputs, body)
        indices = {"index": rows} if name == "gather" else {}
        title = f"{name}_{dtype}_{megabytes}mb"
        yield MeasuredKernel(title, "memory", dtype, model, times * size, indices=indices)


def _matmul(name: str, dtype: str, m: int, n: int, k: int, **options: Any) -> MeasuredKernel:
    body = f"T[{m},{k}] a, T[{k},{n}] b", f"T[{m},{n}] y", "y = MatMul(a, b)"
    traffic = (m * k + k * n + m * n) * _BYTES[dtype]
    return MeasuredKernel(
        name, "matrix", dtype, _model(dtype, *body), traffic, 2 * m * n * k, options
    )


def _matmuls(sizes: Sizes) -> Iterator[MeasuredKernel]:
    n = sizes.square
    for k in reversed(sizes.depths):
        yield _matmul(f"gemm_bf16_k{k}", "bf16", n, n, k)
    for m in (1, 16):
        for suffix, wide, deep in sizes.decode:
            yield _matmul(f"decode_bf16_m{m}{suffix}", "bf16", m, wide, deep)
    for k in reversed(sizes.depths):
        yield _matmul(f"gemm_f16_k{k}", "f16", n, n, k)
        yield _matmul(f"gemm_tf32_k{k}", "f32", n, n, k, precision="tf32")
        yield _matmul(f"gemm_f32_k{k}", "f32", n, n, k)


def _convolutions(sizes: Sizes) -> Iterator[MeasuredKernel]:
    for dtype in ("bf16", "f32"):
        batch, channels, size = sizes.batch, sizes.channels, sizes.image
        x = f"T[{batch},{channels},{size},{size}]"
        body = (
            f"{x} a, T[{channels},{channels},3,3] w",
            f"{x} y",
            "y = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a, w)",
        )
        elements = batch * channels * size * size
        traffic = (2 * elements + channels * channels * 9) * _BYTES[dtype]
        flops = 2 * elements * channels * 9
        yield MeasuredKernel(
            f"conv3x3_{dtype}", "other", dtype, _model(dtype, *body), traffic, flops
        )


def _attention(sizes: Sizes) -> Iterator[MeasuredKernel]:
    heads, length, width = sizes.heads, sizes.length, sizes.head
    x = f"T[1,{heads},{length},{width}]"
    for causal in (0, 1):
        body = f"y = Attention<is_causal = {causal}>(q, k, v)"
        model = _model("bf16", f"{x} q, {x} k, {x} v", f"{x} y", body)
        flops = 4 * heads * length * length * width // (2 if causal else 1)
        name = "attention_causal_bf16" if causal else "attention_bf16"
        # In this precision the softmax is rounded before its matmul, as in every fused attention
        # of 16-bit floats.
        options = {"precision": "bf16"}
        traffic = 8 * heads * length * width
        yield MeasuredKernel(name, "other", "bf16", model, traffic, flops, options)
