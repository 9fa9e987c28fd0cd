"""Tests of compiled contractions against the evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.backends.cpu.codegen import compile_assembly
from tcc.backends.cpu.llvm.emit import emit_kernel
from tcc.ir.expr.scalar import Scalar, apply, argument, literal
from tcc.ir.index import const, iterator
from tcc.ir.tile import (
    Block,
    Compute,
    Contract,
    Load,
    Store,
    TileKernel,
    TileLoop,
    lanes,
)
from tcc.ir.types import BF16, F16, F32, I32, DType

from tests.backends.cpu.kernels import (
    RNG,
    SERVER,
    buffer,
    normal,
    output,
    var,
    zeros,
)
from tests.processors import distinct

RELU = apply("max", argument(0, F32), literal(0.0, F32))


def gemm(
    m_tile: int, n_tile: int, step: int, depth: int, rows: int, cols: int, last: Scalar = RELU
) -> TileKernel:
    n, m, k = iterator("n", cols), iterator("m", rows), iterator("k", depth)
    a_buf = buffer("A", F32, (rows * m_tile, depth))
    b_buf = buffer("B", F32, (cols, depth, n_tile))
    c_buf = output("C", F32, rows * m_tile, cols * n_tile)
    shape = (m_tile, n_tile)
    acc, c, d, total, y = (Block(x, F32, shape) for x in "acdsy")
    a, b = Block("a", F32, (m_tile, step)), Block("b", F32, (step, n_tile))
    l0, l1 = lanes(shape)
    a0, a1 = lanes(a.shape)
    b0, b1 = lanes(b.shape)
    loop = (
        Load(a, a_buf, (m * m_tile + a0, k + a1)),
        Load(b, b_buf, (n, k + b0, b1)),
        Contract(d, c, a, b, ("m", "n"), ("m", "k"), ("k", "n")),
    )
    body = (
        Compute(acc, literal(0.0, F32), ()),
        TileLoop(var(k), const(0), const(depth), step, (acc,), (c,), loop, (d,), (total,)),
        Compute(y, last, (total,)),
        Store(c_buf, (m * m_tile + l0, n * n_tile + l1), y),
    )
    return TileKernel((a_buf, b_buf, c_buf), (), (), (var(n), var(m)), body)


@pytest.mark.parametrize(
    ("m_tile", "n_tile", "step"), [(6, 64, 2), (6, 16, 4), (1, 13, 3), (5, 1, 2), (3, 37, 1)]
)
def test_gemm(check, m_tile, n_tile, step):
    kernel = gemm(m_tile, n_tile, step, 12, 3, 2)
    arrays = [normal(3 * m_tile, 12), normal(2, 12, n_tile), zeros(3 * m_tile, 2 * n_tile)]
    (out,) = check(kernel, arrays, rtol=1e-5, atol=1e-5)
    assert np.count_nonzero(out)


@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize(("m_tile", "n_tile"), [(6, 64), (12, 32), (12, 24), (8, 40), (6, 56)])
def test_sums_stay_in_registers(m_tile, n_tile, step):
    text = emit_kernel(gemm(m_tile, n_tile, step, 96, 2, 2), "k", SERVER).llvm
    lines = compile_assembly(text, SERVER).splitlines()
    spilled = [line for line in lines if "(%rsp)" in line and "mm" in line]
    # A widest tile of four steps spills a few elements, because it loads more ahead.
    assert len(spilled) <= (16 if step == 4 else 0)
    assert sum("vfmadd" in line for line in lines) == m_tile * -(-n_tile // 16) * step


@pytest.mark.parametrize("function", ["exp", "tanh", "erf"])
def test_constants_of_functions_take_no_registers_of_sums(function):
    kernel = gemm(6, 64, 2, 96, 2, 2, apply(function, argument(0, F32)))
    assembly = compile_assembly(emit_kernel(kernel, "k", SERVER).llvm, SERVER)
    lines = assembly.partition("k_units:")[2].partition(".globl")[0].splitlines()
    # Each accumulator is spilled and reloaded around the function.
    assert sum("(%rsp)" in line and "zmm" in line for line in lines) == 2 * 24
    assert sum("vfmadd" in line for line in lines) == 48


CONTRACTIONS = [
    # out, lhs, rhs
    (("m", "n"), ("m", "k"), ("k", "n")),
    (("m", "n"), ("k", "m"), ("k", "n")),
    (("m", "n"), ("n", "k"), ("k", "m")),
    (("m", "n"), ("m", "k"), ("n", "k")),
    (("p", "m", "n"), ("p", "m", "k"), ("k", "n")),
    (("p", "m", "n"), ("p", "m", "k"), ("p", "k", "n")),
    (("m", "n"), ("m", "k", "n"), ("k", "n")),
    (("m", "n"), ("n", "m"), ("n", "m")),
    (("n", "m"), ("m", "k", "j"), ("k", "j", "n")),
    (("m",), ("m", "k"), ("k",)),
    ((), ("k",), ("k",)),
]


@pytest.mark.parametrize("axes", CONTRACTIONS, ids=lambda a: "_".join("".join(x) for x in a))
@pytest.mark.parametrize("dtype", [F32, I32], ids=str)
def test_every_form_of_contraction(check, axes, dtype):
    sizes = {"m": 3, "n": 21, "k": 19, "p": 2, "j": 2}
    shapes = [tuple(sizes[x] for x in labels) for labels in axes]
    kernel = contraction(axes, shapes, dtype, dtype)
    arrays = [
        *(RNG.integers(-9, 9, s).astype(dtype.carrier) for s in (shapes[0], *shapes[1:])),
        np.zeros(shapes[0], dtype.carrier),
    ]
    check(kernel, arrays)


def contraction(axes, shapes, dtype: DType, narrow: DType) -> TileKernel:
    names = ("acc", "a", "b")
    types = (dtype, narrow, narrow)
    buffers = [buffer(n, t, s) for n, t, s in zip(names, types, shapes, strict=True)]
    blocks = [Block(n, t, s) for n, t, s in zip(names, types, shapes, strict=True)]
    out_buf, out = output("out", dtype, *shapes[0]), Block("out", dtype, shapes[0])
    body = (
        *(Load(b, x, lanes(b.shape)) for b, x in zip(blocks, buffers, strict=True)),
        Contract(out, *blocks, *axes),
        Store(out_buf, lanes(out.shape), out),
    )
    return TileKernel((*buffers, out_buf), (), (), (var(iterator("u", 1)),), body)


@pytest.mark.parametrize("target", distinct("host", "x86-64-v3", "x86-64-v2"), indirect=True)
@pytest.mark.parametrize("narrow", [BF16, F16], ids=str)
def test_contraction_of_narrow_operands_sums_in_f32(check, narrow):
    axes = (("m", "n"), ("m", "k"), ("k", "n"))
    shapes = [(4, 33), (4, 8), (8, 33)]
    arrays = [RNG.integers(-8, 8, s).astype(np.float32) for s in (*shapes, shapes[0])]
    arrays = [arrays[0], *(a.astype(narrow.carrier) for a in arrays[1:3]), arrays[3]]
    check(contraction(axes, shapes, F32, narrow), arrays)
