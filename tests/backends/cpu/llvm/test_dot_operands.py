"""Tests of matmuls whose operands lie in words of two bf16 values or of four bytes.

Machine code multiplies a word at once or takes it apart. Few machines have the bf16 instruction, so
LLVM code of the same meaning replaces it here. The assembly shows that the compiler chooses the
instruction.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tcc.backends.cpu.codegen import compile_assembly
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.llvm.emit import KernelText, emit_kernel
from tcc.ir.expr.scalar import literal
from tcc.ir.graph import carrier
from tcc.ir.index import Index, const, free_vars, iterator
from tcc.ir.tile import (
    Block,
    Compute,
    Contract,
    Guard,
    Load,
    MemorySpace,
    Store,
    TileBuffer,
    TileKernel,
    TileLoop,
    lanes,
)
from tcc.ir.types import BF16, F32, I8, I32, U8, DType, integer_limits
from tcc.target import Target, parse_target

from tests.backends.cpu import conftest
from tests.backends.cpu.conftest import Compiled
from tests.lib.oracle.tile.evaluate import evaluate_kernel
from tests.processors import distinct


def product(rows: int, columns: int, depth: int, step: int, *, dense: bool = True) -> TileKernel:
    """Returns c = a @ b, with b in pairs along the sum.

    `dense` makes the sum a's last axis in memory.
    """
    m, k = iterator("m", 2), iterator("k", depth)
    a_sizes = (2 * rows, depth) if dense else (depth, 2 * rows)
    a_buf = TileBuffer("A", BF16, tuple(map(const, a_sizes)), MemorySpace.INPUT, 2)
    b_sizes = (-(-depth // 2), columns, 2)
    b_buf = TileBuffer("B", BF16, tuple(map(const, b_sizes)), MemorySpace.INPUT, 2)
    c_buf = TileBuffer("C", F32, (const(2 * rows), const(columns)), MemorySpace.OUTPUT, 4)
    shape = (rows, columns)
    l0, l1 = lanes(shape)

    def term(at: Index, size: int, into: Block, acc: Block, tag: str) -> tuple:
        a, b = Block(f"a{tag}", BF16, (rows, size)), Block(f"b{tag}", BF16, (size, columns))
        i0, i1 = lanes(a.shape)
        k0, j = lanes(b.shape)
        where = (m * rows + i0, at + i1) if dense else (at + i1, m * rows + i0)
        return (
            Load(a, a_buf, where),
            Load(b, b_buf, ((at + k0) // 2, j, (at + k0) % 2)),
            Contract(into, acc, a, b, ("m", "n"), ("m", "k"), ("k", "n")),
        )

    zero, carried, inner, total, last = (Block(x, F32, shape) for x in "zcits")
    stop = depth - depth % step
    (var,) = free_vars(k)
    body = [
        Compute(zero, literal(0.0, F32), ()),
        TileLoop(
            var, const(0), const(stop), step, (zero,), (carried,),
            term(k, step, inner, carried, "1"), (inner,), (total,),
        ),
    ]  # fmt: skip
    if depth % step:
        body += term(const(stop), depth % step, last, total, "2")
    accumulator = last if depth % step else total
    body.append(Store(c_buf, (m * rows + l0, l1), accumulator))
    (axis,) = free_vars(m)
    return TileKernel((a_buf, b_buf, c_buf), (), (), (axis,), tuple(body))


CASES = [
    # rows, columns, depth, step
    (6, 64, 12, 4),
    (6, 64, 12, 2),
    (1, 48, 14, 4),
    (3, 37, 9, 4),
    (2, 17, 11, 4),
    (4, 3, 8, 2),
    (1, 64, 7, 4),
]


def arrays(kernel: TileKernel) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = [[n.const for n in b.sizes] for b in kernel.buffers]
    a, b = (carrier(rng.standard_normal(s).astype(np.float32), BF16) for s in shapes[:2])
    return [a, b, np.zeros(shapes[2], np.float32)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairs_taken_apart(check, case: tuple[int, ...]) -> None:
    kernel = product(*case)
    (out,) = check(kernel, arrays(kernel), rtol=1e-5, atol=1e-5)
    a, b, _ = arrays(kernel)
    depth = case[2]
    plain = b.transpose(0, 2, 1).reshape(-1, case[1])[:depth]
    np.testing.assert_allclose(out, a.astype(np.float64) @ plain, rtol=1e-5, atol=1e-5)
    swapped = b[..., ::-1].transpose(0, 2, 1).reshape(-1, case[1])[:depth]
    assert np.abs(out - a @ swapped).max() > 1e-2


@pytest.mark.parametrize(("dtype", "total"), [(BF16, F32), (I8, I32)], ids=str)
def test_words_of_a_matrix_that_data_choose(check, dtype: DType, total: DType) -> None:
    """A kernel computes c[u] = a[u] @ b[i[u]], like a matmul with an expert's weights."""
    unit, number, per = iterator("u", 4), iterator("t", 7), 32 // dtype.bits
    (axis,), (matrix,) = free_vars(unit), free_vars(number)
    a_buf = TileBuffer("A", dtype, (const(4 * 16),), MemorySpace.INPUT, dtype.bytes)
    b_buf = TileBuffer("B", dtype, (const(7 * 128),), MemorySpace.INPUT, dtype.bytes)
    i_buf = TileBuffer("I", I32, (const(4),), MemorySpace.INPUT, 4)
    c_buf = TileBuffer("C", total, (const(4 * 128),), MemorySpace.OUTPUT, 4)
    a, b, at = Block("a", dtype, (4, 4)), Block("b", dtype, (4, 32)), Block("i", I32, (1, 1))
    zero, c = Block("z", total, (4, 32)), Block("c", total, (4, 32))
    (i, k), (k0, j) = lanes(a.shape), lanes(b.shape)
    place = number * 128 + k0 // per * (32 * per) + j * per + k0 % per
    body = (
        Load(at, i_buf, (unit,)),
        Compute(zero, literal(0, total), ()),
        Load(a, a_buf, (unit * 16 + i * 4 + k,)),
        Load(b, b_buf, (place,), (Guard(number, const(7)),), 0, ((matrix, at),)),
        Contract(c, zero, a, b, ("m", "n"), ("m", "k"), ("k", "n")),
        Store(c_buf, (unit * 128 + i * 32 + j,), c),
    )
    rng = np.random.default_rng(3)
    values = [rng.integers(-99, 99, n).astype(np.float32) for n in (64, 896)]
    operands = [carrier(v.astype(dtype.carrier), dtype) for v in values]
    matrix_numbers = np.array([2, 0, 6, 2], np.int32)
    out = np.zeros(512, np.float32 if total is F32 else np.int32)
    check(
        TileKernel((a_buf, b_buf, i_buf, c_buf), (), (), (axis,), body),
        [*operands, matrix_numbers, out],
    )


