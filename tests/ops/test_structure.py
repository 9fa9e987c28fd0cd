"""Structural rows beyond the matrix: symbolic sizes, indices that simplify, hostile indices,
operands that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tcc.ir.expr import reads
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.graph import bind_attrs
from tcc.ir.index import Index, const, evaluate, free_vars, symbol
from tcc.ir.layout import offset, permuted, row_major
from tcc.ir.types import BOOL, F32, I64, TensorType, dtype_of, tensor
from tcc.ops import OPS
from tcc.ops.algebra.contract import EinsumAttrs
from tcc.ops.algebra.create import DimsAttrs, RangeAttrs
from tcc.ops.algebra.movement import (
    ConcatAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    SliceAttrs,
    SplitAttrs,
    TileAttrs,
    TransposeAttrs,
)
from tcc.ops.algebra.pad import PadAttrs
from tcc.ops.algebra.pool import PoolAttrs
from tcc.ops.algebra.window import ConvAttrs, ConvTransposeAttrs
from tcc.ops.composite.attention import AttentionAttrs
from tcc.ops.composite.resize import ResizeAttrs
from tcc.ops.composite.signal import DftAttrs
from tcc.ops.data.indexing import GatherNdAttrs
from tcc.ops.shapes import AxisAttrs

N, S, T, M = (symbol(name, 1) for name in "nstm")
SIZES = {"n": 3, "s": 5}


def dims(*values: Index | int) -> tuple[Index, ...]:
    return tuple(v if isinstance(v, Index) else const(v) for v in values)


CONV = ConvAttrs((2,), (1,), (1,), (1,), 1)
POOL = PoolAttrs((2,), (1,), (1,), (1,), (3,), ceil_mode=True)
# On the axes of 3 and 5 elements, the size 3 stays 3.
KEPT = ResizeAttrs(dims(N * 5 // 4, 2, S * 5 // 4), (1.25, 1.0, 1.25), "linear", "kept_half_pixel")

SYMBOLIC = [
    ("reshape", [(N, S * 4)], ReshapeAttrs(dims(N, S, 4))),
    ("reshape", [(N, S, 4)], ReshapeAttrs(dims(N * S, 4))),
    ("reshape", [(N, S)], ReshapeAttrs(dims(S, N))),
    ("transpose", [(N, S, 2)], TransposeAttrs((2, 0, 1))),
    ("expand", [(1, S)], ExpandAttrs(dims(N, S))),
    ("slice", [(S, 4)], SliceAttrs(dims(S - 1, 1), (-1, 2), dims(S, 2))),
    ("concat", [(N, 2), (S, 2), (1, 2)], ConcatAttrs(0)),
    ("split", [(N + S, 2)], SplitAttrs(0, dims(N, S))),
    ("tile", [(N, 2)], TileAttrs(dims(2, S))),
    ("pad", [(N, S)], PadAttrs(dims(1, 0), dims(0, 2), "constant")),
    ("pad", [(N, S)], PadAttrs(dims(1, 0), dims(0, 2), "reflect")),
    ("matmul", [(N, S, 4), (4, 2)], OPS["matmul"].attrs()),
    ("gemm", [(S, 4), (4, 2), (2,)], OPS["gemm"].attrs()),
    ("einsum", [(N, S, 4), (N, 4, S)], EinsumAttrs("bij,bjk->bik")),
    ("conv", [(N, 2, S), (3, 2, 3)], CONV),
    ("conv_transpose", [(N, 2, S), (2, 3, 3)], ConvTransposeAttrs((2,), (1,), (0,), (1,), (1,), 1)),
    ("max_pool", [(N, 2, S)], POOL),
    ("average_pool", [(N, 2, S)], POOL),
    ("resize", [(N, 2, S)], ResizeAttrs(dims(N, 2, S * 2), (1.0, 1.0, 2.0))),
    ("resize", [(N, 2, S)], ResizeAttrs(dims(N, 2, S + 2), (None, None, None), mode="linear")),
    ("resize", [(N, 2, S)], KEPT),
    ("resize", [(N, 2, S)], replace(KEPT, taps=dims(4)[0], coordinate_mode="asymmetric")),
    ("dims", [], DimsAttrs(dims(N * S, 2, S // 2))),
    ("dft", [(N, S, 1)], DftAttrs(1, S, False, True)),
    (
        "attention",
        [(N, 2, S, 4), (N, 2, S, 4), (N, 2, S, 4)],
        AttentionAttrs(0.5, True, 0.0, const(0)),
    ),
]


@pytest.mark.parametrize(("name", "shapes", "attrs"), SYMBOLIC)
def test_one_expression_serves_all_sizes(
    name: str, shapes: list[tuple[Index | int, ...]], attrs: Any
) -> None:
    types = [tensor(F32, *shape) for shape in shapes]
    inferred = OPS[name].infer(types, attrs)
    make = OPS[name].expr
    assert make is not None
    expr = make(types, attrs)
    assert expr.types == inferred
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(bound(t)).astype(np.float32) for t in types]
    values = {v: const(SIZES[v.name]) for size in (N, S) for v in free_vars(size)}
    results_of_reference = OPS[name].reference(arrays, bind_attrs(attrs, values))
    for actual, expected, type in zip(
        evaluate_expr(expr, arrays, SIZES), results_of_reference, inferred, strict=True
    ):
        assert bound(type) == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def bound(type: TensorType, sizes: Mapping[str, int] = SIZES) -> tuple[int, ...]:
    return tuple(int(evaluate(dim, sizes)) for dim in type.shape)


@pytest.mark.parametrize(
    ("before", "after", "indices"),
    [
        ((N, S * 64), (N, S, 64), "i0 | 64*i1+i2"),
        ((N, S, 64), (N, S * 64), "i0 | (i1//64) | (i1 % 64)"),
        ((1, N, 1), (N,), "0 | i0 | 0"),
        ((N,), (1, N, 1), "i1"),
        ((N, S, T, 8), (N, M, 8), "i0 | (i1//t) | (i1 % t) | i2"),
        ((N, M, S), (N, S, T, S), "i0 | i1*t+i2 | i3"),
    ],
)
def test_reshape_indices_simplify(
    before: tuple[Index | int, ...], after: tuple[Index | int, ...], indices: str
) -> None:
    make = OPS["reshape"].expr
    assert make is not None
    expr = make([tensor(F32, *before)], ReshapeAttrs(dims(*after)))
    (read,) = reads(expr.stages[0])
    assert " | ".join(i.key for i in read.indices) == indices


def test_nearest_resize_by_a_whole_scale_reads_at_a_quotient() -> None:
    make = OPS["resize"].expr
    assert make is not None
    attrs = ResizeAttrs(dims(1, 3, S * 2), (1.0, 1.0, 2.0), "nearest", "asymmetric", "floor")
    (read,) = reads(make([tensor(F32, 1, 3, S)], attrs).stages[0])
    assert not read.indirect
    assert read.indices[2].key == "(i2//2)"


@pytest.mark.parametrize("bad", [99, -99, 2**62, -(2**63)])
@pytest.mark.parametrize(
    ("name", "attrs", "shape"),
    [
        ("gather", AxisAttrs(0), (3,)),
        ("gather_elements", AxisAttrs(0), (3, 2)),
        ("gather_nd", GatherNdAttrs(0), (3, 1)),
    ],
)
def test_hostile_indices_stay_inside(
    name: str, attrs: Any, shape: tuple[int, ...], bad: int
) -> None:
    x, indices = np.ones((4, 2), np.float32), np.full(shape, bad)
    make = OPS[name].expr
    assert make is not None
    expr = make([tensor(dtype_of(a), *a.shape) for a in (x, indices)], attrs)
    (y,) = evaluate_expr(expr, (x, indices))
    assert (y == 1).all()


REFUSED = [
    ("reshape", [tensor(F32, 2, 3)], ReshapeAttrs(dims(4, 2)), "6 elements"),
    ("transpose", [tensor(F32, 2, 3)], TransposeAttrs((0, 0)), "no permutation"),
    ("concat", [tensor(F32, 2, 3), tensor(F32, 2, 4)], ConcatAttrs(0), "differ at axis 1"),
    ("concat", [tensor(F32, 2), tensor(I64, 2)], ConcatAttrs(0), "differ"),
    ("split", [tensor(F32, 7)], SplitAttrs(0, dims(3, 3)), "7 and 6 differ"),
    ("pad", [tensor(F32, 2)], PadAttrs(dims(-2), dims(-1), "constant"), "crops more"),
    ("matmul", [tensor(F32, 2, 3), tensor(F32, 4, 5)], OPS["matmul"].attrs(), "summed dims"),
    ("matmul", [tensor(F32), tensor(F32, 4)], OPS["matmul"].attrs(), "no scalars"),
    ("einsum", [tensor(F32, 2, 3)], EinsumAttrs("ij->ik"), "new output axis"),
    ("conv", [tensor(F32, 1, 3, 8), tensor(F32, 4, 2, 3)], CONV, "channels"),
    ("conv", [tensor(F32, 1, 2, 0), tensor(F32, 4, 2, 9)], CONV, "larger than"),
    ("gather", [tensor(F32, 2), tensor(F32, 2)], AxisAttrs(0), "indices are i32 or i64"),
    ("gather_nd", [tensor(F32, 2), tensor(I64, 2, S)], GatherNdAttrs(0), "must be known"),
    ("range", [tensor(I64, 1), tensor(I64), tensor(I64)], RangeAttrs(N), "scalars"),
    ("resize", [tensor(BOOL, 2)], ResizeAttrs(dims(4), (2.0,), mode="linear"), "floating types"),
]


@pytest.mark.parametrize(("name", "types", "attrs", "message"), REFUSED)
def test_refused_operands(name: str, types: list[TensorType], attrs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OPS[name].infer(types, attrs)


def test_a_reshape_of_symbolic_rows_reads_without_a_division() -> None:
    """Rows of a batch and a length, both symbolic, are read without a division."""
    make = OPS["reshape"].expr
    assert make is not None
    shape = dims(N, S, 64)
    (read,) = reads(make([tensor(F32, *shape)], ReshapeAttrs(dims(N * S, 64))).stages[0])
    assert [i.key for i in read.indices] == ["(i0//s)", "(i0 % s)", "i1"]
    assert offset(row_major(shape), read.indices).key == "64*i0+i1"
    transposed = permuted(shape, (1, 0, 2))
    assert offset(transposed, read.indices).key == "64*(i0 % s)*n+64*(i0//s)+i1"
