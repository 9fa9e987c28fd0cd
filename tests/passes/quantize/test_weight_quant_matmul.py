"""Matmuls read large narrow constants directly where possible, and give the right results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.narrow import decode
from tcc.ir.op import NoAttrs
from tcc.ir.types import F4E2M1, F8E4M3FN, F32, I4, U4, DType, tensor
from tcc.ops import OPS
from tcc.ops.algebra.movement import TransposeAttrs
from tcc.ops.algebra.quantize import DequantizeAttrs
from tcc.passes.graph.fold_constants import fold_constants
from tcc.passes.quantize.weight_quant_matmul import weight_quant_matmuls

from tests.draws import RNG, seeded

DEPTH, COLUMNS = 256, 96


def graph(
    dtype: DType,
    scale: Any,
    attrs: DequantizeAttrs,
    zero: Any = None,
    turn: bool = False,
    bias: bool = False,
) -> Graph:
    """Returns x times dequantised levels; with `turn`, the levels are stored transposed and an op
    transposes them."""
    b = GraphBuilder("levels")
    x = b.input("x", tensor(F32, 3, DEPTH))
    shape = (COLUMNS, DEPTH) if turn else (DEPTH, COLUMNS)
    codes = RNG.integers(0, 1 << dtype.bits, shape).astype(np.uint8)
    levels = decode(codes, dtype)
    levels = np.nan_to_num(levels)
    operands: list[Value | None] = [
        b.constant(levels, "w", dtype),
        b.constant(np.asarray(scale, np.float32), "s"),
    ]
    if zero is not None:
        operands.append(b.constant(np.asarray(zero, dtype.carrier), "z", dtype))
    (w,) = b.add(OPS["dequantize_linear"], operands, attrs)
    if turn:
        (w,) = b.add(OPS["transpose"], [w], TransposeAttrs((1, 0)))
    if bias:
        shift = b.constant(RNG.standard_normal(COLUMNS).astype(np.float32), "bias")
        return b.finish(b.add(OPS["gemm"], [x, w, shift], NoAttrs(), names=["y"]))
    return b.finish(b.add(OPS["matmul"], [x, w], NoAttrs(), names=["y"]))


with seeded("test_level_products: cases"):
    SCALES = RNG.uniform(0.1, 1, (8, COLUMNS))
    CASES = {
        "blocks": (I4, SCALES, DequantizeAttrs(0, 32)),
        "blocks turned": (I4, SCALES.T, DequantizeAttrs(1, 32), None, True),
        "blocks in gemm": (I4, SCALES.T, DequantizeAttrs(1, 32), None, True, True),
        "points": (U4, SCALES, DequantizeAttrs(0, 32), RNG.integers(0, 16, SCALES.shape)),
        "middle": (U4, SCALES, DequantizeAttrs(0, 32), np.full(SCALES.shape, 8)),
        "unsigned": (U4, SCALES, DequantizeAttrs(0, 32)),
        "columns": (F8E4M3FN, SCALES[0], DequantizeAttrs(1)),
        "rows turned": (F8E4M3FN, SCALES[0], DequantizeAttrs(0), None, True),
        "tensor": (F8E4M3FN, 0.3, DequantizeAttrs()),
        "four bits": (F4E2M1, SCALES, DequantizeAttrs(0, 32)),
        "column point": (I4, SCALES[0], DequantizeAttrs(1), RNG.integers(-8, 8, COLUMNS)),
    }


@pytest.mark.parametrize("name", CASES)
def test_the_product_stays_the_same(name: str) -> None:
    before = graph(*CASES[name])
    after = weight_quant_matmuls(fold_constants(before))
    assert "matmul_levels" in [n.op.name for n in after.nodes]
    assert "dequantize_linear" not in [n.op.name for n in after.nodes]
    x = RNG.standard_normal((3, DEPTH)).astype(np.float32)
    want, got = (evaluate_graph(g, {"x": x})["y"] for g in (before, after))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


def test_levels_of_four_bits_lie_two_to_a_byte() -> None:
    after = weight_quant_matmuls(graph(*CASES["blocks"]))
    sizes = [after.store.get(h).nbytes for h in after.constants.values()]
    assert max(sizes) == DEPTH * COLUMNS // 2


def test_blocks_across_the_sum_are_left() -> None:
    scales = RNG.uniform(0.1, 1, (DEPTH, COLUMNS // 32))
    before = graph(I4, scales, DequantizeAttrs(1, 32))
    assert weight_quant_matmuls(before) is before


def test_small_constants_become_floats() -> None:
    b = GraphBuilder("small")
    x = b.input("x", tensor(F32, 3, 8))
    w = b.constant(RNG.integers(-8, 8, (8, 8)).astype(np.int8), "w", I4)
    scale = b.constant(np.float32(0.5), "s")
    (f,) = b.add(OPS["dequantize_linear"], [w, scale], DequantizeAttrs())
    folded = fold_constants(b.finish(b.add(OPS["matmul"], [x, f], NoAttrs())))
    assert [n.op.name for n in weight_quant_matmuls(folded).nodes] == ["matmul"]