# ---- the instruction ----------------------------------------------------------------------------

_MEANING = """
define internal <{w} x float> @stand_in.{w}(<{w} x float> %t, <{d} x bfloat> %a, <{d} x bfloat> %b)
    alwaysinline {{
  %x = bitcast <{d} x bfloat> %a to <{w} x i32>
  %y = bitcast <{d} x bfloat> %b to <{w} x i32>
  %xl = shl <{w} x i32> %x, splat (i32 16)
  %yl = shl <{w} x i32> %y, splat (i32 16)
  %xh = and <{w} x i32> %x, splat (i32 -65536)
  %yh = and <{w} x i32> %y, splat (i32 -65536)
  %a0 = bitcast <{w} x i32> %xl to <{w} x float>
  %b0 = bitcast <{w} x i32> %yl to <{w} x float>
  %a1 = bitcast <{w} x i32> %xh to <{w} x float>
  %b1 = bitcast <{w} x i32> %yh to <{w} x float>
  %p1 = fmul <{w} x float> %a1, %b1
  %s1 = fadd <{w} x float> %t, %p1
  %p0 = fmul <{w} x float> %a0, %b0
  %s0 = fadd <{w} x float> %s1, %p0
  ret <{w} x float> %s0
}}
"""
_NAME = re.compile(r"@llvm\.x86\.avx512bf16\.dpbf16ps\.(\d+)")
_DECLARED = re.compile(r"^declare .*@llvm\.x86\.avx512bf16\.dpbf16ps\.(\d+)\(.*$", re.MULTILINE)


