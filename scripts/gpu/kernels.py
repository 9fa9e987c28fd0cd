"""Builds the single kernels that are checked, each as a small ONNX model; needs onnx."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, numpy_helper

from gpu.draws import seed_of

_NAMES = {"f32": "float", "f16": "float16", "bf16": "bfloat16"}
_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
# Weights of four bits share a scale in blocks of this many. _PERIOD rows of them repeat, so that
# the folder holds few bytes of them.
_BLOCK, _PERIOD = 32, 4


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
    context: int = 32768
    nodes: int = 32768
    vocabulary: int = 1 << 20
    bags: int = 16384


# Sizes for a rehearsal on a CPU. Where possible, kernels have the same names as at full size.
SMALL = Sizes(
    (1,), 1, 512, 128, (64, 256), (("", 128, 128), ("_wide", 256, 64)), 2, 16, 8, 4, 64, 32,
    context=256, nodes=128, vocabulary=512, bags=64,
)  # fmt: skip


# Sizes for a quick check on a GPU: the smallest that fill the tiles of all kernels, even in Gluon.
CHECKED = Sizes(
    (1,), 1, 512, 2048, (512,), (("", 512, 512), ("_wide", 1024, 256)), 2, 32, 8, 40, 256, 128,
    context=512, nodes=512, vocabulary=4096, bags=256,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """A model of one kernel, and the options of its compile.

    `bytes` and `flops` are the least traffic and arithmetic of a run. `group` says what its speed
    is compared with: a copy ("memory"), cuBLAS or rocBLAS ("matrix"), or nothing ("other").
    `indices` maps integer inputs to their exclusive upper bounds. `peer` names the function of
    torch's in `gpu.peers` that is timed in place of the model's own operators, or is "".
    """

    name: str
    group: str
    dtype: str
    model: onnx.ModelProto
    bytes: int
    flops: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)
    peer: str = ""


def kernels(sizes: Sizes = Sizes()) -> Iterator[MeasuredKernel]:
    """Yields all kernels, the most important first."""
    yield from _attention(sizes)
    yield from _matmuls(sizes)
    yield from _memory(sizes)
    yield from _convolutions(sizes)
    yield from _narrow_matmuls(sizes)
    yield _convolution_chain(sizes)
    yield _grouped_queries(sizes)
    yield _graph_attention(sizes)
    yield _embedding_bag(sizes)


def _model(dtype: str, inputs: str, outputs: str, body: str) -> onnx.ModelProto:
    """Returns a model from ONNX's text form, in which T stands for the element type."""
    opsets = '["" : 23, "com.microsoft" : 1]'
    text = f"<ir_version: 10, opset_import: {opsets}> g ({inputs}) => ({outputs}) {{ {body} }}"
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


def _narrow_matmuls(sizes: Sizes) -> Iterator[MeasuredKernel]:
    """Yields matmuls of operands with eight and with four bits."""
    n = sizes.square
    for k in sizes.depths[-1:]:
        body = f"int8[{n},{k}] a, int8[{k},{n}] b", f"int32[{n},{n}] y", "y = MatMulInteger(a, b)"
        yield MeasuredKernel(
            f"gemm_i8_k{k}", "matrix", "i8", _model("f32", *body), 2 * n * k + 4 * n * n,
            2 * n * n * k, peer="int_mm",
        )  # fmt: skip
        body = (
            f"float8e4m3fn[{n},{k}] a, float8e4m3fn[{n},{k}] b, float scale",
            f"bfloat16[{n},{n}] y",
            "p = DequantizeLinear(a, scale) q = DequantizeLinear(b, scale) "
            "t = Transpose<perm = [1, 0]>(q) m = MatMul(p, t) y = Cast<to = 16>(m)",
        )
        yield MeasuredKernel(
            f"gemm_f8_k{k}", "matrix", "bf16", _model("f32", *body), 2 * n * k + 2 * n * n,
            2 * n * n * k, {"precision": "bf16"}, peer="scaled_mm",
        )  # fmt: skip
    for m in (1, 16):
        yield _four_bit_matmul(m, *sizes.decode[0][1:])


