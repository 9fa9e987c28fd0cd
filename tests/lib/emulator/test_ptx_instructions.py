"""Tests of single PTX instructions in the emulator: `ptxas` accepts the text, oracles are exact."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.draws import RNG

from .device import Launch
from .faults import Fault, Unknown
from .memory import GlobalMemory
from .ptx import machine
from .ptx.run import program, run

Array = np.ndarray[Any, np.dtype[Any]]
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n"


def text_of(parameters: str, registers: str, body: str, threads: int = 32) -> str:
    declared = "".join(f".reg .{line.strip()};\n" for line in registers.split(";") if line.strip())
    head = f"{HEAD}.visible .entry k({parameters}) .reqntid {threads}\n"
    return f"{head}{{\n{declared}{body}\nret;\n}}\n"


def launch(
    text: str, arrays: Sequence[Array], maps: bytes = b"", shared: int = 0, threads: int = 32
) -> None:
    """Runs one block; its parameters are the maps, then the arrays' addresses."""
    spans = [(a.ctypes.data, a.nbytes) for a in arrays]
    parameters = maps + struct.pack(f"<{len(spans)}Q", *(address for address, _ in spans))
    what = Launch(1, threads, shared, parameters, GlobalMemory(spans))
    run(program(text, "k"), what)


POINTERS = ".param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d"
WIDTHS = {"b16": 2, "b32": 4, "b64": 8}


def lanes(code: str, kinds: str, *operands: Array) -> Array:
    """Returns %z of every lane after `code` has run on %x, %y and %w.

    `kinds` are the operands' types, then the result's.
    """
    *operand_kinds, result = kinds.split()
    out = np.zeros(32, f"u{WIDTHS[result]}")
    arrays = [*operands, *[np.zeros(32, np.uint8)] * (3 - len(operands)), out]
    names, body = "xyw", ["mov.u32 %t, %tid.x;"]
    for n, kind in enumerate([*operand_kinds, result]):
        base = "abc"[n] if n < len(operand_kinds) else "d"
        body += [f"ld.param.u64 %p{n}, [{base}];", f"mul.wide.u32 %q, %t, {WIDTHS[kind]};",
                 f"add.s64 %p{n}, %p{n}, %q;"]  # fmt: skip
    body += [f"ld.global.{k} %{names[n]}, [%p{n}];" for n, k in enumerate(operand_kinds)]
    body += [code, f"st.global.{result} [%p{len(operand_kinds)}], %z;"]
    registers = "; ".join(
        ["b32 %t", "b64 %q", "b64 %p<4>", f"{result} %z", "pred %c"]
        + [f"{kind} %{name}" for name, kind in zip(names, operand_kinds, strict=False)]
    )
    text = text_of(POINTERS, registers, "\n".join(body))
    assemble(text)
    launch(text, arrays)
    return out


