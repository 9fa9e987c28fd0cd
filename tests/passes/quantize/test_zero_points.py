"""Zero points are taken out of sums of 8-bit matmuls without a change of the results."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from tcc.debug import Trace
from tcc.ir.graph import Graph, Value
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.types import F32, I8, U8, DType, tensor
from tcc.ops.algebra.quantize import DequantizeAttrs, QuantizeAttrs
from tcc.ops.algebra.quantized import ConvIntegerAttrs
from tcc.ops.algebra.window import ConvAttrs
from tcc.passes.pipeline import GraphSettings, run_pipeline
from tcc.passes.quantize.requantize import requantize
from tcc.passes.quantize.zero_points import split_zero_points

from tests.draws import RNG
from tests.passes.fuse.models import Model

KINDS = {"u8": np.uint8, "i8": np.int8}
PADDED = ConvAttrs((2, 1), (1, 1), (1, 0), (1, 1), 2)


def draw(kind: str, *shape: int) -> Any:
    info = np.iinfo(KINDS[kind])
    return RNG.integers(info.min, info.max + 1, shape).astype(KINDS[kind])


def with_border(attrs: ConvAttrs) -> ConvIntegerAttrs:
    return ConvIntegerAttrs(*(getattr(attrs, f.name) for f in fields(ConvAttrs)))


def constant(m: Model, array: Any) -> Value:
    return m.builder.constant(np.asarray(array), "c")


def integer_matmul(
    x: str, w: str, *, dynamic: bool = False, columns: bool = False, rows: bool = True
) -> Graph:
    m = Model("integer_matmul")
    values = m.input("x", *((2, 5, 13) if rows else (13,)), dtype=I8 if x == "i8" else U8)
    point = m.input("z", dtype=values.type.dtype) if dynamic else constant(m, KINDS[x](7))
    zeros = draw(w, 6) if columns else KINDS[w](3)
    weights = constant(m, draw(w, 13, 6))
    return m.finish(m.op("matmul_integer", values, weights, point, constant(m, zeros)))


def computed(x: str, w: str, *, points: str = "", rows: bool = True) -> Graph:
    """Returns a matmul of two inputs; `w` has one zero point or one per column, constant or not."""
    m = Model("computed")
    values = m.input("x", *((2, 5, 13) if rows else (13,)), dtype=I8 if x == "i8" else U8)
    others = m.input("w", 2, 13, 6, dtype=I8 if w == "i8" else U8)
    zeros = [
        constant(m, KINDS[x](7)),
        constant(m, draw(w, 6) if points == "columns" else KINDS[w](3)),
    ]
    if points == "late":
        zeros = [
            m.input("zx", 1, dtype=values.type.dtype),
            m.input("zw", 6, dtype=others.type.dtype),
        ]
    if points == "none":
        zeros = []
    return m.finish(m.op("matmul_integer", values, others, *zeros))


def integer_conv(x: str, w: str) -> Graph:
    m = Model("integer_conv")
    values = m.input("x", 2, 4, 5, 6, dtype=I8 if x == "i8" else U8)
    zero = np.int8(0) if w == "i8" else np.uint8(128)
    zeros = [constant(m, KINDS[x](9)), constant(m, np.full(6, zero))]
    weights = constant(m, draw(w, 6, 2, 3, 2))
    return m.finish(m.op("conv_integer", values, weights, *zeros, attrs=with_border(PADDED)))


GRAPHS = {
    **{f"matmul_{x}{w}": (lambda x=x, w=w: integer_matmul(x, w)) for x in KINDS for w in KINDS},
    **{f"computed_{x}{w}": (lambda x=x, w=w: computed(x, w)) for x in KINDS for w in KINDS},
    "computed_columns": lambda: computed("i8", "u8", points="columns", rows=False),
    "computed_late": lambda: computed("u8", "u8", points="late"),
    "computed_none": lambda: computed("i8", "u8", points="none"),
    "dynamic": lambda: integer_matmul("u8", "i8", dynamic=True),
    "dynamic_signed": lambda: integer_matmul("i8", "u8", dynamic=True),
    "columns": lambda: integer_matmul("u8", "u8", columns=True),
    "vector": lambda: integer_matmul("u8", "u8", columns=True, rows=False),
    "vector_dynamic": lambda: integer_matmul("i8", "i8", dynamic=True, rows=False),
    **{f"conv_{x}{w}": (lambda x=x, w=w: integer_conv(x, w)) for x in KINDS for w in KINDS},
}


@pytest.mark.parametrize("to", [U8, I8, None], ids=str)
@pytest.mark.parametrize("name", list(GRAPHS))
def test_sums_are_the_same(name: str, to: DType | None) -> None:
    graph = GRAPHS[name]()
    changed = split_zero_points(graph, to)
    inputs = {}
    for v in graph.inputs:
        info = np.iinfo(v.type.dtype.carrier)
        shape = v.type.static_shape or ()
        inputs[v.name] = RNG.integers(info.min, info.max + 1, shape).astype(v.type.dtype.carrier)
    (want,) = evaluate_graph(graph, inputs).values()
    (got,) = evaluate_graph(changed, inputs).values()
    np.testing.assert_array_equal(got, want)
    products = [n for n in changed.nodes if n.op.name in ("matmul_integer", "conv_integer")]
    assert len(products) == 1
    assert [v.type.dtype if v else None for v in products[0].inputs] == [
        to or graph.inputs[0].type.dtype,
        I8,
    ]
    assert split_zero_points(changed, to) is changed


def test_padding_that_data_choose_stays() -> None:
    m = Model("late_border")
    x, zero = m.input("x", 1, 4, 5, 6, dtype=U8), m.input("z", dtype=U8)
    weights = constant(m, draw("i8", 6, 2, 3, 2))
    graph = m.finish(m.op("conv_integer", x, weights, zero, attrs=with_border(PADDED)))
    assert split_zero_points(graph) is graph


def quantised_layers(kind: str) -> Graph:
    """Returns two convolutions between quantised tensors; the result of the first is added to the
    second's."""
    m = Model("layers")
    to = I8 if kind == "i8" else U8
    scale, zero = m.scalar(0.05), constant(m, KINDS[kind](4))

    def through(x: Value) -> Value:
        small = m.op("quantize_linear", x, scale, zero, attrs=QuantizeAttrs(to))
        return m.op("dequantize_linear", small, scale, zero, attrs=DequantizeAttrs())

    def conv(x: Value, *shape: int) -> Value:
        steps = RNG.uniform(0.002, 0.01, shape[0]).astype(np.float32)
        weights = m.op(
            "dequantize_linear", constant(m, draw("i8", *shape)), constant(m, steps),
            attrs=DequantizeAttrs(axis=0),
        )  # fmt: skip
        attrs = ConvAttrs((1, 1), (1, 1), (1, 1), (1, 1), 1)
        return m.op("relu", m.op("conv", x, weights, m.weight(shape[0]), attrs=attrs))

    first = through(conv(through(m.builder.input("x", tensor(F32, 1, 4, 6, 5))), 8, 4, 3, 3))
    second = through(conv(first, 8, 8, 3, 3))
    return m.finish(through(m.op("add", first, second)))


