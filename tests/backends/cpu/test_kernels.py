"""Hand-written kernels, compiled, against the evaluator."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tcc.backends.cpu.codegen import compile_assembly
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.emit import emit_kernel
from tcc.ir.index import Index, Var, const, floordiv, iterator, maximum, mod, symbol, var_of
from tcc.ir.scalar import apply, argument, cast, index_value, literal
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    Guard,
    If,
    Load,
    Loop,
    Prefetch,
    Reduce,
    Relayout,
    Scope,
    Store,
    Sync,
    TileBuffer,
    TileKernel,
    lanes,
)
from tcc.ir.types import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from tcc.ir.verify_tile import verify_kernel
from tcc.target import parse_target

RNG = np.random.default_rng(7)
SERVER = parse_target("cpu", "icelake-server", detect)


def buffer(name: str, dtype: DType, sizes: tuple, scope: Scope = Scope.INPUT) -> TileBuffer:
    return TileBuffer(
        name, dtype, tuple(s if isinstance(s, Index) else const(s) for s in sizes), scope
    )


def output(name: str, dtype: DType, *sizes: int | Index) -> TileBuffer:
    return buffer(name, dtype, sizes, Scope.OUTPUT)


def var(index: Index) -> Var:
    found = var_of(index)
    assert found is not None
    return found


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


# ---- hints --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "name"), [(1, "prefetcht0"), (2, "prefetcht1")], ids=["level 1", "level 2"]
)
def test_prefetches_change_nothing_and_may_lie_anywhere(check, target, level, name):
    u, i = iterator("u", 4), iterator("i", 8)
    x_buf, at_buf = buffer("x", F32, (4, 8, 16)), buffer("at", I64, (4,))
    out_buf = output("y", F32, 4, 8, 16)
    at, block = Block("at", I64, (1, 1)), Block("x", F32, (1, 16))
    t = iterator("t", 8)
    place = (u, i, lanes(block.shape)[1])
    body = (
        Load(at, at_buf, (u,)),
        Loop(
            var(i), const(0), const(8), 1, (), (),
            (
                Prefetch(x_buf, (u - 1000, i + 2**40, const(0)), level=level),
                Prefetch(x_buf, (u, t, const(0)), ((var(t), at),), level),
                Load(block, x_buf, place),
                Store(out_buf, place, block),
            ),
            (), (),
        ),
    )  # fmt: skip
    kernel = TileKernel((x_buf, at_buf, out_buf), (), (), (var(u),), body)
    assert verify_kernel(kernel) == ()
    x = normal(4, 8, 16)
    far = np.array([0, -(1 << 62), 1 << 62, 7])
    (y,) = check(kernel, [x, far, zeros(4, 8, 16)])
    np.testing.assert_array_equal(y, x)
    assembly = compile_assembly(emit_kernel(kernel, "hints", target).llvm, target)
    # Two hints to a trip; LLVM may lift the one that is the same on every trip, not drop it.
    assert assembly.count(name + "\t") >= 2


# ---- contractions -------------------------------------------------------------------------------


def gemm(m_tile: int, n_tile: int, step: int, depth: int, rows: int, cols: int) -> TileKernel:
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
        Loop(var(k), const(0), const(depth), step, (acc,), (c,), loop, (d,), (total,)),
        Compute(y, apply("max", argument(0, F32), literal(0.0, F32)), (total,)),
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
    # With more to load ahead the widest tile of four steps keeps a few elements waiting.
    assert len(spilled) <= (16 if step == 4 else 0)
    assert sum("vfmadd" in line for line in lines) == m_tile * -(-n_tile // 16) * step


CONTRACTIONS = [
    # out, a, b
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


@pytest.mark.parametrize("target", ["host", "x86-64-v3", "x86-64-v2"], indirect=True)
@pytest.mark.parametrize("narrow", [BF16, F16], ids=str)
def test_contraction_of_narrow_operands_sums_in_f32(check, narrow):
    axes = (("m", "n"), ("m", "k"), ("k", "n"))
    shapes = [(4, 33), (4, 8), (8, 33)]
    arrays = [RNG.integers(-8, 8, s).astype(np.float32) for s in (*shapes, shapes[0])]
    arrays = [arrays[0], *(a.astype(narrow.carrier) for a in arrays[1:3]), arrays[3]]
    check(contraction(axes, shapes, F32, narrow), arrays)


# ---- memory -------------------------------------------------------------------------------------


def copy_kernel(
    source, target, shape, read, write, guards=(), write_guards=(), fill=0, sizes=(), axes=()
) -> TileKernel:
    block = Block("x", source.dtype, shape)
    body = (
        Load(block, source, read, guards, fill),
        Store(target, write, block, write_guards),
    )
    return TileKernel((source, target), (), sizes, axes or (var(iterator("u", 1)),), body)


DTYPE_CASES = [BOOL, I8, U8, I32, I64, F16, BF16, F32, F64]


@pytest.mark.parametrize("dtype", DTYPE_CASES, ids=str)
def test_copy(check, dtype):
    parts = []
    for cols in (1, 4, 16, 23):
        shape = (5, cols)
        x, y = buffer("x", dtype, shape), output("y", dtype, *shape)
        data = RNG.integers(0, 2 if dtype is BOOL else 100, shape).astype(dtype.carrier)
        kernel = copy_kernel(x, y, shape, lanes(shape), lanes(shape))
        parts.append((kernel, [data, np.zeros_like(data)]))
    check_all(check, parts)


def check_all(check, parts) -> None:
    """Kernels of one unit as one kernel."""
    kernels = [kernel for kernel, _ in parts]
    together = TileKernel(
        tuple(b for k in kernels for b in k.buffers),
        (),
        (),
        (var(iterator("u", 1)),),
        tuple(s for k in kernels for s in k.body),
    )
    check(together, [a for _, arrays in parts for a in arrays])


@pytest.mark.parametrize("cols", [3, 16, 40])
def test_transposed_and_strided_loads(check, cols):
    l0, l1 = lanes((4, cols))
    x, y = buffer("x", F32, (2 * cols, 4)), output("y", F32, 4, cols)
    check(
        copy_kernel(x, y, (4, cols), (2 * l1 + 1, l0), (l0, l1)),
        [normal(2 * cols, 4), zeros(4, cols)],
    )
    z = output("z", F32, cols, 4)
    w = buffer("w", F32, (4, cols))
    check(
        copy_kernel(w, z, (4, cols), (l0, cols - 1 - l1), (l1, l0)),
        [normal(4, cols), zeros(cols, 4)],
    )


@pytest.mark.parametrize("dtype", [F32, BOOL, F16, I64], ids=str)
@pytest.mark.parametrize("cols", [4, 16, 23])
def test_guarded_window(check, dtype, cols):
    """A padded read: rows and columns before and after the array give the fill."""
    u = iterator("u", 4)
    l0, l1 = lanes((3, cols))
    rows, size = 7, cols + 3
    x, y = buffer("x", dtype, (rows, size)), output("y", dtype, 4, 3, cols)
    row, col = 3 * u + l0 - 2, l1 - 1 + u
    guards = (Guard(row, const(rows)), Guard(col, const(size)))
    data = RNG.integers(0, 2, (rows, size)).astype(dtype.carrier)
    kernel = copy_kernel(x, y, (3, cols), (row, col), (u, l0, l1), guards, fill=1, axes=(var(u),))
    check(kernel, [data, np.zeros((4, 3, cols), dtype.carrier)])


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40, 41])
def test_guarded_tail_of_a_symbolic_size(check, count):
    size = symbol("n")
    u = iterator("u", (size + 15) // 16)
    (l0,) = lanes((16,))
    x, y = buffer("x", F32, (size,)), output("y", F32, size)
    at = u * 16 + l0
    guards = (Guard(at, size),)
    kernel = copy_kernel(
        x, y, (16,), (at,), (at,), guards, guards, sizes=(var(size),), axes=(var(u),)
    )
    check(kernel, [normal(count), zeros(count)], {"n": count})


def test_mirrored_and_broadcast_guards(check):
    l0, l1 = lanes((3, 20))
    x, y = buffer("x", F32, (5, 9)), output("y", F32, 3, 20)
    col = 13 - l1
    check(
        copy_kernel(x, y, (3, 20), (l0, col), (l0, l1), (Guard(col, const(9)),), fill=-2.5),
        [normal(5, 9), zeros(3, 20)],
    )
    check(
        copy_kernel(
            x, y, (3, 20), (l0 + 1, const(4)), (l0, l1), (Guard(l1 - 3, const(9)),), fill=4.0
        ),
        [normal(5, 9), zeros(3, 20)],
    )
    check(
        copy_kernel(
            x, y, (3, 20), (l0 - 1, const(4)), (l0, l1), (Guard(l0 - 1, const(1)),), fill=4.0
        ),
        [normal(5, 9), zeros(3, 20)],
    )


def test_split_and_merged_axes(check):
    """Storage order that differs from the block's: // and % of a unit's lanes."""
    u = iterator("u", 6)
    l0, l1 = lanes((2, 32))
    flat = u * 32 + l1
    x = buffer("x", F32, (2, 3, 64))
    y = output("y", F32, 2, 3, 8, 8)
    kernel = copy_kernel(
        x,
        y,
        (2, 32),
        (l0, floordiv(flat, 64), mod(flat, 64)),
        (l0, floordiv(flat, 64), mod(floordiv(flat, 8), 8), mod(flat, 8)),
        axes=(var(u),),
    )
    check(kernel, [normal(2, 3, 64), zeros(2, 3, 8, 8)])


def test_steps_of_a_loop_are_known_to_the_simplifier(check, target):
    k = iterator("k", 128)
    block = Block("x", F32, (32,))
    (l0,) = lanes((32,))
    x, y = buffer("x", F32, (2, 64)), output("y", F32, 128)
    flat = k + l0
    body = (
        Loop(
            var(k), const(0), const(128), 32, (), (),
            (Load(block, x, (floordiv(flat, 64), mod(flat, 64))), Store(y, (flat,), block)), (), (),
        ),
    )  # fmt: skip
    kernel = TileKernel((x, y), (), (), (var(iterator("u", 1)),), body)
    check(kernel, [normal(2, 64), zeros(128)])
    assert "extractelement" not in emit_kernel(kernel, "k", target).llvm


@pytest.mark.parametrize("dtype", [I32, I64, U8], ids=str)
def test_gather_and_scatter(check, dtype):
    table, out = buffer("t", F32, (9, 20)), output("y", F32, 9, 20)
    ids = buffer("i", dtype, (4,))
    t = iterator("t", 9)
    rows, x = Block("rows", dtype, (4, 1)), Block("x", F32, (4, 20))
    _, l1 = lanes((4, 20))
    (r0, _) = lanes((4, 1))
    indirect = ((var(t), rows),)
    body = (
        Load(rows, ids, (r0,)),
        Load(x, table, (t, l1), indirect=indirect),
        Store(out, (t, 19 - l1), x, (Guard(t, const(6)),), indirect),
    )
    kernel = TileKernel((table, ids, out), (), (), (var(iterator("u", 1)),), body)
    check(kernel, [normal(9, 20), np.array([3, 0, 8, 5], dtype.carrier), zeros(9, 20)])


def test_gather_with_a_place_for_each_lane(check):
    table, out = buffer("t", F32, (50,)), output("y", F32, 2, 19)
    ids = buffer("i", I32, (2, 19))
    t = iterator("t", 50)
    where, x = Block("w", I32, (2, 19)), Block("x", F32, (2, 19))
    at = lanes((2, 19))
    body = (
        Load(where, ids, at),
        Load(x, table, (t,), (Guard(t, const(50)),), 7.0, ((var(t), where),)),
        Store(out, at, x),
    )
    kernel = TileKernel((table, ids, out), (), (), (var(iterator("u", 1)),), body)
    check(kernel, [normal(50), RNG.integers(-20, 70, (2, 19)).astype(np.int32), zeros(2, 19)])


def test_symbolic_strides(check):
    m, n = symbol("m", 1), symbol("n", 1)
    u, v = iterator("u", m), iterator("v", n // 4)
    l0, l1 = lanes((1, 4))
    x, y = buffer("x", F32, (m, n)), output("y", F32, n, m)
    kernel = copy_kernel(
        x, y, (1, 4), (u + l0, v * 4 + l1), (v * 4 + l1, u + l0),
        sizes=(var(m), var(n)), axes=(var(u), var(v)),
    )  # fmt: skip
    check(kernel, [normal(5, 12), zeros(12, 5)], {"m": 5, "n": 12})


# ---- reductions, relayouts, control -------------------------------------------------------------


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
            if monoid == "prod":  # exact in every order: few factors that are not one
                data = np.where(data < 0, -1, 1) * np.where(RNG.random(shape) < 0.1, 2, 1)
            arrays = [data.astype(dtype.carrier), np.zeros(out_shape, dtype.carrier)]
            parts.append((TileKernel((x, y), (), (), (), body), arrays))
    check_all(check, parts)


def test_reduce_of_carried_and_fresh_blocks(check):
    """The tail of a carried block lies in a wider register than that of one just made."""
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
        Loop(var(k), const(0), const(3), 1, (start,), (c,), loop, (d,), (total,)),
        Compute(place, index_value(lanes(shape)[1], I64), ()),
        Reduce((best, where), "argmax", (total, place), (1,)),
        Store(y, lanes(size), best),
        Store(z, lanes(size), where),
    )
    data = normal(3, *shape)
    data[0, 1, 36] = data[2, 2, 3] = np.nan  # the first and the last that is seen
    kernel = TileKernel((x, y, z), (), (), (var(iterator("u", 1)),), body)
    _, found = check(kernel, [data, zeros(*size), zeros(*size, dtype=np.int64)])
    assert found[1:3].tolist() == [[36], [3]]


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


def test_welford(check):
    shape, out_shape = (3, 50), (3, 1)
    x, y = buffer("x", F32, shape), output("y", F32, 3, 3)
    parts = [Block(n, F32, shape) for n in ("n", "mean", "m2")]
    outs = [Block(n, F32, out_shape) for n in ("on", "om", "ov")]
    l0, l1 = lanes(out_shape)
    body = (
        Load(parts[1], x, lanes(shape)),
        Compute(parts[0], literal(1.0, F32), ()),
        Compute(parts[2], literal(0.0, F32), ()),
        Reduce(tuple(outs), "welford", tuple(parts), (1,)),
        *(Store(y, (l0, l1 + n), o) for n, o in enumerate(outs)),
    )
    data = normal(3, 50) + 100
    kernel = TileKernel((x, y), (), (), (var(iterator("u", 1)),), body)
    (got,) = check(kernel, [data, zeros(3, 3)], rtol=1e-4)
    np.testing.assert_allclose(got[:, 2] / 50, data.astype(np.float64).var(1), rtol=1e-4)


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
    """A loop that may not run, around one with bounds that depend on it."""
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
        Loop(
            var(i), const(0), n, 1, (zero,), (c,),
            (Loop(var(j), i, n, 1, (c,), (d,), inner, (e,), (sums,)),), (sums,), (total,),
        ),
        Store(y, (l0,), total),
    )  # fmt: skip
    kernel = TileKernel((x, y), (), (var(n),), (var(iterator("u", 1)),), body)
    data = RNG.integers(0, 9, (max(size, 1), 5)).astype(np.float32)
    check(kernel, [data, zeros(5)], {"n": size})


def test_branches_and_local_memory(check):
    u = iterator("u", 5)
    x, y = buffer("x", F32, (5, 20)), output("y", F32, 5, 20)
    tmp = TileBuffer("tmp", F32, (const(20),), Scope.LOCAL)
    other = TileBuffer("other", F32, (const(3),), Scope.LOCAL)
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


def test_units_over_several_axes(check):
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
    """A chain over one value for each row costs one scalar for each row."""
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
    chosen = apply("select", apply("lt", arg, literal(0.0, F32)), literal(3, U8), cast(arg, U8))
    body = (Load(a, x, lanes(a.shape)), Compute(b, chosen, (a,)), Store(y, lanes(b.shape), b))
    kernel = TileKernel((x, y), (), (), (var(iterator("u", 1)),), body)
    check(kernel, [normal(3, 20) * 200, zeros(3, 20, dtype=np.uint8)])
