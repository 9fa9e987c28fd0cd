"""Operators of com.microsoft agree with ONNX Runtime, which has kernels for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tcc
from onnx import helper, numpy_helper
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.draws import RNG, seeded


def f32(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray:
    """Returns 7-bit levels: without VNNI, ONNX Runtime's pair sums saturate for larger levels."""
    return RNG.integers(-64, 64, shape).astype(np.int8)


def real(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def model_of(
    op: str, operands: Sequence[Any], outputs: Sequence[str], constants: Sequence[int], **attrs: Any
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Returns a one-node model and its feeds; operands whose numbers are in `constants` are
    initialisers."""
    domain = attrs.pop("domain", "com.microsoft")
    names = ["" if a is None else f"x{n}" for n, a in enumerate(operands)]
    arrays = {f"x{n}": a for n, a in enumerate(operands) if a is not None}
    fixed = {f"x{n}" for n in constants}
    node = helper.make_node(op, names, list(outputs), domain=domain, **attrs)
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for k, a in arrays.items()
        if k not in fixed
    ]
    graph = helper.make_graph(
        [node],
        "one",
        inputs,
        [helper.make_empty_tensor_value_info(n) for n in outputs if n],
        [numpy_helper.from_array(a, k) for k, a in arrays.items() if k in fixed],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model, {k: a for k, a in arrays.items() if k not in fixed}


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options)


def agrees(
    op: str,
    *operands: Any,
    outputs: Sequence[str] = ("y",),
    constants: Sequence[int] = (),
    tolerance: float = 2e-5,
    **attrs: Any,
) -> None:
    model, inputs = model_of(op, operands, outputs, constants, **attrs)
    names = [n for n in outputs if n]
    references = session(model).run(names, inputs)
    results = evaluate_graph(load_model(model), inputs)
    for name, reference in zip(names, references, strict=True):
        assert results[name].dtype == reference.dtype
        assert results[name].shape == reference.shape
        if reference.dtype.kind == "f":
            atol = tolerance * max(1.0, float(np.abs(reference).max(initial=0)))
            np.testing.assert_allclose(results[name], reference, rtol=0, atol=atol, err_msg=name)
        else:  # a quantised result may differ by one level
            distances = np.abs(results[name].astype(np.int64) - reference.astype(np.int64))
            assert distances.max(initial=0) <= (1 if reference.dtype.itemsize == 1 else 0)
            assert (distances > 0).mean() < 0.05


# ---- activations, norms, matmuls ----------------------------------------------------------------

with seeded("test_contrib_ops: fused"):
    X = f32(2, 3, 8)

    FUSED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
        "gelu": ("Gelu", (X,), {}),
        "bias_gelu": ("BiasGelu", (X, f32(8)), {}),
        "fast_gelu": ("FastGelu", (X,), {}),
        "fast_gelu_bias": ("FastGelu", (X, f32(8)), {}),
        "quick_gelu": ("QuickGelu", (X,), {"alpha": 1.3}),
        "skip_norm": (
            "SkipLayerNormalization",
            (X, f32(2, 3, 8), f32(8), f32(8), f32(8)),
            {"epsilon": 1e-5, "outputs": ("y", "", "", "sum")},
        ),
        "skip_norm_spread": ("SkipLayerNormalization", (X, f32(3, 8), f32(8), f32(8)), {}),
        "skip_rms": (
            "SkipSimplifiedLayerNormalization",
            (X, f32(2, 3, 8), f32(8), f32(8)),
            {"epsilon": 1e-6, "outputs": ("y", "", "", "sum")},
        ),
        "rms": ("SimplifiedLayerNormalization", (X, f32(8)), {"domain": "", "axis": -1}),
        "matmul": ("FusedMatMul", (f32(2, 3, 4), f32(2, 5, 4)), {"transB": 1, "alpha": 0.3}),
        "matmul_batch": (
            "FusedMatMul",
            (f32(4, 2, 3), f32(4, 2, 5)),
            {"transBatchA": 1, "transBatchB": 1, "transA": 1},
        ),
        "gemm": (
            "FusedGemm",
            (f32(3, 4), f32(5, 4), f32(5)),
            {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2},
        ),
        "gemm_softplus": ("FusedGemm", (f32(3, 4), f32(4, 5)), {"activation": "Softplus"}),
        "gemm_elu": (
            "FusedGemm",
            (f32(3, 4), f32(4, 5)),
            {"activation": "Elu", "activation_alpha": 0.5},
        ),
        "gemm_softsign": ("FusedGemm", (f32(3, 4), f32(4, 5)), {"activation": "Softsign"}),
        "conv": (
            "FusedConv",
            (f32(1, 2, 5, 5), f32(3, 2, 3, 3), f32(3), f32(1, 3, 5, 5)),
            {"activation": "Relu", "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]},
        ),
        "conv_clip": (
            "FusedConv",
            (f32(1, 2, 5, 5), f32(3, 2, 3, 3)),
            {"activation": "Clip", "activation_params": [-0.5, 0.75]},
        ),
        "embed": (
            "EmbedLayerNormalization",
            (
                RNG.integers(0, 9, (2, 5)).astype(np.int32),
                RNG.integers(0, 2, (2, 5)).astype(np.int32),
                f32(9, 8), f32(6, 8), f32(2, 8), f32(8), f32(8),
                np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
            ),
            {"outputs": ("y", "count", "sum")},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(FUSED))
def test_fused(name: str) -> None:
    op, operands, attrs = FUSED[name]
    agrees(op, *operands, **attrs)


def evaluated(op: str, *operands: Any, **attrs: Any) -> np.ndarray:
    model, inputs = model_of(op, operands, ("y",), (), **attrs)
    (output,) = evaluate_graph(load_model(model), inputs).values()
    return np.asarray(output)


def test_split_gelu_and_group_norm() -> None:
    """ONNX Runtime has kernels of these operators for GPUs only."""
    x, bias = f32(2, 3, 8), f32(8)
    value, right = np.split(x + bias, 2, -1)
    gate = evaluated("Gelu", right)
    split = evaluated("BiasSplitGelu", x, bias)
    np.testing.assert_allclose(split, value * gate, rtol=1e-6, atol=1e-6 * np.abs(x).max())
    image, scale, shift = f32(2, 3, 5, 6), f32(6), f32(6)
    parts = image.reshape(2, 15, 2, 3)
    mean, var = (getattr(parts, m)(axis=(1, 3), keepdims=True) for m in ("mean", "var"))
    reference = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(image.shape) * scale + shift
    reference = reference / (1 + np.exp(-reference))
    output = evaluated("GroupNorm", image, scale, shift, groups=2, activation=1)
    np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-5)


# ---- quantised ----------------------------------------------------------------------------------

Q = {
    "A": (real(0.03), np.uint8(7)),
    "B": (real(0.05), np.uint8(130)),
    "Y": (real(0.07), np.uint8(90)),
}
A, B, Y = ((s, np.asarray(z)) for s, z in Q.values())

with seeded("test_contrib_ops: quantised"):
    QUANTISED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
        "add": ("QLinearAdd", (u8(2, 3, 8), *A, u8(3, 8), *B, *Y), {}),
        "mul": ("QLinearMul", (u8(2, 3, 8), *A, u8(3, 8), *B, *Y), {}),
        "sigmoid": (
            "QLinearSigmoid",
            (u8(2, 9), *A, real(1 / 256), np.uint8(0)),
            {"constants": (1, 2, 3, 4)},
        ),
        "leaky_relu": (
            "QLinearLeakyRelu",
            (u8(2, 9), *B, *Y),
            {"alpha": 0.2, "constants": (1, 2, 3, 4)},
        ),
        "softmax": (
            "QLinearSoftmax",
            (u8(2, 9), *A, real(1 / 256), np.uint8(0)),
            {"opset": 13, "constants": (1, 2, 3, 4)},
        ),
        "softmax_of_axes": (
            "QLinearSoftmax",
            (u8(2, 3, 4), *A, real(1 / 256), np.uint8(0)),
            {"opset": 12, "axis": 1, "constants": (1, 2, 3, 4)},
        ),
        "concat": (
            "QLinearConcat",
            (*Y, u8(2, 3), *A, u8(2, 4), *B),
            {"axis": 1, "constants": (0, 1, 3, 4, 6, 7)},
        ),
        "pool": (
            "QLinearAveragePool",
            (u8(1, 2, 5, 5), *A, *B),
            {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "constants": (1, 2, 3, 4)},
        ),
        "global_pool": (
            "QLinearGlobalAveragePool",
            (u8(1, 2, 5, 5), *A, *B),
            {"constants": (1, 2, 3, 4)},
        ),
        "global_pool_last": (
            "QLinearGlobalAveragePool",
            (u8(1, 5, 5, 2), *A, *B),
            {"channels_last": 1, "constants": (1, 2, 3, 4)},
        ),
        "gemm": (
            "QGemm",
            (
                u8(3, 4),
                *A,
                i8(5, 4),
                f32(5) ** 2,
                np.zeros(5, np.int8),
                RNG.integers(-999, 999, 5).astype(np.int32),
                *Y,
            ),
            {"transB": 1, "constants": (1, 2, 3, 4, 5, 6, 7, 8)},
        ),
        "gemm_floats": (
            "QGemm",
            (u8(3, 4), *A, u8(4, 5), *B),
            {"alpha": 0.5, "constants": (1, 2, 3, 4, 5)},
        ),
        "to_float": (
            "MatMulIntegerToFloat",
            (
                u8(2, 3, 4),
                i8(4, 5),
                real(0.03),
                f32(5) ** 2,
                np.uint8(9),
                np.zeros(5, np.int8),
                f32(5),
            ),
            {"constants": (1, 3, 5, 6)},
        ),
        "dynamic": (
            "DynamicQuantizeMatMul",
            (f32(3, 4), u8(4, 5), real(0.02), np.uint8(120), f32(5)),
            {"constants": (1, 2, 3, 4)},
        ),
    }


@pytest.mark.parametrize("name", list(QUANTISED))
def test_quantised(name: str) -> None:
    op, operands, attrs = QUANTISED[name]
    agrees(op, *map(np.asarray, operands), **attrs)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
def test_levels_of_the_domain(kind: Any) -> None:
    """ONNX Runtime's quantiser wrote these operators before ONNX had 16-bit levels."""
    scales, points = np.array([0.03, 0.1, 0.2], np.float32), np.array([1, 2, 3], kind)
    levels = RNG.integers(0, 99, (2, 3, 4)).astype(kind)
    one = (real(0.03), np.array(2, kind))
    agrees("QuantizeLinear", X, *one)
    agrees("QuantizeLinear", f32(2, 3, 4), scales, points, axis=1)
    agrees("DequantizeLinear", levels, *one)
    agrees("DequantizeLinear", levels, scales, points, axis=1)


@pytest.mark.parametrize("points", [True, False])
@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4])
def test_rows_of_blocks_of_small_integers(kind: Any, points: bool) -> None:
    """Without zero points, levels of 4-bit types have the zero point 0, unlike levels in bytes."""
    least = int(ml_dtypes.iinfo(kind).min)
    levels, zeros = (RNG.integers(least, least + 16, s).astype(kind) for s in ((7, 64), (7, 4)))
    scales = (f32(7, 4) ** 2 + 0.01).astype(np.float32)
    operands = [levels, np.array([6, 0, 3], np.int64), scales, *([zeros] if points else [])]
    fixed = (0, 2, 3) if points else (0, 2)
    agrees("GatherBlockQuantized", *operands, constants=fixed, block_size=16)


