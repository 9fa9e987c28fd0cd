"""Tests of compiled hand-written kernels with reductions, relayouts and control flow.

The oracle is the evaluator.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from tcc.backends.cpu.codegen import compile_assembly
from tcc.backends.cpu.llvm.emit import emit_kernel
from tcc.ir.expr.scalar import apply, argument, cast, index_value, literal
from tcc.ir.index import const, floordiv, iterator, maximum, symbol
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    If,
    Load,
    MemorySpace,
    Reduce,
    Relayout,
    Store,
    Sync,
    TileBuffer,
    TileKernel,
    TileLoop,
    lanes,
)
from tcc.ir.types import F16, F32, F64, I8, I32, I64, U8

from tests.backends.cpu.kernels import (
    RNG,
    SERVER,
    buffer,
    check_all,
    copy_kernel,
    normal,
    output,
    var,
    zeros,
)
from tests.closeness import assert_within


@pytest.mark.parametrize("dtype", [F32, F64, I32, F16], ids=str)
def test_reduce(check, dtype):
    shape = (2, 3, 21)
    parts = []
    for monoid in ("sum", "prod", "max", "min"):
        for axes in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
            out_shape = tuple(1 if n in axes else s for n, s in enumerate(shape))
            x, y = buffer("x", dtype, shape), output("y", dtype, *out_shape)
            a, b = Block("a", dtype, shape), Block("b", dtype, out_shape)
            body = (
                Load(a, x, lanes(shape)),
                Reduce((b,), monoid, (a,), axes),
                Store(y, lanes(out_shape), b),
            )
            data = RNG.integers(-9, 9, shape)
            # Few factors differ from 1 and -1, so products are exact in every order.
            if monoid == "prod":
                data = np.where(data < 0, -1, 1) * np.where(RNG.random(shape) < 0.1, 2, 1)
            arrays = [data.astype(dtype.carrier), np.zeros(out_shape, dtype.carrier)]
            parts.append((TileKernel((x, y), (), (), (), body), arrays))
    check_all(check, parts)


def test_reduce_of_carried_and_fresh_blocks(check):
    """A reduction combines tails of a carried block and of a fresh block, whose registers
    differ."""
    shape, size = (4, 37), (4, 1)
    k = iterator("k", 3)
    x, y, z = buffer("x", F32, (3, *shape)), output("y", F32, *size), output("z", I64, *size)
    a, c, d, total = (Block(name, F32, shape) for name in ("a", "c", "d", "total"))
    start, place = Block("start", F32, shape), Block("place", I64, shape)
    best, where = Block("best", F32, size), Block("where", I64, size)
    loop = (
        Load(a, x, (k, *lanes(shape))),
        Compute(d, apply("max", argument(0, F32), argument(1, F32)), (c, a)),
    )
    body = (
        Compute(start, literal(-math.inf, F32), ()),
        TileLoop(var(k), const(0), const(3), 1, (start,), (c,), loop, (d,), (total,)),
        Compute(place, index_value(lanes(shape)[1], I64), ()),
        Reduce((best, where), "argmax", (total, place), (1,)),
        Store(y, lanes(size), best),
        Store(z, lanes(size), where),
    )
    data = normal(3, *shape)
    # the first and the last NaN in the reduction's order
    data[0, 1, 36] = data[2, 2, 3] = np.nan
    kernel = TileKernel((x, y, z), (), (), (var(iterator("u", 1)),), body)
    _, outputs = check(kernel, [data, zeros(*size), zeros(*size, dtype=np.int64)])
    assert outputs[1:3].tolist() == [[36], [3]]


@pytest.mark.parametrize(("function", "least"), [("max", "vmaxps"), ("min", "vminps")])
def test_an_extremum_of_vectors_is_two_instructions(function, least):
    x, y, z = buffer("x", F32, (16,)), buffer("y", F32, (16,)), output("z", F32, 16)
    a, b, c = (Block(name, F32, (16,)) for name in "abc")
    body = (
        Load(a, x, lanes((16,))),
        Load(b, y, lanes((16,))),
        Compute(c, apply(function, argument(0, F32), argument(1, F32)), (a, b)),
        Store(z, lanes((16,)), c),
    )
    text = emit_kernel(TileKernel((x, y, z), (), (), (), body), "k", SERVER).llvm
    lines = compile_assembly(text, SERVER).splitlines()
    assert sum(least in line for line in lines) == 1
    assert sum("vcmp" in line for line in lines) == 1
    assert not any("vblend" in line for line in lines)


def test_reduce_of_tuples(check):
    shape, out_shape = (4, 37), (4, 1)
    x, y, z = buffer("x", F32, shape), output("y", F32, *out_shape), output("z", I64, *out_shape)
    a, i = Block("a", F32, shape), Block("i", I64, shape)
    best, where = Block("best", F32, out_shape), Block("where", I64, out_shape)
    l0, l1 = lanes(shape)
    body = (
        Load(a, x, (l0, l1)),
        Compute(i, index_value(l1 + 5 * l0, I64), ()),
        Reduce((best, where), "argmax", (a, i), (1,)),
        Store(y, lanes(out_shape), best),
        Store(z, lanes(out_shape), where),
    )
    data = RNG.integers(0, 9, shape).astype(np.float32)
    data[2, 11] = np.nan
    kernel = TileKernel((x, y, z), (), (), (var(iterator("u", 1)),), body)
    check(kernel, [data, zeros(4, 1), zeros(4, 1, dtype=np.int64)])


def test_reduce_of_two_side_by_side(check):
    """Each component of a tuple monoid combines like its own monoid alone."""
    shape, out_shape = (3, 50), (3, 1)
    x, y = buffer("x", F32, shape), output("y", F32, 3, 2)
    a, total, most = Block("a", F32, shape), *(Block(n, F32, out_shape) for n in ("total", "most"))
    l0, l1 = lanes(out_shape)
    body = (
        Load(a, x, lanes(shape)),
        Reduce((total, most), "sum_max", (a, a), (1,)),
        *(Store(y, (l0, l1 + n), block) for n, block in enumerate((total, most))),
    )
    data = normal(3, 50)
    kernel = TileKernel((x, y), (), (), (var(iterator("u", 1)),), body)
    # A sum of 50 terms is off by at most 49 roundings of the sum of their magnitudes.
    bound = 49 * 2.0**-24 * np.abs(data).sum(1)
    (sums,) = check(kernel, [data, zeros(3, 2)], rtol=1e-6, atol=2 * bound.max())
    assert_within(sums[:, 0], data.astype(np.float64).sum(1), bound)
    np.testing.assert_array_equal(sums[:, 1], data.max(1))


RELAYOUTS = [
    # shape, order, result
    ((16, 16), (1, 0), (16, 16)),
    ((8, 8), (1, 0), (8, 8)),
    ((3, 21), (1, 0), (21, 3)),
    ((2, 16, 16), (0, 2, 1), (2, 16, 16)),
    ((4, 2, 16), (1, 0, 2), (2, 64)),
    ((6, 4), (0, 1), (2, 12)),
    ((2, 3, 5), (2, 0, 1), (30,)),
    ((16, 1), (1, 0), (1, 16)),
    ((1, 16), (1, 0), (16, 1)),
    ((48,), (0,), (3, 16)),
    ((4, 16), (1, 0), (16, 4)),
    ((32, 6), (1, 0), (6, 32)),
    ((13, 5), (1, 0), (5, 13)),
]


@pytest.mark.parametrize("dtype", [F32, I8], ids=str)
def test_relayout(check, dtype):
    parts = []
    for shape, order, out_shape in RELAYOUTS:
        x, y = buffer("x", dtype, shape), output("y", dtype, *out_shape)
        a, b = Block("a", dtype, shape), Block("b", dtype, out_shape)
        body = (Load(a, x, lanes(shape)), Relayout(b, a, order), Store(y, lanes(out_shape), b))
        arrays = [normal(*shape).astype(dtype.carrier), np.zeros(out_shape, dtype.carrier)]
        parts.append((TileKernel((x, y), (), (), (), body), arrays))
    check_all(check, parts)


def test_a_square_transpose_takes_four_rounds(target):
    shape = (16, 16)
    x, y = buffer("x", F32, shape), output("y", F32, *shape)
    l0, l1 = lanes(shape)
    kernel = copy_kernel(x, y, shape, (l1, l0), (l0, l1))
    text = emit_kernel(kernel, "k", target).llvm
    lanes_of = target.profile.lanes(32)
    rounds = lanes_of.bit_length() - 1
    assert text.count("shufflevector") == 256 // lanes_of * rounds
    assert "insertelement" not in text


def test_broadcast(check):
    x, y = buffer("x", F32, (3, 1, 1)), output("y", F32, 3, 2, 21)
    a, b = Block("a", F32, (3, 1, 1)), Block("b", F32, (3, 2, 21))
    body = (Load(a, x, lanes(a.shape)), Broadcast(b, a), Store(y, lanes(b.shape), b))
    kernel = TileKernel((x, y), (), (), (var(iterator("u", 1)),), body)
    check(kernel, [normal(3, 1, 1), zeros(3, 2, 21)])


@pytest.mark.parametrize("size", [0, 3, 8])
def test_nested_loops_of_symbolic_length(check, size):
    """A loop that may not run contains a loop whose bounds depend on it."""
    n = symbol("n")
    i, j = iterator("i", n), iterator("j", n)
    x, y = buffer("x", F32, (maximum(n, 1), 5)), output("y", F32, 5)
    zero, c, d, e, total, term, sums = (Block(s, F32, (5,)) for s in "zcdetms")
    (l0,) = lanes((5,))
    inner = (
        Load(term, x, (j, l0)),
        Compute(e, apply("add", argument(0, F32), argument(1, F32)), (d, term)),
    )
    body = (
        Compute(zero, literal(0.5, F32), ()),
        TileLoop(
            var(i), const(0), n, 1, (zero,), (c,),
            (TileLoop(var(j), i, n, 1, (c,), (d,), inner, (e,), (sums,)),), (sums,), (total,),
        ),
        Store(y, (l0,), total),
    )  # fmt: skip
    kernel = TileKernel((x, y), (), (var(n),), (var(iterator("u", 1)),), body)
    data = RNG.integers(0, 9, (max(size, 1), 5)).astype(np.float32)
    check(kernel, [data, zeros(5)], {"n": size})


def test_branches_and_local_memory(check):
    u = iterator("u", 5)
    x, y = buffer("x", F32, (5, 20)), output("y", F32, 5, 20)
    tmp = TileBuffer("tmp", F32, (const(20),), MemorySpace.LOCAL)
    other = TileBuffer("other", F32, (const(3),), MemorySpace.LOCAL)
    a, b, c = (Block(s, F32, (20,)) for s in "abc")
    (l0,) = lanes((20,))
    body = (
        Load(a, x, (u, l0)),
        Store(tmp, (19 - l0,), a),
        Sync(),
        Load(b, tmp, (l0,)),
        If(
            u,
            const(2),
            (Store(y, (u, l0), b),),
            (Compute(c, apply("neg", argument(0, F32)), (b,)), Store(y, (u, l0), c)),
        ),
    )
    kernel = TileKernel((x, y), (tmp, other), (), (var(u),), body)
    check(kernel, [normal(5, 20), zeros(5, 20)])


def test_tiles_over_several_axes(check):
    n = symbol("n")
    u, v, w = iterator("u", 2), iterator("v", n), iterator("w", 3)
    y = output("y", I64, 2, n, 3)
    block = Block("b", I64, ())
    body = (
        Compute(block, index_value(u * 100 + v * 10 + w, I64), ()),
        Store(y, (u, v, w), block),
    )
    kernel = TileKernel((y,), (), (var(n),), (var(u), var(v), var(w)), body)
    check(kernel, [zeros(2, 4, 3, dtype=np.int64)], {"n": 4})


@pytest.mark.parametrize("dtype", [F32, F64, F16, I8, I32, I64, U8], ids=str)
def test_index_values(check, dtype):
    u = iterator("u", 3)
    shape = (2, 21)
    y, block = output("y", dtype, 3, *shape), Block("b", dtype, shape)
    l0, l1 = lanes(shape)
    body = (
        Compute(
            block,
            apply(
                "add",
                index_value(u * 3 - l1 + 2 * l0, dtype),
                index_value(floordiv(l1 + u, 5), dtype),
            ),
            (),
        ),
        Store(y, (u, l0, l1), block),
    )
    kernel = TileKernel((y,), (), (), (var(u),), body)
    check(kernel, [np.zeros((3, *shape), dtype.carrier)])


def test_rows_are_computed_before_they_are_repeated(target):
    """A chain of functions of one value per row costs one scalar per row."""
    shape = (4, 64)
    x, s, y = buffer("x", F32, shape), buffer("s", F32, (4, 1)), output("y", F32, *shape)
    a, b, c = Block("a", F32, shape), Block("b", F32, (4, 1)), Block("c", F32, shape)
    scale = apply("sqrt", apply("abs", argument(1, F32)))
    body = (
        Load(a, x, lanes(shape)),
        Load(b, s, lanes((4, 1))),
        Compute(c, apply("mul", argument(0, F32), scale), (a, b)),
        Store(y, lanes(shape), c),
    )
    text = emit_kernel(TileKernel((x, s, y), (), (), (), body), "k", target).llvm
    assert text.count("call float @llvm.sqrt.f32") == 4
    assert "@llvm.sqrt.v" not in text


def test_select_of_casts(check):
    x, y = buffer("x", F32, (3, 20)), output("y", U8, 3, 20)
    a, b = Block("a", F32, (3, 20)), Block("b", U8, (3, 20))
    arg = argument(0, F32)
    selected = apply("select", apply("lt", arg, literal(0.0, F32)), literal(3, U8), cast(arg, U8))
    body = (Load(a, x, lanes(a.shape)), Compute(b, selected, (a,)), Store(y, lanes(b.shape), b))
    kernel = TileKernel((x, y), (), (), (var(iterator("u", 1)),), body)
    check(kernel, [normal(3, 20) * 200, zeros(3, 20, dtype=np.uint8)])