@pytest.mark.parametrize(
    ("kind", "signed"), [("u8", False), ("i8", False), ("u8", True), ("i8", True)]
)
def test_layers_keep_bytes_between_them(kind: str, signed: bool) -> None:
    graph = quantised_layers(kind)
    settings = GraphSettings(
        int8_weight_matmuls=True,
        split_zero_points=True,
        factor_type=I8 if signed else U8,
        requantize=True,
    )
    changed = run_pipeline(graph, 2, Trace(verifying=True), settings)
    x = RNG.standard_normal((1, 4, 6, 5)).astype(np.float32)
    x[0, 0, 0, 0] = np.nan
    (want,) = evaluate_graph(graph, {"x": x}).values()
    (got,) = evaluate_graph(changed, {"x": x}).values()
    # A few levels may differ by one, because the original rounds sums of floats.
    assert np.abs(got - want).max() <= 0.1001
    assert (got != want).mean() < 0.02
    ops = [n.op.name for n in changed.nodes]
    assert ops.count("conv_integer") == 2
    assert "conv" not in ops
    assert ops.count("quantize_linear") == 2  # of the caller's floats, and of the sum
    assert (U8 if signed else I8) not in {v.type.dtype for n in changed.nodes for v in n.outputs}


@pytest.mark.parametrize("scale", [0.0, 1e-40, -0.1, np.inf, np.nan])
def test_scales_without_a_positive_inverse_divide(scale: float) -> None:
    m = Model("scales")
    sums = m.op("matmul", m.input("x", 3, 8), m.weight(8, 5))
    zero = constant(m, np.uint8(3))
    graph = m.finish(m.op("quantize_linear", sums, m.scalar(scale), zero, attrs=QuantizeAttrs(U8)))
    assert requantize(graph) is graph