@pytest.mark.parametrize("points", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rows_of_blocks(bits: int, points: bool) -> None:
    data = u8(7, 64 * bits // 8)
    scales = (f32(7, 4) ** 2 + 0.01).astype(np.float32)
    zeros = u8(7, 4 * bits // 8) if points else None
    indices = np.array([[6, 0], [3, 3]], np.int64)
    operands = [data, indices, scales, *([] if zeros is None else [zeros])]
    agrees(
        "GatherBlockQuantized",
        *operands,
        constants=(0, 2, 3),
        bits=bits,
        block_size=16,
        quantize_axis=1,
    )


# ---- attention ----------------------------------------------------------------------------------


def angles(places: int, half: int) -> tuple[np.ndarray, np.ndarray]:
    at = np.arange(places)[:, None] * (0.3 ** np.arange(half))[None]
    return np.cos(at).astype(np.float32), np.sin(at).astype(np.float32)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary(interleaved: int) -> None:
    cos, sin = angles(9, 4)
    places = np.array([[0, 1, 2], [4, 5, 6]], np.int64)
    agrees("RotaryEmbedding", f32(2, 3, 16), places, cos, sin, interleaved=interleaved)
    first = np.array([3], np.int64)
    agrees("RotaryEmbedding", f32(2, 2, 3, 8), first, cos, sin, interleaved=interleaved)
    part = {"interleaved": interleaved, "num_heads": 2, "rotary_embedding_dim": 4}
    agrees("RotaryEmbedding", f32(2, 3, 16), places, cos[:, :2], sin[:, :2], **part)


with seeded("test_contrib_ops: heads"):
    Q3, K3, V3 = f32(2, 3, 16), f32(2, 5, 16), f32(2, 5, 24)
    PAST = (f32(2, 2, 4, 8), f32(2, 2, 4, 8))

    HEADS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "plain": ((Q3, K3, V3), {}),
        "bias": ((Q3, K3, V3, f32(16 + 16 + 24)), {"scale": 0.2}),
        "causal": ((K3, K3, V3), {"unidirectional": 1}),
        "lengths": ((Q3, K3, V3, None, np.array([2, 5], np.int32)), {}),
        "padding": ((Q3, K3, V3, None, np.array([[1, 1, 0, 1, 0], [1] * 5], np.int32)), {}),
        "added": ((Q3, K3, V3, None, None, f32(2, 2, 3, 5)), {}),
        "heads": ((Q3, f32(2, 2, 5, 8), f32(2, 2, 5, 8)), {}),
        "past": (
            (Q3, f32(2, 3, 16), f32(2, 3, 16), None, None, None, *PAST),
            {"outputs": ("y", "k", "v"), "unidirectional": 1},
        ),
    }


@pytest.mark.parametrize("name", list(HEADS))
def test_many_heads(name: str) -> None:
    operands, attrs = HEADS[name]
    agrees("MultiHeadAttention", *operands, num_heads=2, **attrs)


def test_a_bias_of_symbolic_length_is_long_enough() -> None:
    model, inputs = model_of("MultiHeadAttention", (Q3, K3, V3, f32(40)), ("y",), (), num_heads=2)
    model.graph.input[3].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(UserError, match="40"):
        evaluate_graph(load_model(model), inputs)


with seeded("test_contrib_ops: whole"):
    WEIGHTS = (f32(2, 3, 12), f32(12, 48, scale=0.3), f32(48))

    WHOLE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "plain": (WEIGHTS, {}),
        "causal": (WEIGHTS, {"unidirectional": 1, "scale": 0.4}),
        "lengths": ((*WEIGHTS, np.array([2, 3], np.int32)), {}),
        "padding": ((*WEIGHTS, np.array([[1, 0, 1], [1, 1, 1]], np.int32)), {}),
        "each": (
            (*WEIGHTS, RNG.integers(0, 2, (2, 3, 3)).astype(np.int32) | np.eye(3, dtype=np.int32)),
            {},
        ),
        "widths": (
            (f32(2, 3, 12), f32(12, 40, scale=0.3), f32(40), None, None, f32(1, 2, 3, 3)),
            {"qkv_hidden_sizes": [16, 16, 8]},
        ),
        "past": (
            (*WEIGHTS, None, f32(2, 2, 2, 4, 8)),
            {"unidirectional": 1, "outputs": ("y", "present")},
        ),
    }


@pytest.mark.parametrize("name", list(WHOLE))
def test_whole_attention(name: str) -> None:
    operands, attrs = WHOLE[name]
    agrees("Attention", *operands, num_heads=2, **attrs)


with seeded("test_contrib_ops: quantised whole"):
    BYTES = (u8(2, 3, 12), i8(12, 48), f32(48), real(0.02), real(0.01))
    COLUMNS = (i8(12, 48), f32(48), real(0.02), f32(48, scale=0.1) ** 2)
    # Operands, the numbers of the constant operands, and attributes.
    QUANTISED_WHOLE: dict[str, tuple[tuple[Any, ...], tuple[int, ...], dict[str, Any]]] = {
        "plain": ((*BYTES, None, np.array(120, np.uint8), np.array(3, np.int8)), (1,), {}),
        "lengths": ((*BYTES, np.array([2, 3], np.int32), np.array(120, np.uint8)), (1,), {}),
        "columns": ((u8(2, 3, 12), *COLUMNS, None, np.array(9, np.uint8), i8(48)), (1, 7), {}),
        "past": (
            (*BYTES, None, np.array(120, np.uint8), np.array(3, np.int8), f32(2, 2, 2, 4, 8)),
            (1,),
            {"unidirectional": 1, "outputs": ("y", "present")},
        ),
    }


@pytest.mark.parametrize("name", list(QUANTISED_WHOLE))
def test_quantised_attention(name: str) -> None:
    operands, constants, attrs = QUANTISED_WHOLE[name]
    agrees("QAttention", *operands, num_heads=2, constants=constants, **attrs)


def group_query(
    batch: int, length: int, past: int, lengths: Sequence[int], total: int, **more: Any
) -> None:
    """Compares GroupQueryAttention with 4 query heads and 2 key heads of width 16, including the
    new contents of the caches."""
    packed, rotary = more.pop("packed", False), more.get("do_rotary", 0)
    q, k, v = (f32(batch, length, n * 16) for n in (4, 2, 2))
    qkv = (np.concatenate([q, k, v], -1), None, None) if packed else (q, k, v)
    caches = [f32(batch, 2, past, 16) for _ in range(2)]
    ends = np.asarray(lengths, np.int32) - 1
    operands = [*qkv, *caches, ends, np.array(total, np.int32)]
    sink = more.pop("sink", None)
    operands += [*angles(24, 8)] if rotary else [None, None] if sink else []
    operands += [None, None, np.asarray(sink, np.float32)] if sink else []
    agrees(
        "GroupQueryAttention", *operands, constants=(6,), outputs=("y", "k", "v"),
        num_heads=4, kv_num_heads=2, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"packed": True, "do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1},
        {"softcap": 2.0, "scale": 0.5},
        {"local_window_size": 3},
        {"sink": [0.5, -1.0, 3.0, 0.0]},
        {"sink": [0.5, 4.0, 0.25, 1.0], "local_window_size": 3, "do_rotary": 1},
        {"smooth_softmax": 1, "softcap": 2.0},
    ],
    ids=str,
)
def test_shared_heads(more: dict[str, Any]) -> None:
    group_query(1, 6, 0, [6], 6, **more)
    group_query(1, 1, 5, [6], 6, **more)
    group_query(2, 1, 5, [6, 6], 6, **more)