def standing_in(text: KernelText) -> KernelText:
    """Replaces the bf16 instruction in the code of a kernel by LLVM code of the same meaning."""
    assert _NAME.search(text.llvm), "no pairs were multiplied"

    def meaning(match: re.Match[str]) -> str:
        width = int(match[1]) // 32
        return _MEANING.format(w=width, d=2 * width)

    llvm = _DECLARED.sub(meaning, text.llvm)
    llvm = _NAME.sub(lambda match: f"@stand_in.{int(match[1]) // 32}", llvm)
    return replace(text, llvm=llvm.replace("+avx512bf16", "-avx512bf16"))


@pytest.fixture
def with_pairs(monkeypatch: pytest.MonkeyPatch) -> Callable[[TileKernel], list[np.ndarray]]:
    """Returns a function that runs a kernel as if the host had the bf16 instruction."""
    host = parse_target("cpu", "host", detect)
    features = tuple(dict.fromkeys((*host.profile.features, "avx512bf16")))
    target = replace(host, profile=replace(host.profile, features=features))

    def emit(kernel: TileKernel, name: str, _: Target) -> KernelText:
        return standing_in(emit_kernel(kernel, name, target))

    def run(kernel: TileKernel) -> list[np.ndarray]:
        monkeypatch.setattr(conftest, "emit_kernel", emit)
        return Compiled(kernel, host).run(arrays(kernel), {})

    return run


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("case", [c for c in CASES if c[1] > 3], ids=str)
def test_pairs_multiplied(with_pairs, case: tuple[int, ...], dense: bool) -> None:
    kernel = product(*case, dense=dense)
    output = with_pairs(kernel)[2]
    reference = arrays(kernel)
    evaluate_kernel(kernel, reference, {}, np.random.default_rng(1))
    np.testing.assert_allclose(output, reference[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
def test_processors_with_the_instruction_use_it(cpu: str) -> None:
    target = parse_target("cpu", cpu, detect)
    listing = compile_assembly(emit_kernel(product(6, 64, 768, 4), "k", target).llvm, target)
    # A trip of the loop sums four terms of 6 x 4 vectors, two terms at once.
    assert len(re.findall(r"\tvdpbf16ps\t.*zmm", listing)) == 6 * 4 * 2
    assert "vfmadd" not in listing
    assert "vpslld" not in listing


def test_processors_without_it_do_not() -> None:
    target = parse_target("cpu", "icelake-server", detect)
    listing = compile_assembly(emit_kernel(product(6, 64, 768, 4), "k", target).llvm, target)
    assert "vdpbf16ps" not in listing
    assert listing.count("vpslld") >= 4 * 2
    assert "vpmovzxwd" not in listing


# ---- bytes --------------------------------------------------------------------------------------


def of_bytes(rows: int, columns: int, depth: int, kinds: tuple[DType, DType]) -> TileKernel:
    """Returns c = a @ b in i32, with the whole sum in one step and b in words along it."""
    a_buf = TileBuffer("A", kinds[0], (const(rows), const(depth)), MemorySpace.INPUT)
    b_sizes = (-(-depth // 4), columns, 4)
    b_buf = TileBuffer("B", kinds[1], tuple(map(const, b_sizes)), MemorySpace.INPUT)
    c_buf = TileBuffer("C", I32, (const(rows), const(columns)), MemorySpace.OUTPUT)
    a, b = Block("a", kinds[0], (rows, depth)), Block("b", kinds[1], (depth, columns))
    zero, out = Block("z", I32, (rows, columns)), Block("o", I32, (rows, columns))
    k, j = lanes(b.shape)
    body = (
        Compute(zero, literal(0, I32), ()),
        Load(a, a_buf, lanes(a.shape)),
        Load(b, b_buf, (k // 4, j, k % 4)),
        Contract(out, zero, a, b, ("m", "n"), ("m", "k"), ("k", "n")),
        Store(c_buf, lanes(out.shape), out),
    )
    return TileKernel((a_buf, b_buf, c_buf), (), (), (), body)


def extreme_bytes(kernel: TileKernel) -> list[np.ndarray]:
    """Returns bytes with many largest and smallest values, so that sums of two products exceed 16
    bits."""
    rng = np.random.default_rng(6)
    arrays = []
    for buffer in kernel.buffers[:2]:
        low, high = integer_limits(buffer.dtype)
        shape = [n.const for n in buffer.sizes]
        drawn = rng.integers(low, high + 1, shape)
        ends = rng.choice([low, high], shape)
        mixed = np.where(rng.random(shape) < 0.5, ends, drawn)
        arrays.append(mixed.astype(buffer.dtype.carrier))
    return [*arrays, np.zeros([n.const for n in kernel.buffers[2].sizes], np.int32)]


KINDS = {"u8i8": (U8, I8), "i8u8": (I8, U8), "i8i8": (I8, I8), "u8u8": (U8, U8)}


@pytest.mark.parametrize("cpu", distinct("host", "skylake-avx512", "x86-64-v3", "x86-64-v2"))
@pytest.mark.parametrize("kinds", list(KINDS))
def test_bytes_are_multiplied_exactly(cpu: str, kinds: str) -> None:
    host = parse_target("cpu", "host", detect)
    target = parse_target("cpu", cpu, detect)
    # The test runs the code, so the host must have its features.
    if not {*target.profile.features} <= {*host.profile.features}:
        pytest.skip(f"this processor lacks what {cpu} has")
    for rows, columns, depth in ((3, 37, 11), (2, 64, 8), (4, 3, 6), (1, 16, 3)):
        kernel = of_bytes(rows, columns, depth, KINDS[kinds])
        arrays = extreme_bytes(kernel)
        output = Compiled(kernel, target).run(arrays, {})[2]
        a, b = (x.astype(np.int64) for x in arrays[:2])
        plain = b.transpose(0, 2, 1).reshape(-1, columns)[:depth]
        np.testing.assert_array_equal(output, a @ plain)


@pytest.mark.parametrize(
    ("cpu", "due"),
    [("icelake-server", "vpdpbusd"), ("skylake-avx512", "vpmaddwd"), ("x86-64-v2", "pmaddwd")],
)
def test_bytes_have_an_instruction(cpu: str, due: str) -> None:
    target = parse_target("cpu", cpu, detect)
    kernel = of_bytes(2, 32, 8, KINDS["u8i8"])
    listing = compile_assembly(emit_kernel(kernel, "k", target).llvm, target)
    vectors = 32 * 32 // target.profile.vector_bits
    products = 2 * vectors * 2 * (1 if due == "vpdpbusd" else 2)
    assert len(re.findall(rf"\t{due}\t", listing)) == products
    assert not re.search(r"\tv?pmulld\t", listing)


@pytest.mark.parametrize(
    ("cpu", "kinds", "due"),
    [
        ("neoverse-n1", "i8i8", "sdot"),
        ("neoverse-n1", "u8u8", "udot"),
        ("neoverse-n1", "i8u8", "sdot"),  # Unsigned bytes are shifted by 128.
        ("neoverse-v1", "u8i8", "usdot"),
    ],
)
def test_arm_multiplies_words_of_bytes(cpu: str, kinds: str, due: str) -> None:
    target = parse_target("cpu:aarch64", cpu, detect)
    listing = compile_assembly(
        emit_kernel(of_bytes(6, 16, 32, KINDS[kinds]), "k", target).llvm, target
    )
    # The correction of the shift takes an instruction for each element of the rows.
    moves = 8 * 6 if kinds == "i8u8" else 0
    assert len(re.findall(rf"\t{due}\t", listing)) == 6 * 4 * 8 + moves
    assert "\tmul\t" not in listing
    assert "\tmla\t" not in listing


def test_arm_multiplies_pairs() -> None:
    target = parse_target("cpu:aarch64", "neoverse-v1", detect)
    listing = compile_assembly(emit_kernel(product(6, 16, 768, 4), "k", target).llvm, target)
    assert listing.count("\tbfdot\t") == 6 * 4 * 2
    assert "\tfmla\t" not in listing
