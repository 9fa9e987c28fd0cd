"""Tests of compiled hand-written kernels that move data, against the evaluator."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from tcc.backends.cpu.codegen import compile_assembly
from tcc.backends.cpu.llvm.emit import emit_kernel
from tcc.ir.index import Index, const, floordiv, iterator, mod, symbol
from tcc.ir.tile import (
    Block,
    Guard,
    Load,
    Prefetch,
    Store,
    TileKernel,
    TileLoop,
    lanes,
)
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType

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


@pytest.mark.parametrize("dtype", [F32, BF16, I64, U8], ids=str)
@pytest.mark.parametrize("apart", [2, 3, 4, 5])
def test_lanes_a_few_elements_apart(check, dtype, apart):
    """A strided load does not read behind its last lane."""
    parts = []
    for cols in (1, 7, 8, 16, 23, 40):
        size = apart * (cols - 1) + 1
        (lane,) = lanes((cols,))
        x, y = buffer("x", dtype, (size,)), output("y", dtype, cols)
        data = RNG.integers(0, 100, size).astype(np.float32).astype(dtype.carrier)
        kernel = copy_kernel(x, y, (cols,), (apart * lane,), (lane,))
        parts.append((kernel, [data, np.zeros(cols, dtype.carrier)]))
    check_all(check, parts)


@pytest.mark.parametrize(("apart", "vectors"), [(2, 2), (3, 3), (4, 4)])
def test_lanes_a_few_elements_apart_come_out_of_as_many_vectors(apart, vectors):
    (lane,) = lanes((16,))
    x, y = buffer("x", F32, (15 * apart + 1,)), output("y", F32, 16)
    kernel = copy_kernel(x, y, (16,), (apart * lane,), (lane,))
    text = emit_kernel(kernel, "apart", SERVER).llvm
    loads = re.findall(r"load (<16 x float>|float)", text)
    assert loads == ["<16 x float>"] * vectors
    touched = [int(n) for n in re.findall(r"getelementptr float, ptr %b0, i64 (\d+)", text)]
    assert len(touched) == vectors - 1  # and the first element
    assert max(touched) + 15 <= 15 * apart


@pytest.mark.parametrize("dtype", [F32, U8], ids=str)
@pytest.mark.parametrize("apart", [2, 3, 4])
def test_lanes_apart_from_any_first_element(check, dtype, apart):
    """The buffer ends with the last lane, or up to a vector behind it."""
    parts = []
    for cols, first in product((8, 16, 23), range(apart + 2)):
        for behind in (0, 1, apart - 1, 16):
            size = first + apart * (cols - 1) + 1 + behind
            (lane,) = lanes((cols,))
            x, y = buffer("x", dtype, (size,)), output("y", dtype, cols)
            data = np.random.default_rng(size).integers(0, 100, size).astype(dtype.carrier)
            kernel = copy_kernel(x, y, (cols,), (apart * lane + first,), (lane,))
            parts.append((kernel, [data, np.zeros(cols, dtype.carrier)]))
    check_all(check, parts)


def _apart(second: int) -> TileKernel:
    """Returns a kernel that stores two rows of 16 elements to columns 1 and `second` of 16
    lines."""
    (lane,) = lanes((16,))
    x, y = buffer("x", F32, (2, 16)), output("y", F32, 16, 1024)
    rows = [Block(f"x{n}", F32, (16,)) for n in range(2)]
    loads = [Load(row, x, (const(n), lane)) for n, row in enumerate(rows)]
    stores = [Store(y, (lane, const(at)), row) for row, at in zip(rows, (1, second), strict=True)]
    return TileKernel((x, y), (), (), (var(iterator("u", 1)),), (*loads, *stores))


@pytest.mark.parametrize("second", [0, 1, 3])
def test_lanes_apart_of_several_blocks_are_stored_line_by_line(check, second):
    """Blocks of distant lanes are stored line by line; the later of two writes to one element
    wins."""
    check(_apart(second), [normal(2, 16), zeros(16, 1024)])
    text = emit_kernel(_apart(second), "apart", SERVER).llvm
    pointers = re.findall(r"(%\S+) = getelementptr float, ptr %\S+, i64 (\d+)", text)
    places = {reg: int(n) for reg, n in pointers}
    stores = re.findall(r"store float %\S+, ptr (%\S+),", text)
    order = [places.get(reg, 0) for reg in stores]
    assert len(order) == 32
    assert (order == sorted(order)) == (second != 1)


def test_borders_of_symbolic_sizes_are_tested_once_for_blocks_of_lanes_apart(check):
    """A border test of a symbolic size covers all lanes of blocks that store to distant lines."""
    size, (lane,) = symbol("n"), lanes((16,))
    x, y = buffer("x", F32, (3, 16)), output("y", F32, 16, size)
    u = iterator("u", (size + 2) // 3)
    rows = [Block(f"x{n}", F32, (16,)) for n in range(3)]
    loads = [Load(row, x, (const(n), lane)) for n, row in enumerate(rows)]
    places = [3 * u + n for n in range(3)]
    guards = [(), *((Guard(at, size),) for at in places[1:])]
    stores = [
        Store(y, (15 - lane, at), row, guard)
        for at, row, guard in zip(places, rows, guards, strict=True)
    ]
    kernel = TileKernel((x, y), (), (var(size),), (var(u),), (*loads, *stores))
    for count in (1, 2, 6, 7):
        check(kernel, [normal(3, 16), zeros(16, count)], {"n": count})
    text = emit_kernel(kernel, "border", SERVER).llvm
    inside = text.partition("\ninside")[2].partition("br label")[0]
    lanes_of = re.findall(r"(%\S+) = extractelement <16 x float> (%\S+), i(?:32|64) (\d+)", text)
    lanes_by_register = {reg: (block, int(lane)) for reg, block, lane in lanes_of}
    order = [lanes_by_register[reg] for reg in re.findall(r"store float (%\S+), ptr", inside)]
    blocks = [block for block, _ in order[:3]]
    assert order == [(block, n) for n in range(16) for block in blocks]
    assert len({*blocks}) == 3


@pytest.mark.parametrize("planes", [2, 3, 4])
@pytest.mark.parametrize("cols", [5, 16])
def test_planes_are_interleaved(check, planes, cols):
    l0, l1 = lanes((planes, cols))
    x, y = buffer("x", F32, (planes, cols)), output("y", F32, cols, planes)
    check(
        copy_kernel(x, y, (planes, cols), (l0, l1), (l1, l0)),
        [normal(planes, cols), zeros(cols, planes)],
    )


def _phases(count: int, width: int, dtype: DType) -> TileKernel:
    """Returns a kernel that interleaves `count` phases of each of three rows.

    Each phase has blocks of `width` lanes, guarded by a symbolic size.
    """
    size = symbol("n")
    u = iterator("u", (size + width - 1) // width)
    l0, l1, l2 = lanes((3, count, width))
    x, y = buffer("x", dtype, (3, count, size)), output("y", dtype, 3, size, count)
    at = u * width + l2
    guards = (Guard(at, size),)
    return copy_kernel(
        x, y, (3, count, width), (l0, l1, at), (l0, at, l1), guards, guards,
        sizes=(var(size),), axes=(var(u),),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, I64, F16], ids=str)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_phases_of_a_symbolic_size_are_interleaved(check, count, dtype):
    for size in (0, 1, 7, 16, 21):
        data = RNG.integers(0, 100, (3, count, size)).astype(dtype.carrier)
        result = np.zeros((3, size, count), dtype.carrier)
        check(_phases(count, 16, dtype), [data, result], {"n": size})


@pytest.mark.parametrize("count", [2, 3, 4])
def test_interleaved_phases_are_stored_in_masked_vectors(count):
    """Interleaved phases take the fewest masked vector stores and no scalar stores."""
    text = emit_kernel(_phases(count, 16, F32), "phases", SERVER).llvm
    assert len(re.findall(r"call void @llvm.masked.store.v16f32", text)) == 3 * count
    assert not re.findall(r"store float", text)


@pytest.mark.parametrize("dtype", [F32, BOOL, F16, I64], ids=str)
@pytest.mark.parametrize("cols", [4, 16, 23])
def test_guarded_window(check, dtype, cols):
    """A padded read fills rows and columns outside of the array."""
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


@pytest.mark.parametrize("cols", [8, 5, 40])
def test_a_guard_of_all_lanes_holds_for_lanes_a_symbolic_size_apart(check, cols):
    """A guard on a whole column holds for all its lanes, which are a symbolic size apart."""
    size = symbol("n")
    u = iterator("u", size + 3)
    (l0,) = lanes((cols,))
    x, y = buffer("x", F32, (cols, size)), output("y", F32, cols * (size + 3))
    guards = (Guard(u - 2, size),)
    kernel = copy_kernel(
        x, y, (cols,), (l0, u - 2), (cols * u + l0,), guards,
        fill=3, sizes=(var(size),), axes=(var(u),),
    )  # fmt: skip
    for count in (1, 7):
        check(kernel, [normal(cols, count), zeros(cols * (count + 3))], {"n": count})


def _halves(trips: int, swapped: Index) -> TileKernel:
    """Returns a kernel that copies blocks of 32 elements from `swapped` trips further, or fills
    them."""
    at = iterator("at", 32 * trips)
    (l0,) = lanes((32,))
    x, y = buffer("x", F32, (32 * trips,)), output("y", F32, 32 * trips)
    block, place = Block("x", F32, (32,)), at + l0 + 32 * swapped
    guards = (Guard(place, const(32 * trips)),)
    body = (Load(block, x, (place,), guards, 7.0), Store(y, (at + l0,), block))
    loop = TileLoop(var(at), const(0), const(32 * trips), 32, (), (), body, (), ())
    return TileKernel((x, y), (), (), (var(iterator("u", 2)),), (loop,))


@pytest.mark.parametrize("trips", [2, 3, 4, 5])
@pytest.mark.parametrize("further", [-1, 1])
def test_guards_that_a_trip_decides_are_gone_where_trips_are_few(check, trips, further):
    """A loop of few trips has no masked loads, which cost hundreds of cycles beside unmapped
    memory."""
    kernel = _halves(trips, const(further))
    check(kernel, [normal(32 * trips), zeros(32 * trips)])
    assembly = compile_assembly(emit_kernel(kernel, "halves", SERVER).llvm, SERVER)
    assert ("{%k" in assembly) == (trips > 4)


def test_guards_that_tiles_decide_too_stay_in_their_loop(check):
    kernel = _halves(2, iterator("u", 2))
    text = emit_kernel(kernel, "halves", SERVER).llvm
    assert text.count("store <16 x float>") == 2


@pytest.mark.parametrize("size", [0, 32, 64])
def test_a_loop_of_symbolic_size_runs_with_its_guards(check, size):
    n = symbol("n")
    at = iterator("at", n)
    (l0,) = lanes((32,))
    x, y, block = buffer("x", F32, (64,)), output("y", F32, 64), Block("x", F32, (32,))
    place = at + l0 + 32
    load = Load(block, x, (place,), (Guard(place, const(64)),), 7.0)
    body = (load, Store(y, (at + l0,), block))
    loop = TileLoop(var(at), const(0), n, 32, (), (), body, (), ())
    kernel = TileKernel((x, y), (), (var(n),), (var(iterator("u", 1)),), (loop,))
    check(kernel, [normal(64), zeros(64)], {"n": size})


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
    """A copy may have another storage order than its block, with // and % of a unit's lanes."""
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
        TileLoop(
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


# ---- hints -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "write", "name"),
    [(1, False, "prefetcht0"), (2, False, "prefetcht1"), (1, True, "prefetch(w|t0)")],
    ids=["level 1", "level 2", "to write"],
)
def test_prefetches_change_nothing_and_may_lie_anywhere(check, target, level, write, name):
    u, i = iterator("u", 4), iterator("i", 8)
    x_buf, at_buf = buffer("x", F32, (4, 8, 16)), buffer("at", I64, (4,))
    out_buf = output("y", F32, 4, 8, 16)
    at, block = Block("at", I64, (1, 1)), Block("x", F32, (1, 16))
    t = iterator("t", 8)
    place = (u, i, lanes(block.shape)[1])
    body = (
        Load(at, at_buf, (u,)),
        TileLoop(
            var(i), const(0), const(8), 1, (), (),
            (
                Prefetch(x_buf, (u - 1000, i + 2**40, const(0)), level=level, write=write),
                Prefetch(x_buf, (u, t, const(0)), ((var(t), at),), level, write),
                Load(block, x_buf, place),
                Store(out_buf, place, block),
            ),
            (), (),
        ),
    )  # fmt: skip
    kernel = TileKernel((x_buf, at_buf, out_buf), (), (), (var(u),), body)
    assert verify_kernel(kernel) == ()
    x = normal(4, 8, 16)
    offsets = np.array([0, -(1 << 62), 1 << 62, 7])
    (y,) = check(kernel, [x, offsets, zeros(4, 8, 16)])
    np.testing.assert_array_equal(y, x)
    assembly = compile_assembly(emit_kernel(kernel, "hints", target).llvm, target)
    # Not every processor knows prefetches for writing. A trip has two hints, and LLVM may hoist the
    # loop-invariant hint but not drop it.
    assert len(re.findall(name + "\t", assembly)) >= 2
