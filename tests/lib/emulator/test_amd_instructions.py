"""Tests of single AMD instructions in the emulator: LLVM assembles them, and oracles are exact."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.lib.interpreter.running import NEEDS_TRITON

from .amd.waves import ARCHS
from .amd_lanes import Array, body, execute, lanes
from .faults import Fault, Unknown

pytestmark = [*NEEDS_TRITON, pytest.mark.parametrize("arch", ARCHS)]


def count(arch: str) -> int:
    return ARCHS[arch].lanes


def numbers(arch: str, seed: int = 1, spread: int = 12) -> Array:
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal(count(arch)) * 2.0 ** rng.integers(-spread, spread, count(arch))
    return drawn.astype(np.float32)


def words(arch: str, seed: int = 1, kind: Any = np.uint32) -> Array:
    facts = np.iinfo(kind)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(facts.min, facts.max, count(arch), kind, endpoint=True)
    drawn[:4] = [0, 1, facts.max, facts.min]
    return drawn


def nearest(exact: Fraction) -> float:
    """Rounds to f32, ties to even, by a comparison with the neighbours."""
    middle = np.float32(float(exact))
    neighbours = [np.nextafter(middle, np.float32(s), dtype=np.float32) for s in (-np.inf, np.inf)]
    rows = [
        (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1, x)
        for x in (middle, *neighbours)
    ]
    return float(min(rows, key=lambda row: row[:2])[2])


# ---- floating point -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["v_fma_f32 v32, v8, v16, v24",
                                  "v_mov_b32 v32, v24\nv_fmac_f32 v32, v8, v16"])  # fmt: skip
def test_fma_rounds_once(arch: str, code: str) -> None:
    x, y = numbers(arch, 1), numbers(arch, 2)
    factors = np.random.default_rng(3).choice([1, 1 + 2.0**-24, 2.0**23], count(arch))
    z = (-x.astype(np.float64) * y * factors).astype(np.float32)
    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
             for a, b, c in zip(x, y, z, strict=True)]  # fmt: skip
    assert lanes(arch, code, x, y, z, made=np.float32).tolist() == [nearest(e) for e in exact]


def test_denormals_of_products_stay(arch: str) -> None:
    x = np.full(count(arch), 2.0**-120, np.float32)
    y = np.full(count(arch), 2.0**-20, np.float32)
    output = lanes(arch, "v_mul_f32 v32, v8, v16", x, y, made=np.float32)
    assert (output == 2.0**-140).all()


@pytest.mark.parametrize(
    ("name", "argument"),
    [("exp", -130), ("rcp", 2.0**127), ("sqrt", 2.0**-130), ("log", 2.0**-130)],
)
def test_denormals_of_functions_are_zeros(arch: str, name: str, argument: float) -> None:
    x = np.full(count(arch), argument, np.float32)
    output = lanes(arch, f"v_{name}_f32 v32, v8", x, made=np.float32)
    assert (output == {"log": -np.inf}.get(name, 0)).all()


def test_modifiers(arch: str) -> None:
    x, y = numbers(arch, 1), numbers(arch, 2)
    output = lanes(arch, "v_add_f32 v32, -v8, |v16|", x, y, made=np.float32)
    assert (output == np.abs(y) - x).all()


@pytest.mark.parametrize(("first", "second", "low", "high"), [
    (np.nan, 1.0, 1.0, 1.0), (1.0, np.nan, 1.0, 1.0),
    (-0.0, 0.0, -0.0, 0.0), (0.0, -0.0, -0.0, 0.0),
])  # fmt: skip
def test_extremes(arch: str, first: float, second: float, low: float, high: float) -> None:
    x, y = (np.full(count(arch), v, np.float32) for v in (first, second))
    for name, expected in (("min", low), ("max", high)):
        output = lanes(arch, f"v_{name}_f32 v32, v8, v16", x, y)
        assert (output == np.float32(expected).view(np.uint32)).all()


def test_classes(arch: str) -> None:
    examples = [0x7F800001, 0x7FC00000, 0xFF800000, 0xC0000000, 0x80000001, 0x80000000, 0, 1,
                0x40000000, 0x7F800000]  # fmt: skip
    bits = np.resize(np.array(examples, np.uint32), count(arch))
    for bit in range(10):
        code = f"v_mov_b32 v3, {1 << bit}\nv_cmp_class_f32 vcc, v8, v3\n"
        vcc = "vcc_lo" if arch == "gfx1100" else "vcc"
        code = code.replace("vcc", vcc) + f"v_cndmask_b32 v32, 0, 1, {vcc}"
        output = lanes(arch, code, bits)
        assert output.tolist() == [int(n % 10 == bit) for n in range(count(arch))]


def test_halves_of_registers(arch: str) -> None:
    """A 16-bit result in the lower half clears the upper half on gfx942 and keeps it on gfx1100."""
    x, y = (numbers(arch, n, 3).astype(np.float16) for n in (1, 2))
    pair = x.view(np.uint16) | y.view(np.uint16).astype(np.uint32) << 16
    expected = (x + y).view(np.uint16).astype(np.uint32)
    if arch == "gfx1100":
        code = "v_mov_b32 v32, v8\nv_add_f16 v32.l, v8.l, v8.h"
        expected |= pair & 0xFFFF0000
    else:
        code = ("v_mov_b32 v32, v8\nv_add_f16_sdwa v32, v8, v8 dst_sel:DWORD dst_unused:UNUSED_PAD "
                "src0_sel:WORD_1 src1_sel:DWORD")  # fmt: skip
    assert (lanes(arch, code, pair) == expected).all()


def test_mixed_types(arch: str) -> None:
    half = np.random.default_rng(4).standard_normal(count(arch)).astype(np.float16)
    pair = half.view(np.uint16).astype(np.uint32) << 16
    y, z = numbers(arch, 2, 2), numbers(arch, 3, 2)
    code = "v_fma_mix_f32 v32, v8, -v16, v24 op_sel:[1,0,0] op_sel_hi:[1,0,0]"
    exact = [Fraction(float(c)) - Fraction(float(a)) * Fraction(float(b))
             for a, b, c in zip(half, y, z, strict=True)]  # fmt: skip
    assert lanes(arch, code, pair, y, z, made=np.float32).tolist() == [nearest(e) for e in exact]


# ---- integers -----------------------------------------------------------------------------------

M = 0xFFFFFFFF


def low_bits(value: int, bits: int) -> int:
    """Returns the low bits of a value as a signed number."""
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)


INTEGERS: dict[str, Callable[[int, int, int], int]] = {
    "v_mul_hi_u32 v32, v8, v16": lambda a, b, c: a * b >> 32,
    "v_mul_hi_i32 v32, v8, v16": lambda a, b, c: low_bits(a, 32) * low_bits(b, 32) >> 32,
    "v_mul_lo_u32 v32, v8, v16": lambda a, b, c: a * b,
    "v_mul_u32_u24 v32, v8, v16": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24 v32, v8, v16": lambda a, b, c: low_bits(a, 24) * low_bits(b, 24),
    "v_mad_u32_u24 v32, v8, v16, v24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_add3_u32 v32, v8, v16, v24": lambda a, b, c: a + b + c,
    "v_xad_u32 v32, v8, v16, v24": lambda a, b, c: (a ^ b) + c,
    "v_and_or_b32 v32, v8, v16, v24": lambda a, b, c: a & b | c,
    "v_lshl_add_u32 v32, v8, v16, v24": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32 v32, v8, v16, v24": lambda a, b, c: (a + b & M) << (c & 31),
    "v_lshl_or_b32 v32, v8, 5, v24": lambda a, b, c: a << 5 | c,
    "v_bfi_b32 v32, v8, v16, v24": lambda a, b, c: a & b | ~a & c,
    "v_bfe_u32 v32, v8, 5, 7": lambda a, b, c: a >> 5 & 127,
    "v_bfe_i32 v32, v8, 5, 7": lambda a, b, c: low_bits(a >> 5, 7),
    "v_lshrrev_b32 v32, v8, v16": lambda a, b, c: b >> (a & 31),
    "v_ashrrev_i32 v32, v8, v16": lambda a, b, c: low_bits(b, 32) >> (a & 31),
    "v_max_i32 v32, v8, v16": lambda a, b, c: max(low_bits(a, 32), low_bits(b, 32)),
    "v_min_u32 v32, v8, v16": lambda a, b, c: min(a, b),
    "v_bfrev_b32 v32, v8": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "v_perm_b32 v32, v8, v16, 0x0c050004": (
        lambda a, b, c: (a >> 8 & 255) << 16 | (b & 255) << 8 | a & 255
    ),
    "v_sub_nc_u32 v32, v8, v16": lambda a, b, c: a - b,
    "v_subrev_nc_u32 v32, v8, v16": lambda a, b, c: b - a,
}
_OLD_NAMES = {"v_sub_nc_u32": "v_sub_u32", "v_subrev_nc_u32": "v_subrev_u32"}


@pytest.mark.parametrize("code", INTEGERS)
def test_integers(arch: str, code: str) -> None:
    operands = [words(arch, n) for n in (1, 2, 3)]
    name = code.split()[0]
    text = code if arch == "gfx1100" else code.replace(name, _OLD_NAMES.get(name, name))
    if "0x0c" in text and arch == "gfx942":  # gfx942 allows no literal here.
        text = "s_mov_b32 s20, 0x0c050004\n" + text.replace("0x0c050004", "s20")
    expected = [INTEGERS[code](*map(int, row)) & M for row in zip(*operands, strict=True)]
    assert lanes(arch, text, *operands).tolist() == expected


def test_leading_bits(arch: str) -> None:
    x = words(arch)
    name = "v_cls_i32" if arch == "gfx1100" else "v_ffbh_i32"
    texts = [f"{int(value):032b}" for value in x]
    expected = [(len(t) - len(t.lstrip(t[0]))) if t.strip(t[0]) else M for t in texts]
    assert lanes(arch, f"{name} v32, v8", x).tolist() == expected


def test_sums_with_carry(arch: str) -> None:
    x, y = (words(arch, n, np.uint64) for n in (1, 2))
    new = arch == "gfx1100"
    vcc = "vcc_lo" if new else "vcc"
    second = "v_add_co_ci_u32" if new else "v_addc_co_u32"
    code = f"v_add_co_u32 v32, {vcc}, v8, v16\n{second} v33, {vcc}, v9, v17, {vcc}"
    assert (lanes(arch, code, x, y, made=np.uint64) == x + y).all()
    code = code.replace("add_co_ci", "sub_co_ci").replace("addc_co", "subb_co")
    code = code.replace("v_add_co_u32", "v_sub_co_u32")
    assert (lanes(arch, code, x, y, made=np.uint64) == x - y).all()


def test_wide_products(arch: str) -> None:
    x, y, z = words(arch, 1), words(arch, 2), words(arch, 3, np.uint64)
    carry = "null" if arch == "gfx1100" else "s[20:21]"
    output = lanes(
        arch, f"v_mad_u64_u32 v[32:33], {carry}, v8, v16, v[24:25]", x, y, z, made=np.uint64
    )
    expected = [(int(a) * int(b) + int(c)) % 2**64 for a, b, c in zip(x, y, z, strict=True)]
    assert output.tolist() == expected


SCALARS: dict[str, int] = {
    "s_mul_hi_i32 s20, s20, s21": (-5 * 7 >> 32) & M,
    "s_bfe_i32 s20, s20, 0x40001": low_bits(0xFFFFFFFB >> 1, 4) & M,
    "s_bfe_u32 s20, s20, 0x40001": 0xFFFFFFFB >> 1 & 15,
    "s_lshl2_add_u32 s20, s20, s21": (0xFFFFFFFB * 4 + 7) & M,
    "s_ashr_i32 s20, s20, 1": -3 & M,
    "s_add_u32 s20, s20, s21\ns_addc_u32 s20, s20, 0": 3,
    "s_sub_u32 s20, s21, s20\ns_subb_u32 s20, s20, 0": 11,
    "s_cmp_lt_i32 s20, s21\ns_cselect_b32 s20, 8, 9": 8,
    "s_cmp_lt_u32 s20, s21\ns_cselect_b32 s20, 8, 9": 9,
    "s_bitcmp1_b32 s20, 2\ns_cselect_b32 s20, 8, 9": 9,
    "s_and_b32 s22, s20, 4\ns_cselect_b32 s20, 8, 9": 9,
    "s_movk_i32 s20, 0x8000\ns_addk_i32 s20, 0x7": 0xFFFF8007,
    "s_brev_b32 s20, s21": 0xE0000000,
}


@pytest.mark.parametrize("code", SCALARS)
def test_scalars(arch: str, code: str) -> None:
    text = f"s_mov_b32 s20, -5\ns_mov_b32 s21, 7\n{code}\nv_mov_b32 v32, s20"
    assert (lanes(arch, text) == SCALARS[code]).all()


# ---- between lanes ------------------------------------------------------------------------------

EXCHANGES: dict[str, Callable[[int], int]] = {
    "quad_perm:[2,3,0,1]": lambda n: n ^ 2,
    "row_shl:3": lambda n: n + 3 if n % 16 < 13 else -1,
    "row_shr:2": lambda n: n - 2 if n % 16 >= 2 else -1,
    "row_ror:5": lambda n: n // 16 * 16 + (n - 5) % 16,
    "row_mirror": lambda n: n // 16 * 16 + 15 - n % 16,
    "row_half_mirror": lambda n: n // 8 * 8 + 7 - n % 8,
}
ONLY = {
    "gfx1100": {"row_xmask:6": lambda n: n ^ 6, "row_share:9": lambda n: n // 16 * 16 + 9},
    "gfx942": {"row_bcast:15": lambda n: n // 16 * 16 - 1 if n >= 16 else -1,
               "row_bcast:31": lambda n: 31 if n >= 32 else -1},
}  # fmt: skip


def test_exchanges(arch: str) -> None:
    """Lanes without a source read zero with `bound_ctrl`, and keep their value otherwise."""
    x = words(arch)
    for how, source in {**EXCHANGES, **ONLY[arch]}.items():
        for bound, else_ in (("bound_ctrl:1", 0), ("", 77)):
            code = ("v_mov_b32 v32, 0x4d\n"
                    f"v_mov_b32_dpp v32, v8 {how} row_mask:0xf bank_mask:0xf {bound}")  # fmt: skip
            expected = [else_ if source(n) < 0 else int(x[source(n)]) for n in range(count(arch))]
            assert lanes(arch, code, x).tolist() == expected, how


def test_row_masks(arch: str) -> None:
    x = words(arch)
    code = "v_mov_b32 v32, 77\nv_mov_b32_dpp v32, v8 quad_perm:[0,1,2,3] row_mask:0x2 bank_mask:0x5"
    enabled = [n // 16 == 1 and n // 4 % 2 == 0 for n in range(count(arch))]
    expected = [int(x[n]) if enabled[n] else 77 for n in range(count(arch))]
    assert lanes(arch, code.replace("77", "0x4d"), x).tolist() == expected


def test_bpermute(arch: str) -> None:
    x, at = words(arch), words(arch, 2)
    code = "ds_bpermute_b32 v32, v16, v8\ns_waitcnt lgkmcnt(0)"
    expected = x[(at >> 2) % count(arch)]
    assert (lanes(arch, code, x, at) == expected).all()


def test_one_lane(arch: str) -> None:
    x = words(arch)
    code = ("v_readlane_b32 s20, v8, 5\nv_readfirstlane_b32 s21, v8\ns_xor_b32 s20, s20, s21\n"
            "v_mov_b32 v32, s20\n"
            "v_writelane_b32 v32, s21, 3")  # fmt: skip
    expected = np.full(count(arch), x[5] ^ x[0])
    expected[3] = x[0]
    assert (lanes(arch, code, x) == expected).all()


def test_the_other_row(arch: str) -> None:
    if arch == "gfx942":  # gfx942 lacks this instruction.
        return
    x = words(arch)
    code = """v_mov_b32 v32, 0x4d
    s_mov_b32 s20, 0x76543210
    s_mov_b32 s21, 0x0edcba98
    v_permlanex16_b32 v32, v8, s20, s21"""
    expected = [int(x[(n // 16 ^ 1) * 16 + (n % 16 if n % 16 < 15 else 0)]) for n in range(32)]
    assert lanes(arch, code, x).tolist() == expected
    only_low = code.replace("v_permlanex16", "s_mov_b32 exec_lo, 0x0000ffff\nv_permlanex16")
    after = f"{only_low}\ns_mov_b32 exec_lo, -1"
    assert lanes(arch, after, x).tolist() == [77] * 32  # The source lanes are inactive.
    both_rows = after.replace("v8, s20, s21", "v8, s20, s21 op_sel:[1,0]")
    assert lanes(arch, both_rows, x).tolist() == [*expected[:16], *[77] * 16]


# ---- dual instructions, and parts of registers --------------------------------------------------


def test_dual_instructions_read_first(arch: str) -> None:
    if arch == "gfx942":  # gfx942 lacks dual instructions.
        return
    x, y = words(arch, 1), words(arch, 2)
    code = """v_dual_mov_b32 v8, v17 :: v_dual_mov_b32 v17, v8
    v_mov_b32 v16, v17"""
    code = f"v_mov_b32 v17, v16\n{code}\nv_mov_b32 v32, v8\nv_mov_b32 v33, v16"
    output = lanes(arch, code, x, y, made=np.uint64)
    assert (output == x.astype(np.uint64) << np.uint64(32) | y).all()
    a, b = numbers(arch, 1), numbers(arch, 2)
    code = """v_mov_b32 v11, v16
    v_mov_b32 v12, v16
    v_dual_fmaak_f32 v32, v8, v11, 0x40400000 :: v_dual_mul_f32 v33, 2.0, v12"""
    pairs = lanes(arch, code, a, b, made=np.uint64).view(np.float32).reshape(-1, 2)
    exact = [
        nearest(Fraction(float(p)) * Fraction(float(q)) + 3) for p, q in zip(a, b, strict=True)
    ]
    assert pairs[:, 0].tolist() == exact
    assert (pairs[:, 1] == 2 * b).all()


def test_packed_numbers(arch: str) -> None:
    if arch == "gfx1100":  # gfx1100 lacks packed instructions.
        return
    x, y = (np.stack([numbers(arch, n), numbers(arch, n + 5)], 1) for n in (1, 2))
    wide = [pair.view(np.uint64)[:, 0] for pair in (x, y)]
    for code, expected in {
        "v_pk_add_f32 v[32:33], v[8:9], v[16:17]": x + y,
        "v_pk_mul_f32 v[32:33], v[8:9], v[16:17] neg_lo:[1,0] neg_hi:[0,0]": x * y * [-1, 1],
        "v_pk_mul_f32 v[32:33], v[8:9], v[16:17] op_sel:[1,0] op_sel_hi:[0,1]": x[:, ::-1] * y,
        "v_pk_mul_f32 v[32:33], v[8:9], 0.5 op_sel_hi:[1,0]": x / 2,
    }.items():
        output = lanes(arch, code, *wide, made=np.uint64).view(np.float32).reshape(-1, 2)
        assert (output == expected.astype(np.float32)).all(), code


def test_bytes_of_registers(arch: str) -> None:
    if arch == "gfx1100":  # gfx1100 lacks SDWA operands.
        return
    x, y = words(arch, 1), words(arch, 2)
    byte, half = x >> np.uint32(16) & np.uint32(255), y >> np.uint32(16)
    signed = byte.astype(np.uint8).astype(np.int8).astype(np.int32).astype(np.uint32)
    start = "v_mov_b32 v32, -1\nv_add_u32_sdwa v32, v8, v16"
    for code, expected in {
        "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_1": byte + half,
        "dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_1": (
            (byte + half & np.uint32(255)) << np.uint32(8)
        ),
        "dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_2 src1_sel:WORD_1": (
            byte + half << np.uint32(16) | np.uint32(0xFFFF)
        ),
    }.items():
        assert (lanes(arch, f"{start} {code}", x, y) == expected).all(), code
    code = "dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_1"
    text = f"{start} {code}".replace(", v8,", ", sext(v8),")
    assert (lanes(arch, text, x, y) == signed + half).all()


# ---- matrices -----------------------------------------------------------------------------------

KINDS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "xf32": np.float32,
    "i8": np.int8,
}  # fmt: skip
PRODUCTS = {
    "gfx1100": {"f16": ("v_wmma_f32_16x16x16_f16", 16), "bf16": ("v_wmma_f32_16x16x16_bf16", 16),
                "i8": ("v_wmma_i32_16x16x16_iu8", 16)},
    "gfx942": {"f16": ("v_mfma_f32_16x16x16_f16", 16), "bf16": ("v_mfma_f32_16x16x16_bf16", 16),
               "i8": ("v_mfma_i32_16x16x32_i8", 32), "f32": ("v_mfma_f32_16x16x4_f32", 4),
               "xf32": ("v_mfma_f32_16x16x8_xf32", 8)},
}  # fmt: skip


def product(arch: str, element: str, a: Array, b: Array) -> Array:
    """Returns a b + 3 (f32 or i32), [register, lane] as the instruction leaves it."""
    name, depth = PRODUCTS[arch][element]
    lane = np.arange(count(arch))
    # Each lane has a whole row or a quarter of it.
    block = depth if arch == "gfx1100" else depth // 4
    at = np.arange(block) + (0 if arch == "gfx1100" else block * (lane // 16)[:, None])
    operands = [a[lane[:, None] % 16, at], b[at, lane[:, None] % 16]]
    packed = [np.ascontiguousarray(m.astype(KINDS[element])).view(np.uint32) for m in operands]
    registers, results = packed[0].shape[1], 8 if arch == "gfx1100" else 4
    three = "3" if element == "i8" else "0x40400000"
    span = lambda first, n: f"v[{first}:{first + n - 1}]" if n > 1 else f"v{first}"  # noqa: E731
    loads = [f"global_load_dword v{8 * (k + 1) + n}, v1, s[{4 + 2 * k}:{5 + 2 * k}] offset:{4 * n}"
             for k in range(2) for n in range(registers)]  # fmt: skip
    signs = " neg_lo:[1,1,0]" if "iu8" in name else ""
    out = np.zeros((count(arch), results), np.uint32)
    text = [
        f"{'s_load_b256' if arch == 'gfx1100' else 's_load_dwordx8'} s[4:11], s[0:1], 0x0",
        f"v_mul_u32_u24 v1, {4 * registers}, v0", f"v_mul_u32_u24 v2, {4 * results}, v0",
        *(f"v_mov_b32 v{40 + n}, {three}" for n in range(results)),
        "s_waitcnt lgkmcnt(0)", *loads, "s_waitcnt vmcnt(0)",
        f"{name} {span(40, results)}, {span(8, registers)}, {span(16, registers)}, "
        f"{span(40, results)}{signs}",
        *(f"global_store_dword v2, v{40 + n}, s[8:9] offset:{4 * n}" for n in range(results)),
        "s_endpgm",
    ]  # fmt: skip
    execute(arch, "\n".join(text), [*packed, out, out])
    return out.T.view(np.int32 if element == "i8" else np.float32)


@pytest.mark.parametrize("element", KINDS)
def test_products(arch: str, element: str) -> None:
    """Matrix instructions place exact sums of small integers in the registers that the manuals
    name."""
    if element not in PRODUCTS[arch]:
        assert arch == "gfx1100"  # gfx1100 lacks these instructions.
        return
    depth = PRODUCTS[arch][element][1]
    rng = np.random.default_rng(7)
    a, b = rng.integers(-9, 9, (16, depth)), rng.integers(-9, 9, (depth, 16))
    output = product(arch, element, a, b)
    for row in range(16):
        for column in range(16):
            if arch == "gfx1100":
                register, lane = row // 2, row % 2 * 16 + column
            else:
                register, lane = row % 4, row // 4 * 16 + column
            exact = sum(int(a[row, k]) * int(b[k, column]) for k in range(depth)) + 3
            assert output[register, lane] == exact


# ---- shared memory and faults ----------

SHIFTED = """
v_lshlrev_b32 v3, 2, v0
ds_write_b32 v3, v8
{wait}
{barrier}
v_xor_b32 v3, {other}, v3
ds_read_b32 v32, v3
{end}
"""


def shifted(arch: str, seed: int | None = None, **changed: str) -> None:
    """Runs four waves that each hand their number to another wave."""
    size = 4 * count(arch)
    parts = {"wait": "s_waitcnt lgkmcnt(0)", "barrier": "s_barrier", "end": "s_waitcnt lgkmcnt(0)",
             "other": f"0x{8 * count(arch):x}", **changed}  # fmt: skip
    x, out = np.arange(size, dtype=np.uint32), np.zeros(size, np.uint32)
    text = body(arch, SHIFTED.format(**parts), [4, 4])
    execute(arch, text, [x, out], waves=4, shared=16 * count(arch), seed=seed)
    assert (out == x ^ (2 * count(arch))).all()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_waves_exchange(arch: str, seed: int | None) -> None:
    shifted(arch, seed)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_missing_barrier_is_a_race(arch: str, seed: int | None) -> None:
    """A missing barrier is a race, whichever wave comes first."""
    with pytest.raises(Fault, match=r"a race|nobody wrote it"):
        shifted(arch, seed, barrier="")


MISTAKES = {
    "no wait before the barrier": ({"wait": ""}, "a barrier while writes to shared memory"),
    "no wait for the result": ({"end": ""}, "v32 is used before the load that writes it"),
    "outside": ({"other": "0x10000"}, "4 bytes at 65536 of"),
    "unaligned": ({"other": "2"}, "is not a multiple of 4"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_with_shared_memory(arch: str, mistake: str) -> None:
    changed, words_of_fault = MISTAKES[mistake]
    with pytest.raises(Fault, match=words_of_fault):
        shifted(arch, **changed)


def test_shared_memory_that_nobody_wrote(arch: str) -> None:
    code = "ds_read_b32 v32, v1\ns_waitcnt lgkmcnt(0)"
    out = np.zeros(count(arch), np.uint32)
    with pytest.raises(Fault, match="nobody wrote it"):
        execute(arch, body(arch, code, [4]), [out], shared=4 * count(arch))


def test_loads_of_halves(arch: str) -> None:
    """A load of 16 bits keeps the other half, and a signed byte is extended."""
    code = """v_lshlrev_b32 v3, 2, v0
    v_mov_b32 v32, -1
    ds_write_b32 v3, v8
    s_waitcnt lgkmcnt(0)
    {load}
    s_waitcnt lgkmcnt(0)"""
    x = words(arch)
    high, low = x >> np.uint32(16), x & np.uint32(0xFFFF)
    byte = (x >> np.uint32(8)).astype(np.uint8).astype(np.int8).astype(np.int32).astype(np.uint32)
    for load, expected in {
        "ds_read_u16_d16_hi v32, v3": low << np.uint32(16) | np.uint32(0xFFFF),
        "ds_read_u16_d16 v32, v3 offset:2": high | np.uint32(0xFFFF0000),
        "ds_read_u16 v32, v3 offset:2": high,
        "ds_read_i8 v32, v3 offset:1": byte,
    }.items():
        out = np.zeros(count(arch), np.uint32)
        text = body(arch, code.replace("{load}", load), [4, 4])
        execute(arch, text, [x, out], shared=4 * count(arch))
        assert (out == expected).all(), load


def test_two_at_once(arch: str) -> None:
    code = """v_lshlrev_b32 v3, 3, v0
    ds_write2st64_b32 v3, v8, v16 offset0:1 offset1:3
    s_waitcnt lgkmcnt(0)
    ds_read2st64_b32 v[32:33], v3 offset0:3 offset1:1
    s_waitcnt lgkmcnt(0)"""
    x, y, out = words(arch, 1), words(arch, 2), np.zeros(count(arch), np.uint64)
    execute(arch, body(arch, code, [4, 4, 8]), [x, y, out], shared=2048)
    assert (out == x.astype(np.uint64) << np.uint64(32) | y).all()


GUARDED = """v_cmp_gt_u32 {vcc}, 7, v0
s_and_saveexec_b{n} s[20:21], {vcc}
v_mov_b32 v32, v8
"""


def guarded(arch: str, code: str) -> Array:
    new = arch == "gfx1100"
    text = code.format(vcc="vcc_lo" if new else "vcc", n=count(arch))
    text = text.replace("s[20:21]", "s20") if new else text
    x, out = words(arch), np.zeros(7, np.uint32)
    execute(arch, body(arch, text, [4, 4]), [x, out])
    assert (out == x[:7]).all()
    return out


def test_a_wrong_mask_writes_outside(arch: str) -> None:
    guarded(arch, GUARDED)
    with pytest.raises(Fault, match="not allocated"):
        guarded(arch, GUARDED.replace(" 7,", " 8,"))
    with pytest.raises(Fault, match="not allocated"):
        guarded(arch, "v_mov_b32 v32, v8")


def test_scalars_before_they_are_there(arch: str) -> None:
    text = body(arch, "v_mov_b32 v32, v8", [4, 4]).replace("s_waitcnt lgkmcnt(0)", "")
    x, out = words(arch), np.zeros(count(arch), np.uint32)
    with pytest.raises(Fault, match="s4 is used before the load that writes it"):
        execute(arch, text, [x, out])


def test_buffers_have_an_end(arch: str) -> None:
    """Buffer loads behind the buffer's end give zeros."""
    code = """s_mov_b32 s20, s4
    s_mov_b32 s21, s5
    s_movk_i32 s22, 0x14
    s_mov_b32 s23, 0x{flags}
    buffer_load_dword v32, v1, s[20:23], 0 offen
    s_waitcnt vmcnt(0)"""
    x, out = words(arch) | np.uint32(1), np.zeros(count(arch), np.uint32)
    flags = "31027000" if arch == "gfx1100" else "27000"
    execute(arch, body(arch, code.replace("{flags}", flags), [4, 4]), [x, out])
    assert out.tolist() == [int(value) if n < 5 else 0 for n, value in enumerate(x)]


def test_unknown_instructions_are_errors(arch: str) -> None:
    with pytest.raises(Unknown, match="v_sad_u32"):
        lanes(arch, "v_sad_u32 v32, v8, v16, v8", words(arch), words(arch))
    with pytest.raises(Unknown, match="clamps"):
        lanes(arch, "v_add_f32 v32, v8, v8 clamp", words(arch))