@pytest.mark.parametrize("turned", [0, 1])
def test_first_rows_of_sequences_of_different_lengths(turned: int) -> None:
    """Shorter sequences are padded at the end; batch and cache length are symbolic."""
    operands = [
        f32(2, 6, 64), f32(2, 6, 32), f32(2, 6, 32), f32(2, 2, 0, 16), f32(2, 2, 0, 16),
        np.array([3, 5], np.int32), np.array(6, np.int32), *(angles(24, 8) if turned else ()),
    ]  # fmt: skip
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": turned}
    model, inputs = model_of("GroupQueryAttention", operands, ("y", "k", "v"), (), **attrs)
    for value in model.graph.input[:6]:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for value in model.graph.input[3:5]:
        value.type.tensor_type.shape.dim[2].dim_param = "past"
    for value in model.graph.input[:3]:
        value.type.tensor_type.shape.dim[1].dim_param = "rows"
    outputs = evaluate_graph(load_model(model), inputs)
    reference = dict(zip(("y", "k", "v"), session(model).run(["y", "k", "v"], inputs), strict=True))
    for row, end in ((0, 4), (1, 6)):
        np.testing.assert_allclose(outputs["y"][row, :end], reference["y"][row, :end], atol=2e-5)
        for name in ("k", "v"):
            cache = outputs[name][row, :, :end]
            np.testing.assert_allclose(cache, reference[name][row, :, :end], atol=2e-5)


