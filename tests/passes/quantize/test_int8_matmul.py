"""Matmuls of dequantised bytes become 8-bit matmuls, for targets that have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Trace
from tcc.ir.graph import Graph, Value
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.tile import Contract
from tcc.ir.types import F16, I8, U8
from tcc.ops.algebra.quantize import DequantizeAttrs, QuantizeAttrs
from tcc.passes.pipeline import GraphSettings, lower, run_pipeline
from tcc.passes.place import LoweringContext
from tcc.passes.quantize.int8_matmul import int8_matmuls, int8_weight_matmuls
from tcc.passes.quantize.precision import FULL
from tcc.passes.tile.gpu.plan import BlockChooser

from tests.passes.fuse.models import Model
from tests.passes.tile.gpu.tiles import statements

M, K, N = 48, 96, 64


def dense(
    *, columns: bool = False, bias: bool = False, turned: bool = False, signed: bool = True
) -> Graph:
    """Returns a quantised layer: x quantised and dequantised, times 8-bit weights, plus a bias if
    `bias`."""
    m = Model("dense")
    rng = np.random.default_rng(3)
    x = m.input("x", M, K)
    scale = m.scalar(0.02)
    zero = m.builder.constant(np.array(128, np.uint8), "zero")
    small = m.op("quantize_linear", x, scale, zero, attrs=QuantizeAttrs(U8))
    left = m.op("dequantize_linear", small, scale, zero, attrs=DequantizeAttrs())
    dtype: Any = np.int8 if signed else np.uint8
    info = np.iinfo(dtype)
    shape = (N, K) if turned else (K, N)
    weights = m.builder.constant(rng.integers(info.min, info.max + 1, shape).astype(dtype), "w")
    scales: Any = rng.uniform(0.001, 0.01, N) if columns else 0.005
    zeros: Any = np.zeros(N if columns else (), dtype) if signed else np.array(117, dtype)
    step = m.builder.constant(np.asarray(scales, np.float32), "scales")
    point = m.builder.constant(zeros, "point")
    attrs = DequantizeAttrs(axis=0 if turned else 1)
    right = m.op("dequantize_linear", weights, step, point, attrs=attrs)
    if turned:
        right = m.transpose(right, 1, 0)
    if bias:
        return m.finish(m.op("gemm", left, right, m.weight(N)))
    return m.finish(m.op("relu", m.op("matmul", left, right)))


def between_activations() -> Graph:
    m = Model("between_activations")

    def quantised(name: str, *shape: int) -> Value:
        scale = m.scalar(0.02)
        zero = m.builder.constant(np.array(3, np.int8), "zero")
        x = m.input(name, *shape)
        small = m.op("quantize_linear", x, scale, zero, attrs=QuantizeAttrs(I8))
        return m.op("dequantize_linear", small, scale, zero, attrs=DequantizeAttrs())

    return m.finish(m.op("matmul", quantised("a", 2, M, K), quantised("b", 2, K, N)))


GRAPHS = {
    "matmul": dense,
    "columns": lambda: dense(columns=True),
    "turned": lambda: dense(columns=True, turned=True),
    "bias": lambda: dense(bias=True),
    "bias_turned": lambda: dense(columns=True, bias=True, turned=True),
    "unsigned": lambda: dense(signed=False),
    "between_activations": between_activations,
}


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


@pytest.mark.parametrize("name", list(GRAPHS))
def test_products_agree_and_are_multiplied_as_bytes(name: str) -> None:
    graph = GRAPHS[name]()
    changed = int8_matmuls(graph)
    assert "matmul_integer" in names(changed)
    assert not {"matmul", "gemm", "dequantize_linear"} & {*names(changed)}
    rng = np.random.default_rng(4)
    inputs = {
        v.name: rng.standard_normal(v.type.static_shape or ()).astype(np.float32)
        for v in graph.inputs
    }
    (want,) = evaluate_graph(graph, inputs).values()
    (got,) = evaluate_graph(changed, inputs).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    ready = run_pipeline(graph, 2, Trace(verifying=True), settings=GraphSettings(int8_matmuls=True))
    made = lower(ready, LoweringContext(BlockChooser(), arena_planner(), FULL), Trace())
    found = [s for k in made.kernels for s in statements(k.body) if isinstance(s, Contract)]
    assert found
    assert {c.a.dtype for c in found} == {I8}


def rows() -> Graph:
    """Returns a matmul with one scale per step of the sum, which cannot be taken out of the sum."""
    m = Model("rows")
    x = m.builder.input("x", m.weight(M, K).type)
    scale = m.scalar(0.02)
    small = m.op("quantize_linear", x, scale, attrs=QuantizeAttrs(U8))
    left = m.op("dequantize_linear", small, scale, attrs=DequantizeAttrs())
    weights = m.builder.constant(np.ones((K, N), np.int8), "w")
    zeros = m.builder.constant(np.zeros(K, np.int8), "zeros")
    right = m.op("dequantize_linear", weights, m.weight(K), zeros, attrs=DequantizeAttrs(axis=0))
    return m.finish(m.op("matmul", left, right))


def one_side() -> Graph:
    m = Model("one_side")
    weights = m.builder.constant(np.ones((K, N), np.int8), "w")
    right = m.op("dequantize_linear", weights, m.scalar(0.1), attrs=DequantizeAttrs())
    return m.finish(m.op("matmul", m.input("x", M, K), right))


def halves() -> Graph:
    """Returns bytes that are dequantised to a narrower type than that of their scales."""
    m = Model("halves")
    to_half = DequantizeAttrs(to=F16)
    x = m.input("x", M, K, dtype=U8)
    left = m.op("dequantize_linear", x, m.scalar(0.02), attrs=to_half)
    weights = m.builder.constant(np.ones((K, N), np.int8), "w")
    right = m.op("dequantize_linear", weights, m.scalar(0.1), attrs=to_half)
    return m.finish(m.op("matmul", left, right))


@pytest.mark.parametrize("make", [rows, one_side, halves])
def test_unsupported_matmuls_stay(make: Any) -> None:
    graph = make()
    assert int8_matmuls(graph) is graph
    assert int8_weight_matmuls(graph) is graph


def test_other_targets_keep_floats() -> None:
    assert "matmul_integer" not in names(run_pipeline(dense(), 2, Trace()))