def _four_bit_matmul(m: int, n: int, k: int) -> MeasuredKernel:
    """Returns the matmul of `m` rows with a constant matrix of four-bit weights."""
    name = f"decode_i4_m{m}"
    rng = np.random.default_rng(seed_of("four bits"))
    weights = rng.integers(0, 256, (_PERIOD, k // _BLOCK, _BLOCK // 2), np.uint8)
    scales = rng.uniform(0.005, 0.01, (_PERIOD, k // _BLOCK)).astype(np.float16)
    attributes = f"K = {k}, N = {n}, bits = 4, block_size = {_BLOCK}"
    body = f"y = com.microsoft.MatMulNBits<{attributes}>(a, b, scales)"
    model = _model("f16", f"T[{m},{k}] a", f"T[{m},{n}] y", body)
    for array, title in ((weights, "b"), (scales, "scales")):
        repeated = np.tile(array, (n // _PERIOD, *[1] * (array.ndim - 1)))
        model.graph.initializer.append(numpy_helper.from_array(repeated, title))
    traffic = n * k // 2 + 2 * (n * k // _BLOCK + m * k + m * n)
    options = {"precision": "f16"}
    return MeasuredKernel(
        name, "matrix", "f16", model, traffic, 2 * m * n * k, options, peer="int4_mm"
    )


def _convolution_chain(sizes: Sizes) -> MeasuredKernel:
    """Returns three convolutions with constant filters; the inner ones may choose their layout."""
    batch, channels, size = sizes.batch, sizes.channels, sizes.image
    x, form = f"T[{batch},{channels},{size},{size}]", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
    body = (
        f"c0 = Conv<{form}>(a, w0) r0 = Relu(c0) c1 = Conv<{form}>(r0, w1) r1 = Relu(c1) "
        f"y = Conv<{form}>(r1, w2)"
    )
    model = _model("bf16", f"{x} a", f"{x} y", body)
    for number in range(3):
        shape = (channels, channels, 3, 3)
        # `graphs.reseed` replaces any finite values.
        words = (np.arange(np.prod(shape)) % 4096).astype(np.uint16).tobytes()
        tensor = onnx.helper.make_tensor(f"w{number}", TensorProto.BFLOAT16, shape, words, raw=True)
        model.graph.initializer.append(tensor)
    elements = batch * channels * size * size
    traffic, flops = 2 * (2 * elements + 3 * 9 * channels**2), 3 * 2 * elements * channels * 9
    options = {"precision": "bf16"}
    return MeasuredKernel("conv_chain_bf16", "other", "bf16", model, traffic, flops, options)


def _grouped_queries(sizes: Sizes) -> MeasuredKernel:
    """Returns attention of one query: groups of four heads share their keys and values."""
    length, width, heads, shared = sizes.context, sizes.head, 32, 8
    keys = f"T[1,{shared},{length},{width}]"
    inputs = f"T[1,{heads},1,{width}] q, {keys} k, {keys} v"
    model = _model("bf16", inputs, f"T[1,{heads},1,{width}] y", "y = Attention(q, k, v)")
    traffic, flops = 2 * 2 * shared * length * width, 4 * heads * length * width
    options = {"precision": "bf16"}
    return MeasuredKernel("gqa_decode_bf16", "memory", "bf16", model, traffic, flops, options)


def _graph_attention(sizes: Sizes) -> MeasuredKernel:
    """Returns a layer of a graph attention network (Velickovic et al. 2018) with 16 edges a node.

    A node has eight heads of 16 features. The softmax runs over the edges that end in a node.
    """
    nodes, edges, heads, width = sizes.nodes, 16 * sizes.nodes, 8, 16
    features = heads * width
    inputs = (
        f"T[{nodes},{features}] x, T[{features},{features}] w, T[{heads},{width}] left, "
        f"T[{heads},{width}] right, int64[{edges}] source, int64[{edges},1] target"
    )
    body = f"""
        h = MatMul(x, w) parts = Constant<value_ints = [{nodes}, {heads}, {width}]>()
        f = Reshape(h, parts) last = Constant<value_ints = [2]>()
        fl = Mul(f, left) sl = ReduceSum<keepdims = 0>(fl, last)
        fr = Mul(f, right) sr = ReduceSum<keepdims = 0>(fr, last)
        flat = Constant<value_ints = [{edges}]>() ends = Reshape(target, flat)
        es = Gather<axis = 0>(sl, source) et = Gather<axis = 0>(sr, ends) e0 = Add(es, et)
        e = LeakyRelu<alpha = 0.2>(e0)
        most = ScatterND<reduction = "max">(low, target, e) of = Gather<axis = 0>(most, ends)
        shifted = Sub(e, of) p = Exp(shifted)
        sums = ScatterND<reduction = "add">(none, target, p) z = Gather<axis = 0>(sums, ends)
        share0 = Div(p, z) share = Unsqueeze(share0, last)
        message0 = Gather<axis = 0>(f, source) message = Mul(message0, share)
        y = ScatterND<reduction = "add">(zeros, target, message)"""
    model = _model("f32", inputs, f"T[{nodes},{heads},{width}] y", body)
    for title, shape, value in (
        ("low", (nodes, heads), -1e30), ("none", (nodes, heads), 0.0),
        ("zeros", (nodes, heads, width), 0.0),
    ):  # fmt: skip
        array = np.full(shape, value, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, title))
    traffic = 4 * (2 * nodes * features + edges * (features + 6 * heads)) + 16 * edges
    flops = 2 * nodes * features * features + 2 * edges * features
    indices = {"source": nodes, "target": nodes}
    return MeasuredKernel("gat_f32", "other", "f32", model, traffic, flops, indices=indices)


def _embedding_bag(sizes: Sizes) -> MeasuredKernel:
    """Returns the sums of 32 rows each of a table of embeddings with 128 columns."""
    rows, bags, length, width = sizes.vocabulary, sizes.bags, 32, 128
    body = "r = Gather<axis = 0>(t, i) axes = Constant<value_ints = [1]>() "
    body += "y = ReduceSum<keepdims = 0>(r, axes)"
    inputs = f"T[{rows},{width}] t, int64[{bags},{length}] i"
    model = _model("f32", inputs, f"T[{bags},{width}] y", body)
    traffic = 4 * bags * width * (length + 1) + 8 * bags * length
    return MeasuredKernel(
        "embedding_bag_f32", "memory", "f32", model, traffic, bags * length * width,
        indices={"i": rows}, peer="embedding_bag",
    )  # fmt: skip


def host_kernels(size: int) -> Iterator[MeasuredKernel]:
    """Yields square matmuls for the CPU of the machine with the GPU, in each precision."""
    yield _matmul("host_f32", "f32", size, size, size)
    yield _matmul("host_bf16", "bf16", size, size, size, precision="bf16")
    shape = f"[{size},{size}]"
    body = f"int8{shape} a, int8{shape} b", f"int32{shape} y", "y = MatMulInteger(a, b)"
    traffic, flops = 6 * size * size, 2 * size**3
    yield MeasuredKernel("host_i8", "matrix", "i8", _model("f32", *body), traffic, flops)
