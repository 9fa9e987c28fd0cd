"""Levels are multiplied as pairs of bf16, and only the other operand is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.ir.graph import Graph, Value
from tcc.ir.tile import Contract, TileKernel, walk_statements
from tcc.ir.types import BF16, DType
from tcc.ops.algebra.levels import LevelsAttrs, nibbles
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.quantize.precision import Precision
from tcc.passes.quantize.quantize_weights import group_size, quantized
from tcc.passes.quantize.split_level_zeros import split_level_zeros
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import CoreModel

from tests.passes.fuse.models import Model
from tests.passes.placing import place_graph
from tests.passes.quantize.test_precision import PAIRS, array, bf16, run, stored

Array = np.ndarray[Any, np.dtype[Any]]
PAIRS_OF_BITS = {bits: Precision(BF16, bits, pairs=True) for bits in (4, 8)}


def with_levels(rows: int, depth: int, columns: int) -> tuple[Graph, Value, Value]:
    """Returns relu(x @ v) @ w, where v is small and stays f32."""
    m = Model("levels")
    v, w = m.weight(8, depth), m.weight(depth, columns)
    hidden = m.op("relu", m.op("matmul", m.input("x", rows, 8), v))
    return m.finish(m.op("matmul", hidden, w)), v, w


def contracted(graph: Graph, precision: Precision) -> list[set[DType]]:
    """Returns the operand types of each Contract."""
    planner = CoreChooser(CoreModel(16, 32))
    placed = place_graph(graph, precision)
    _, table, _ = lower_program(placed, planner, lower_node, precision)
    kernels: list[TileKernel] = [bound.kernel for bound in table.bounds]
    nodes = [n for k in kernels for n in walk_statements(k.body) if isinstance(n, Contract)]
    return [{n.a.dtype, n.b.dtype} for n in nodes]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("depth", [128, 48, 66, 131])
def test_only_the_other_factor_is_rounded(rows: int, depth: int, bits: int) -> None:
    graph, v, w = with_levels(rows, depth, 400)
    precision = PAIRS_OF_BITS[bits]
    assert BF16 in stored(place_graph(graph, precision)).values()
    assert {BF16} in contracted(graph, precision)
    x = np.random.default_rng(7).standard_normal((rows, 8)).astype(np.float32)
    hidden = bf16(np.maximum(x @ array(graph, v), 0))
    levels = quantized(array(graph, w), 0, 8 if depth % 2 else bits)
    assert levels is not None
    scales = np.repeat(levels[1].astype(np.float64), group_size(depth), 0)
    want = hidden @ (levels[0] * scales)
    got = run(graph, precision, x)
    # bf16 rounds x differently if f32 differs in its last bit, so that a few elements may change.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-3 * np.abs(want).max())
    assert np.abs(got - want).mean() < 2e-5 * np.abs(want).max()


def with_stored_levels(rows: int, bits: int, block: int, kind: type) -> tuple[Graph, Array]:
    """Returns relu(x @ v) times levels that the model stores, and the f64 matrix of their values.

    `kind` is the type of the zero points.
    """
    depth, columns = 8 * 24, 400
    m = Model("stored levels")
    hidden = m.op("relu", m.op("matmul", m.input("x", rows, 8), m.weight(8, depth)))
    rng = np.random.default_rng(8)
    low, high = (-8, 8) if bits == 4 else (-128, 128)
    levels = rng.integers(low, high, (depth, columns)).astype(np.int8)
    shape = (depth // block, columns)
    scales = rng.uniform(-1, 1, shape).astype(np.float32)
    zeros = rng.uniform(-8, 8, shape).astype(kind)
    operands = [nibbles(levels, 0) if bits == 4 else levels, scales, zeros]
    values = [m.builder.constant(a, f"c{n}") for n, a in enumerate(operands)]
    product = m.op("matmul_levels", hidden, *values, attrs=LevelsAttrs(bits, block))
    wide = levels - np.repeat(zeros.astype(np.float64), block, 0)
    return m.finish(product), wide * np.repeat(scales.astype(np.float64), block, 0)


@pytest.mark.parametrize("kind", [np.int8, np.float32])
@pytest.mark.parametrize("block", [32, 16, 24, 3])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 5, 48])
def test_zero_points_multiply_sums(rows: int, bits: int, block: int, kind: type) -> None:
    whole, matrix = with_stored_levels(rows, bits, block, kind)
    graph = split_level_zeros(whole)
    names = [n.op.name for n in graph.nodes]
    assert names[-3:] == ["matmul_levels", "matmul_zeros", "sub"]
    assert split_level_zeros(graph) is graph
    assert ({BF16} in contracted(graph, PAIRS)) == (block % 2 == 0 or bits == 8)
    x = np.random.default_rng(7).standard_normal((rows, 8)).astype(np.float32)
    v = next(c for c in graph.constants if c.name == "w")
    want = bf16(np.maximum(x @ array(graph, v), 0)) @ matrix
    got = run(graph, PAIRS, x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-3 * np.abs(want).max())
    assert np.abs(got - want).mean() < 2e-5 * np.abs(want).max()