def test_a_cache_of_final_length() -> None:
    """New rows of a sequence go behind its older rows, in a cache of constant length."""
    model, inputs = model_of(
        "GroupQueryAttention",
        [
            f32(2, 1, 64), f32(2, 1, 32), f32(2, 1, 32), f32(2, 2, 9, 16), f32(2, 2, 9, 16),
            np.array([4, 6], np.int32), np.array(7, np.int32), *angles(24, 8),
        ],
        ("y", "k", "v"), (6,), num_heads=4, kv_num_heads=2, do_rotary=1,
    )  # fmt: skip
    outputs = evaluate_graph(load_model(model), inputs)
    # ONNX Runtime keeps the length of a cache only if the cache is both input and output.
    run = session(model)
    binding = run.io_binding()
    ort_values = {n: ort.OrtValue.ortvalue_from_numpy(a.copy()) for n, a in inputs.items()}
    for name, value in ort_values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("k", ort_values["x3"])
    binding.bind_ortvalue_output("v", ort_values["x4"])
    binding.bind_output("y")
    run.run_with_iobinding(binding)
    np.testing.assert_allclose(outputs["y"], binding.copy_outputs_to_cpu()[-1], atol=2e-5)
    for name, end in ((0, 5), (1, 7)):
        np.testing.assert_allclose(
            outputs["k"][name, :, :end], ort_values["x3"].numpy()[name, :, :end], atol=1e-6
        )
    module = tcc.compile(model, jobs=1, level=1)
    np.testing.assert_allclose(module.run(inputs)["y"], outputs["y"], atol=2e-5)
    with pytest.raises(UserError, match="a cache has no room for the rows"):
        module.run(inputs | {"x5": np.array([4, 9], np.int32)})


