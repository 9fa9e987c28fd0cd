"""Levels are multiplied as bytes, and the other operand is rounded in groups of 32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.ir.graph import Graph
from tcc.ir.tile import Contract, TileKernel, walk_statements
from tcc.ir.types import BF16, F32, I8, I32, U8, DType
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
from tests.passes.quantize.test_precision import array, run

Array = np.ndarray[Any, np.dtype[Any]]
COLUMNS = 400


def rounded_bytes(x: Array) -> tuple[Array, Array]:
    """Returns the bytes of x as integers, [rows, groups, 32], and the f32 scale of each group.

    NumPy rounds in f32.
    """
    groups = x.reshape(len(x), -1, 32)
    largest = np.maximum(np.abs(groups).max(-1, keepdims=True), np.float32(2.0**-100))
    return np.rint(groups * (np.float32(127) / largest)).astype(np.int64), largest[..., 0] / 127


def summed(x: Array, levels: Array, scales: Array, block: int) -> Array:
    """Returns rounded x times levels [depth, columns], with one scale per `block` levels.

    The sums in groups are integers, and all other arithmetic is in f64.
    """
    bytes_, steps = rounded_bytes(x)
    size = min(block, 32)
    bytes_ = bytes_.reshape(len(x), -1, size)
    parts = levels.reshape(-1, size, levels.shape[1]).astype(np.int64)
    sums = np.einsum("igk,gkj->igj", bytes_, parts)
    wide = np.repeat(scales.astype(np.float64), block // size, 0)
    return np.einsum("igj,ig,gj->ij", sums, np.repeat(steps, 32 // size, 1), wide)


def contracted(graph: Graph, precision: Precision) -> list[tuple[set[DType], DType]]:
    """Returns the operand types and the accumulator type of each Contract."""
    _, table, _ = lower_program(
        place_graph(graph, precision), CoreChooser(CoreModel(16, 32)), lower_node, precision
    )
    kernels: list[TileKernel] = [bound.kernel for bound in table.bounds]
    nodes = [n for k in kernels for n in walk_statements(k.body) if isinstance(n, Contract)]
    return [({n.a.dtype, n.b.dtype}, n.acc.dtype) for n in nodes]


def close(got: Array, want: Array) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6 * np.abs(want).max())


def drawn(rows: int, depth: int) -> Array:
    """Returns rows of random magnitudes; the first group of the last row is zero."""
    rng = np.random.default_rng([rows, depth])
    x = rng.standard_normal((rows, depth)) * np.exp2(rng.integers(-20, 20, (rows, 1)))
    x[-1, :32] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("kind", [U8, I8])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("depth", [96, 128])
def test_sums_of_groups_are_exact(rows: int, depth: int, bits: int, kind: DType) -> None:
    m = Model("weights")
    w = m.weight(depth, COLUMNS)
    graph = m.finish(m.op("matmul", m.input("x", rows, depth), w))
    precision = Precision(F32, bits, level_bytes=kind)
    assert ({I8, kind}, I32) in contracted(graph, precision)
    x = drawn(rows, depth)
    levels = quantized(array(graph, w), 0, bits)
    assert levels is not None
    close(run(graph, precision, x), summed(x, *levels, group_size(depth)))


def with_stored_levels(
    rows: int, bits: int, block: int, zeros: bool, depth: int = 192
) -> tuple[Graph, Array, Array, Array]:
    """Returns a matmul of x by levels that the model stores, and the levels, scales and zero
    points."""
    m = Model("stored levels")
    rng = np.random.default_rng([rows, bits, block])
    low, high = (-8, 8) if bits == 4 else (-128, 128)
    levels = rng.integers(low, high, (depth, COLUMNS)).astype(np.int8)
    shape = (depth // block, COLUMNS)
    scales = rng.uniform(-1, 1, shape).astype(np.float32)
    points = rng.integers(-8, 8, shape).astype(np.int8)
    operands = [nibbles(levels, 0) if bits == 4 else levels, scales, *([points] if zeros else [])]
    values = [m.builder.constant(a, f"c{n}") for n, a in enumerate(operands)]
    x = m.input("x", rows, depth)
    product = m.op("matmul_levels", x, *values, attrs=LevelsAttrs(bits, block))
    return m.finish(product), levels, scales, points * zeros


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [16, 32, 64, 192])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 6])
def test_stored_levels(rows: int, bits: int, block: int, zeros: bool) -> None:
    whole, levels, scales, points = with_stored_levels(rows, bits, block, zeros)
    graph = split_level_zeros(whole)
    precision = Precision(level_bytes=U8)
    assert ({I8, U8}, I32) in contracted(graph, precision)
    x = drawn(rows, len(levels))
    sums = x.astype(np.float64).reshape(rows, -1, block).sum(-1)
    want = summed(x, levels, scales, block) - sums @ (scales.astype(np.float64) * points)
    close(run(graph, precision, x), want)


@pytest.mark.parametrize("block", [24, 3])
def test_other_groups_stay_floats(block: int) -> None:
    graph, levels, scales, _ = with_stored_levels(5, 8, block, zeros=False)
    precision = Precision(level_bytes=U8)
    assert all(dtype is F32 for _, dtype in contracted(graph, precision))
    x = drawn(5, len(levels))
    matrix = levels * np.repeat(scales.astype(np.float64), block, 0)
    np.testing.assert_allclose(run(graph, precision, x), x @ matrix, rtol=1e-4, atol=1e-2)


def test_matmuls_of_one_value_share_its_bytes() -> None:
    m = Model("shared")
    x = m.input("x", 4, 128)
    products = [m.op("matmul", x, m.weight(128, n)) for n in (256, 512)]
    graph = m.finish(*products)
    placed = place_graph(graph, Precision(F32, 4, level_bytes=U8))
    rounding = [k for k in placed.kernels if k.operands == (x,)]
    assert len(rounding) == 1
    assert all(x not in k.operands for k in placed.kernels if k not in rounding)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_of_no_numbers_is_no_number(value: float) -> None:
    graph, levels, _, _ = with_stored_levels(3, 4, 32, zeros=False)
    x = drawn(3, len(levels))
    x[1, 40] = value
    got = run(graph, Precision(level_bytes=U8), x)
    assert not np.isfinite(got[1]).any()
    assert np.isfinite(got[[0, 2]]).all()


def test_bf16_rounds_no_factor_of_levels() -> None:
    m = Model("bf16")
    hidden = m.op("relu", m.op("matmul", m.input("x", 6, 64), m.weight(64, 128)))
    graph = m.finish(m.op("matmul", hidden, m.weight(128, COLUMNS)))
    precision = Precision(BF16, 8, pairs=True, level_bytes=U8)
    assert [kinds for kinds, _ in contracted(graph, precision) if BF16 in kinds] == []