def assemble(text: str) -> None:
    """Fails unless `ptxas` accepts the text; does nothing without Triton's `ptxas`."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return
    tool = Path(spec.origin).parent / "backends/nvidia/bin/ptxas"
    command = (tool, "-arch=sm_90a", "-o", "/dev/null", "-")
    process = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr + text


def floats(spread: int = 12) -> Array:
    return (RNG.standard_normal(32) * 2.0 ** RNG.integers(-spread, spread, 32)).astype(np.float32)


def nearest(exact: Fraction) -> np.float32:
    """Rounds to f32, ties to even, by a comparison with the neighbours."""
    middle = np.float32(float(exact))
    neighbours = [np.nextafter(middle, np.float32(s), dtype=np.float32) for s in (-np.inf, np.inf)]
    rows = [
        (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1, x)
        for x in (middle, *neighbours)
    ]
    return min(rows, key=lambda row: row[:2])[2]


def test_fma_rounds_once() -> None:
    x, y = floats(), floats()
    # Sums next to the middle of two numbers.
    w = (-x.astype(np.float64) * y * RNG.choice([1, 1 + 2.0**-24, 2.0**23], 32)).astype(np.float32)
    output = lanes("fma.rn.f32 %z, %x, %y, %w;", "b32 b32 b32 b32", x, y, w).view(np.float32)
    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
             for a, b, c in zip(x, y, w, strict=True)]  # fmt: skip
    assert output.tolist() == [float(nearest(e)) for e in exact]


def test_denormals_stay() -> None:
    x = np.full(32, 2.0**-120, np.float32)
    y = np.full(32, 2.0**-20, np.float32)
    output = lanes("mul.rn.f32 %z, %x, %y;", "b32 b32 b32", x, y).view(np.float32)
    assert (output == np.float32(2.0**-140)).all()


INTEGERS: dict[str, tuple[str, str, Callable[[int, int], int]]] = {
    "mul.hi.s32": ("mul.hi.s32 %z, %x, %y;", "s4", lambda a, b: a * b >> 32),
    "mul.hi.u64": ("mul.hi.u64 %z, %x, %y;", "u8", lambda a, b: a * b >> 64),
    "div.s32": ("div.s32 %z, %x, %y;", "s4", lambda a, b: int(Fraction(a, b))),
    "rem.s64": ("rem.s64 %z, %x, %y;", "s8", lambda a, b: a - b * int(Fraction(a, b))),
    "div.u32": ("div.u32 %z, %x, %y;", "u4", lambda a, b: a // b),
    "shr.s32": ("shr.s32 %z, %x, 35;", "s4", lambda a, b: -(a < 0)),
    "shl.b32": ("shl.b32 %z, %x, 35;", "u4", lambda a, b: 0),
    "bfe.s32": ("bfe.s32 %z, %x, 5, 7;", "s4", lambda a, b: ((a >> 5 & 127) ^ 64) - 64),
    "bfe.u32": ("bfe.u32 %z, %x, 28, 9;", "u4", lambda a, b: a >> 28),
    "prmt.b32": (
        "prmt.b32 %z, %x, %y, 0x7B04;", "u4",
        lambda a, b: (b & 255) | (a & 255) << 8 | (255 if a >> 31 else 0) << 16 | b >> 24 << 24,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_exact(name: str) -> None:
    code, kind, function = INTEGERS[name]
    dtype = np.dtype(kind.replace("s", "i"))
    facts = np.iinfo(dtype)
    x, y = (RNG.integers(facts.min, facts.max, 32, dtype=dtype) for _ in range(2))
    y[:8] = np.arange(1, 9)
    kinds = f"b{8 * dtype.itemsize}"
    output = lanes(code, f"{kinds} {kinds} {kinds}", x, y)
    size = 1 << 8 * dtype.itemsize
    assert output.tolist() == [function(int(a), int(b)) % size for a, b in zip(x, y, strict=True)]


def test_conversions_agree_with_ml_dtypes() -> None:
    x = floats(60)
    x[:4] = np.nan, np.inf, -0.0, 3.3895314e38
    for name, dtype in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
        with np.errstate(over="ignore"):
            expected = x.astype(dtype)
        output = lanes(f"cvt.rn.{name}.f32 %z, %x;", "b32 b16", x).view(dtype)
        np.testing.assert_array_equal(output.astype(np.float32), expected.astype(np.float32))
    pairs = lanes("cvt.rn.bf16x2.f32 %z, %x, %y;", "b32 b32 b32", x, x[::-1].copy())
    halves = pairs.view(np.uint16).reshape(32, 2).view(ml_dtypes.bfloat16).astype(np.float32)
    expected = np.stack([x[::-1], x], 1).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(halves, expected)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_floats_of_a_byte_are_widened(dtype: Any) -> None:
    name = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[dtype.__name__]
    for begin in range(0, 256, 64):
        codes = np.arange(begin, begin + 64, dtype=np.uint8)
        output = lanes(f"cvt.rn.f16x2.{name}x2 %z, %x;", "b16 b32", codes.view(np.uint16))
        np.testing.assert_array_equal(output.view(np.float16), codes.view(dtype).astype(np.float16))


def test_floats_become_the_nearest_integers() -> None:
    x = np.tile(np.float32([2.5, -2.5, 3.5, 1e20, -1e20, np.nan, np.inf, -0.4]), 4)
    output = lanes("cvt.rni.s32.f32 %z, %x;", "b32 b32", x).view(np.int32)
    assert output[:8].tolist() == [2, -2, 4, 2**31 - 1, -(2**31), 0, 2**31 - 1, 0]


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("min.f32 %z, %x, %y;", [1, -2, 3, 0]),
        ("max.NaN.f32 %z, %x, %y;", [np.nan, np.nan, 3, 0]),
        ("setp.lt.f32 %c, %x, %y;\nselp.f32 %z, %x, %y, %c;", [1, np.nan, 3, 0]),
        ("setp.geu.f32 %c, %x, %y;\nselp.f32 %z, 0f3F800000, 0f00000000, %c;", [1, 1, 1, 1]),
    ],
)
def test_nan_goes_where_the_manual_says(code: str, want: list[float]) -> None:
    x = np.tile(np.float32([np.nan, -2, 3, 0.0]), 8)
    y = np.tile(np.float32([1, np.nan, 3, 0.0]), 8)
    output = lanes(code, "b32 b32 b32", x, y).view(np.float32)
    np.testing.assert_array_equal(output[:4], np.float32(want))


EXCHANGES: Mapping[str, Callable[[Array], Array]] = {
    "shfl.sync.bfly.b32 %z, %x, 5, 31, -1;": lambda x: x[np.arange(32) ^ 5],
    "shfl.sync.up.b32 %z, %x, 3, 0, -1;": lambda x: x[
        np.maximum(np.arange(32) - 3, np.arange(32) * (np.arange(32) < 3))
    ],
    "shfl.sync.idx.b32 %z, %x, 9, 0x181F, -1;": lambda x: x[np.arange(32) // 8 * 8 + 1],
    "redux.sync.add.s32 %z, %x, -1;": lambda x: np.full(32, x.sum(dtype=np.uint32)),
}


@pytest.mark.parametrize("code", EXCHANGES)
def test_lanes_exchange(code: str) -> None:
    x = RNG.integers(0, 2**32, 32, dtype=np.uint32)
    np.testing.assert_array_equal(lanes(code, "b32 b32", x), EXCHANGES[code](x))


def test_lanes_that_part_meet_again() -> None:
    code = """setp.lt.u32 %c, %x, 7;
    @%c bra LESS;
    add.s32 %z, %x, 100;
    bra DONE;
    LESS:
    add.s32 %z, %x, 1000;
    DONE:
    shfl.sync.idx.b32 %z, %z, 0, 31, -1;"""
    output = lanes(code, "b32 b32", np.arange(32, dtype=np.uint32))
    assert (output == 1000).all()


def test_exchange_of_parted_lanes_is_a_fault() -> None:
    code = """setp.lt.u32 %c, %x, 7;
    mov.b32 %z, 0;
    @%c bra DONE;
    shfl.sync.idx.b32 %z, %x, 0, 31, -1;
    DONE:"""
    with pytest.raises(Fault, match="not all lanes"):
        lanes(code, "b32 b32", np.arange(32, dtype=np.uint32))


def test_kernels_that_do_not_end_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MOST", 1000)
    code = "AGAIN: add.s32 %z, %x, 1;\nbra AGAIN;"
    with pytest.raises(Fault, match="does not end"):
        lanes(code, "b32 b32", np.arange(32, dtype=np.uint32))


def test_unknown_forms_are_named() -> None:
    with pytest.raises(Unknown, match=r"instruction add\.rz\.f32 %z, %x, %x"):
        lanes("add.rz.f32 %z, %x, %x;", "b32 b32", floats())


# ---- matmuls of warpgroups -----------------------------------------------------------------------

K, ROWS, COLUMNS = 64, 64, 128


def tensor_map(array: Array, extents: tuple[int, int], swizzle: int) -> bytes:
    """Returns a matrix's tensor map in the fake driver's encoding."""
    rows, columns = array.shape
    extent = struct.pack("<6I", *extents, 0, 0, 0, 0)
    head = struct.pack("<3Q", array.ctypes.data, 2, 9 | swizzle << 16)
    return (
        head + struct.pack("<9Q", columns, rows, 0, 0, 0, 2 * columns, 0, 0, 0) + extent + bytes(8)
    )


def layout(turned: bool, lines: int, swizzle: int) -> tuple[int, int, int, int, int]:
    """Returns a matrix's layout in shared memory, by the manual's table.

    The numbers are: elements in a row of a box, rows of a box, the descriptor's leading and stride
    bytes, and the bytes between matmuls of 16 steps of k.
    """
    span = 16 << swizzle
    if not turned:
        box = lines * span
        return span // 2, lines, box if not swizzle else 16, 8 * span, 32
    box = K * span
    near, far = box, 8 * span
    return span // 2, K, *((near, far) if swizzle else (far, near)), 16 * span


def product_text(turned: tuple[bool, bool], swizzles: tuple[int, int]) -> str:
    """Returns a kernel for d = a b (64 x 64 and 64 x 128): box copies, then four matmuls of k =
    16."""
    begins, descriptors, body = (0, 2 * ROWS * K), [], []
    for side, lines in enumerate((ROWS, COLUMNS)):
        width, height, leading, stride, step = layout(turned[side], lines, swizzles[side])
        across = lines if turned[side] else K
        for box in range(across // width):
            at = begins[side] + box * 2 * width * height
            body.append(
                f"@%one cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                f" [%base+{at}], [%map{side}, {{{box * width}, 0}}], [%bar];"
            )
        starts = []
        for number in range(K // 16):
            along = number * 32
            start = number * step if turned[side] else (
                along // (2 * width) * 2 * width * height + along % (2 * width)
            )  # fmt: skip
            starts.append(1024 + begins[side] + start)
        mode = (0, 3, 2, 1)[swizzles[side]]
        bits = leading >> 4 << 16 | stride >> 4 << 32 | mode << 62
        descriptors.append([bits | start >> 4 for start in starts])
    sums = "{" + ", ".join(f"%d{n}" for n in range(COLUMNS // 2)) + "}"
    products = []
    for number, (a, b) in enumerate(zip(*descriptors, strict=True)):
        products += [
            f"mov.b64 %ma, {a:#x};", f"mov.b64 %mb, {b:#x};",
            f"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {sums}, %ma, %mb,"
            f" {'%no' if not number else '%yes'}, 1, 1, {int(turned[0])}, {int(turned[1])};",
        ]  # fmt: skip
    stores = [
        f"st.global.f32 [%out+{4 * (8 * (n >> 2) + (n & 1) + COLUMNS * 8 * (n >> 1 & 1))}], %d{n};"
        for n in range(COLUMNS // 2)
    ]
    total = 2 * K * (ROWS + COLUMNS)
    lines = [
        "mov.b64 %map0, m0;", "cvta.param.u64 %map0, %map0;",
        "mov.b64 %map1, m1;", "cvta.param.u64 %map1, %map1;",
        "mov.b32 %base, smem;", f"add.s32 %bar, %base, {total};", "mov.u32 %t, %tid.x;",
        "setp.eq.u32 %one, %t, 0;", "setp.ne.u32 %no, %t, %t;", "not.pred %yes, %no;",
        "@%one mbarrier.init.shared::cta.b64 [%bar], 1;", "bar.sync 0;",
        f"@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {total};", *body,
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;", "@!%done bra WAIT;",
        "wgmma.fence.sync.aligned;", *products, "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        # The next lines compute the lane's row and its pair of columns.
        "shr.u32 %r, %t, 5;", "shl.b32 %r, %r, 4;", "bfe.u32 %g, %t, 2, 3;", "add.s32 %r, %r, %g;",
        "and.b32 %g, %t, 3;", "shl.b32 %g, %g, 1;", f"mad.lo.s32 %r, %r, {COLUMNS}, %g;",
        "ld.param.u64 %out, [d];", "mul.wide.u32 %ma, %r, 4;", "add.s64 %out, %out, %ma;", *stores,
    ]  # fmt: skip
    registers = f"""b64 %map<2>; b64 %ma; b64 %mb; b64 %out; b32 %base; b32 %bar; b32 %t; b32 %r;
    b32 %g; pred %one; pred %no; pred %yes; pred %done; f32 %d<{COLUMNS // 2}>"""
    parameters = ".param .align 64 .b8 m0[128], .param .align 64 .b8 m1[128], " + ", ".join(
        f".param .u64 {name}" for name in "abd"
    )
    return text_of(parameters, registers, "\n".join(lines), 128)


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("swizzles", [(0, 0), (1, 3), (2, 2), (3, 1)])
def test_boxes_and_descriptors_mean_the_same(
    turned: tuple[bool, bool], swizzles: tuple[int, int]
) -> None:
    """Boxes and descriptors agree on every swizzle and transposition of both operands."""
    x, y = (RNG.integers(-8, 8, (n, K)).astype(np.float32) for n in (ROWS, COLUMNS))
    arrays = [
        np.ascontiguousarray((m.T if t else m).astype(ml_dtypes.bfloat16)).view(np.uint16)
        for m, t in zip((x, y), turned, strict=True)
    ]
    maps = b"".join(
        tensor_map(a, layout(t, n, s)[:2], s)
        for a, t, n, s in zip(arrays, turned, (ROWS, COLUMNS), swizzles, strict=True)
    )
    out = np.zeros((ROWS, COLUMNS), np.float32)
    text = product_text(turned, swizzles)
    assemble(text)
    launch(text, [*arrays, out], maps, 2 * K * (ROWS + COLUMNS) + 8, 128)
    np.testing.assert_array_equal(out, x @ y.T)