# ---- experts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "block", "zeros", "attrs"),
    [
        (4, 0, False, {"activation_type": "relu"}),
        (4, 16, True, {"activation_type": "silu"}),
        (8, 0, True, {"activation_type": "gelu"}),
        (4, 16, False, {"activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 1.5}),
        (2, 16, True, {"activation_type": "identity", "routed": 1, "normalize_routing_weights": 1}),
    ],
)
def test_experts_of_levels(bits: int, block: int, zeros: bool, attrs: dict[str, Any]) -> None:
    attrs = dict(attrs)
    tokens, experts, depth, width = 5, 4, 32, 48
    last = [f32(tokens, experts) ** 2] if attrs.pop("routed", 0) else []
    operands: list[Any] = [f32(1, tokens, depth), f32(tokens, experts)]
    points: list[Any] = []
    for rows, columns in ((width * (1 + attrs.get("swiglu_fusion", 0)), depth), (depth, width)):
        lead = (experts, rows, columns // block) if block else (experts, rows)
        scales = RNG.uniform(0.005, 0.02, lead).astype(np.float32)
        operands += [u8(experts, rows, columns * bits // 8), scales, f32(experts, rows)]
        points.append(u8(*lead[:-1], -(-lead[-1] * bits // 8)) if zeros else None)
    operands += [None] * 3 + points + [None, *last]
    fixed = [n for n in range(2, 13) if operands[n] is not None]
    sizes = {"k": 2, "expert_weight_bits": bits, **({"block_size": block} if block else {})}
    agrees("QMoE", *operands, constants=fixed, **sizes, **attrs)


with seeded("test_contrib_ops: refused"):
    REFUSED = [
        ("Attention", WEIGHTS, {"num_heads": 2, "do_rotary": 1}, "do_rotary=1"),
        ("GroupNorm", (f32(1, 2, 5), f32(5), f32(5)), {"groups": 2, "activation": 0}, "2 groups"),
        ("FusedGemm", (f32(2, 2), f32(2, 2)), {"activation": "Selu"}, "selu"),
        ("BeamSearch", (f32(2, 2),), {}, "a loop that generates: compile the decoder"),
        ("QOrderedGelu", (f32(2, 2),), {}, "ONNX Runtime itself has no kernel of it for CPUs"),
        ("MultiHeadAttention", (Q3, K3, V3, f32(40)), {"num_heads": 2}, "are not all in f32[40]"),
        ("MultiHeadAttention", (f32(2, 3, 0), K3, V3), {"num_heads": 2}, "width of a head"),
        (
            "MultiHeadAttention",
            (Q3, K3, K3, None, None, None, f32(128), f32(128)),
            {"num_heads": 2},
            "f32[128] has 1 axes",
        ),
        ("Attention", (*WEIGHTS, None, f32(256)), {"num_heads": 2}, "f32[256] has 1 axes"),
        ("RotaryEmbedding", (f32(9), i8(1), f32(9, 4), f32(9, 4)), {}, "3 or 4 are due"),
        (
            "GroupQueryAttention",
            (*(f32(1, 3, 16) for _ in range(3)), None, None, np.int32([2]), np.int32(3)),
            {"num_heads": 1, "kv_num_heads": 1, "local_window_size": 0},
            "a window of 0 shows no key",
        ),
        (
            "GroupNorm",
            (f32(6), f32(6), f32(6)),
            {"groups": 2, "activation": 0, "channels_last": 0},
            "no axis of channels",
        ),
        ("BiasSplitGelu", (f32(2, 8),), {}, "input 1 is missing"),
        ("FusedConv", (f32(1, 2, 4), None), {}, "input 1 is missing"),
    ]


@pytest.mark.parametrize(("op", "operands", "attrs", "why"), REFUSED)
def test_unsupported_operators_are_refused_by_name(
    op: str, operands: tuple[Any, ...], attrs: dict[str, Any], why: str
) -> None:
    model, _ = model_of(op, operands, ("y",), (), **attrs)
    with pytest.raises(UserError) as caught:
        load_model(model)
    assert why in f"{caught.value} {caught.value.why}"
