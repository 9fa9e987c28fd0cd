"""Instructions on the values of lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.lib.emulator.faults import Unknown

from . import numbers
from .forms import form
from .operands import TYPES, WIDTHS, Operands, Read
from .waves import EXEC, VCC, Array, Step, Strand

U = np.uint32


@dataclass(frozen=True)
class Row:
    """An instruction: the types of its result and of its sources, and its function."""

    made: str
    taken: Sequence[str]
    function: Callable[..., Any]


def _shift(by: Array, a: Array, how: Callable[..., Any]) -> Array:
    bits = 8 * a.dtype.itemsize
    return np.asarray(how(a, (by & by.dtype.type(bits - 1)).astype(a.dtype)))


def _left(a: Array, by: Array) -> Array:
    return _shift(by, a, np.left_shift)


def _field(a: Array, at: Array, length: Array) -> Array:
    """Returns a bit field; a signed type extends the field's sign."""
    at, length = at.astype(U) & U(31), length.astype(np.int64) & 31
    field_bits = (a.view(U) >> at).astype(np.int64) & (np.int64(1) << length) - 1
    if a.dtype == np.int32:
        top = np.where(length > 0, np.int64(1) << np.maximum(length - 1, 0), 0)
        field_bits = (field_bits ^ top) - top
    return field_bits.astype(a.dtype)


def _low24(a: Array) -> Array:
    wide = a.astype(np.int64) & 0xFFFFFF
    return wide if a.dtype == U else (wide ^ 0x800000) - 0x800000


def _product24(a: Array, b: Array) -> Array:
    return (_low24(a) * _low24(b)).astype(a.dtype)


def _high(a: Array, b: Array) -> Array:
    wide = np.int64 if a.dtype == np.int32 else np.uint64
    return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)


def _packed_halves(a: Array, b: Array) -> Array:
    return a.view(np.uint16).astype(U) | b.view(np.uint16).astype(U) << U(16)


def _scaled(a: Array, by: Array) -> Array:
    return np.ldexp(a, np.clip(by, -5000, 5000))


ROWS: dict[str, Row] = {}


def _add(name: str, result_kind: str, operand_kinds: str, function: Callable[..., Any]) -> None:
    ROWS[f"v_{name}"] = Row(result_kind, operand_kinds.split(), function)


def _of_floats() -> None:
    for t in ("f16", "f32", "f64"):
        for name, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply,
                               "max": numbers.greatest, "min": numbers.least}.items():  # fmt: skip
            _add(f"{name}_{t}", t, f"{t} {t}", function)
        _add(f"subrev_{t}", t, f"{t} {t}", lambda a, b: b - a)
        _add(f"fma_{t}", t, f"{t} {t} {t}", numbers.fused)
        for name, function in {"trunc": np.trunc, "floor": np.floor, "ceil": np.ceil,
                               "rndne": np.rint}.items():  # fmt: skip
            _add(f"{name}_{t}", t, t, function)
    for name in ("fmac_f32", "fmac_f64", "fmaak_f32", "fmamk_f32"):
        kind = name[-3:]
        _add(name, kind, f"{kind} {kind} {kind}", numbers.fused)


def _of_integers() -> None:
    for t in ("u32", "i32", "u16", "i16"):
        _add(f"max_{t}", t, f"{t} {t}", np.maximum)
        _add(f"min_{t}", t, f"{t} {t}", np.minimum)
    for t in ("u32", "u16"):
        _add(f"add_nc_{t}", t, f"{t} {t}", np.add)
        _add(f"sub_nc_{t}", t, f"{t} {t}", np.subtract)
        _add(f"subrev_nc_{t}", t, f"{t} {t}", lambda a, b: b - a)
        _add(f"mul_lo_{t}", t, f"{t} {t}", np.multiply)
    for t in ("b16", "b32"):
        _add(f"and_{t}", t, f"{t} {t}", np.bitwise_and)
        _add(f"or_{t}", t, f"{t} {t}", np.bitwise_or)
        _add(f"xor_{t}", t, f"{t} {t}", np.bitwise_xor)
        _add(f"not_{t}", t, t, np.invert)
        _add(f"mov_{t}", t, t, lambda a: a)
    _add("mov_b64", "b64", "b64", lambda a: a)
    for bits in (16, 32, 64):
        by = f"u{min(bits, 32)}"
        _add(f"lshlrev_b{bits}", f"u{bits}", f"{by} u{bits}", lambda b, a: _left(a, b))
        _add(f"lshrrev_b{bits}", f"u{bits}", f"{by} u{bits}",
            lambda b, a: _shift(b, a, np.right_shift))  # fmt: skip
        _add(f"ashrrev_i{bits}", f"i{bits}", f"{by} i{bits}",
            lambda b, a: _shift(b, a, np.right_shift))  # fmt: skip


def _of_words() -> None:
    three = "u32 u32 u32"
    _add("add3_u32", "u32", three, lambda a, b, c: a + b + c)
    _add("or3_b32", "u32", three, lambda a, b, c: a | b | c)
    _add("and_or_b32", "u32", three, lambda a, b, c: a & b | c)
    _add("xad_u32", "u32", three, lambda a, b, c: (a ^ b) + c)
    _add("lshl_add_u32", "u32", three, lambda a, b, c: _left(a, b) + c)
    _add("lshl_or_b32", "u32", three, lambda a, b, c: _left(a, b) | c)
    _add("add_lshl_u32", "u32", three, lambda a, b, c: _left(a + b, c))
    _add("lshl_add_u64", "u64", "u64 u32 u64", lambda a, b, c: _left(a, b) + c)
    _add("bfi_b32", "u32", three, lambda a, b, c: a & b | ~a & c)
    _add("bfe_u32", "u32", three, _field)
    _add("bfe_i32", "i32", "i32 u32 u32", _field)
    _add("perm_b32", "u32", three, numbers.permuted_bytes)
    _add("mul_lo_u32", "u32", "u32 u32", np.multiply)
    _add("mul_hi_u32", "u32", "u32 u32", _high)
    _add("mul_hi_i32", "i32", "i32 i32", _high)
    _add("mul_u32_u24", "u32", "u32 u32", _product24)
    _add("mul_i32_i24", "i32", "i32 i32", _product24)
    _add("mad_u32_u24", "u32", three, lambda a, b, c: _product24(a, b) + c)
    _add("bfrev_b32", "u32", "u32", numbers.reversed_bits)
    _add("cls_i32", "i32", "u32", numbers.leading)
    _add("pack_b32_f16", "u32", "f16 f16", _packed_halves)


def _conversions() -> None:
    for result, operand in (("f16", "f32"), ("f32", "f16"), ("f32", "f64"), ("f64", "f32"),
                        ("f32", "i32"), ("f32", "u32"), ("f64", "i32"), ("f64", "u32"),
                        ("f16", "u16"), ("f16", "i16")):  # fmt: skip
        _add(f"cvt_{result}_{operand}", result, operand, lambda a, to=TYPES[result]: a.astype(to))
    for result, operand in (("i32", "f32"), ("u32", "f32"), ("i32", "f64"), ("u32", "f64")):
        _add(f"cvt_{result}_{operand}", result, operand, numbers.to_whole(TYPES[result]))
    _add("cvt_u32_u16", "u32", "u16", lambda a: a.astype(U))
    _add("cvt_i32_i16", "i32", "i16", lambda a: a.astype(np.int32))
    for byte in range(4):
        _add(f"cvt_f32_ubyte{byte}", "f32", "u32",
            lambda a, by=8 * byte: (a >> U(by) & U(255)).astype(np.float32))  # fmt: skip


def _transcendental() -> None:
    _add("exp_f32", "f32", "f32", numbers.flushing(np.exp2))
    _add("log_f32", "f32", "f32", numbers.flushing(np.log2))
    _add("rcp_f32", "f32", "f32", numbers.flushing(np.reciprocal))
    _add("rcp_iflag_f32", "f32", "f32", numbers.flushing(np.reciprocal))
    _add("sqrt_f32", "f32", "f32", numbers.flushing(np.sqrt))
    _add("rsq_f32", "f32", "f32", numbers.flushing(lambda a: 1 / np.sqrt(a)))
    _add("rsq_f64", "f64", "f64", lambda a: 1 / np.sqrt(a))
    _add("ldexp_f32", "f32", "f32 i32", _scaled)
    _add("ldexp_f64", "f64", "f64 i32", _scaled)
    _add("div_fixup_f32", "f32", "f32 f32 f32", numbers.division_fixup)


for _fill in (_of_floats, _of_integers, _of_words, _conversions, _transcendental):
    _fill()
_ACCUMULATE = {"v_fmac_f32", "v_fmac_f64"}


def plain(o: Operands) -> None:
    """Raises Unknown for an instruction that clamps or scales its result."""
    i = o.i
    if i.kind.startswith("VOP3") and "MFMA" not in i.kind and i.get("clmp"):
        raise Unknown(f"{i.name} that clamps")
    if i.kind.startswith("VOP3") and not i.kind.startswith("VOP3P") and i.get("omod"):
        raise Unknown(f"{i.name} with omod")
    if "SDWA" in i.kind and (i.get("clmp") or i.get("omod")):
        raise Unknown(f"{i.name} that clamps or scales")


def codes(o: Operands) -> list[int]:
    """Returns the codes of the source registers, in order."""
    i = o.i
    fields = ("src0", "src1", "src2") if i.kind.startswith("VOP3") else ("src0", "vsrc1")
    return [i.get(name) for name in fields if i.has(name)]


def sources(o: Operands, kinds: Sequence[str]) -> list[Read]:
    operand_codes, i = codes(o), o.i
    if i.name in _ACCUMULATE:
        operand_codes = [*operand_codes[:2], i.get("vdst")]
    if i.name == "v_fmaak_f32":
        operand_codes.append(255)
    if i.name == "v_fmamk_f32":
        operand_codes.insert(1, 255)
    return [
        o.source(code, kind, place)
        for place, (code, kind) in enumerate(zip(operand_codes, kinds, strict=False))
    ]


@form(*ROWS)
def _value(o: Operands) -> Step:
    plain(o)
    row = ROWS[o.i.name]
    reads = sources(o, row.taken)
    assert len(reads) == len(row.taken), o.i
    write, function = o.destination(o.i.get("vdst"), row.made), row.function

    def step(m: Any, s: Strand) -> None:
        write(s, function(*[read(s) for read in reads]))

    return step


# ---- choices and comparisons --------------------------------------------------------------------


@form("v_cndmask_b32", "v_cndmask_b16")
def _choice(o: Operands) -> Step:
    plain(o)
    kind = o.i.name[-3:]
    reads = sources(o, [kind, kind])
    lanes = o.lane_bits(o.i.get("src2") if o.i.kind.startswith("VOP3") else VCC)
    write = o.destination(o.i.get("vdst"), kind)
    return lambda m, s: write(s, np.where(lanes(s), reads[1](s), reads[0](s)))


_COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater, "ne": np.not_equal,
    "ge": np.greater_equal, "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b), "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b),
}  # fmt: skip
_COMPARED = [
    f"v_cmp{x}_{name}_{kind}{bits}"
    for x in ("", "x") for name in (*_COMPARISONS, "class")
    for kind in "fiu" for bits in (16, 32, 64)
]  # fmt: skip


@form(*_COMPARED)
def _comparison(o: Operands) -> Step:
    plain(o)
    i = o.i
    start, name, kind = i.name.split("_")[1:]
    if name == "class":
        width = WIDTHS[kind]
        operand_kinds, function = (
            (f"u{8 * width}", "u32"),
            lambda a, b: numbers.classes(a, b, width),
        )
    else:
        operand_kinds, function = (kind, kind), _COMPARISONS[name]
    reads = sources(o, operand_kinds)
    into = _compared_into(o, start == "cmpx")
    o.touched |= {into + n for n in range(o.arch.mask_words)} - {o.arch.null}

    def step(m: Any, s: Strand) -> None:
        results = np.broadcast_to(function(*[r(s) for r in reads]), (len(s.rows), s.arch.lanes))
        s.put_lanes(into, results & o.where(s) if o.where(s) is not None else results)

    return step


def _compared_into(o: Operands, exec_too: bool) -> int:
    if exec_too:
        if o.arch.name != "gfx1100":
            raise Unknown(f"{o.i.name} of {o.arch.name}")
        return EXEC
    if o.i.kind.startswith("VOP3"):
        return o.i.get("vdst")
    if "SDWA" in o.i.kind and o.i.raw >> 47 & 1:
        return o.i.get("sdst")
    return VCC


# ---- carries ------------------------------------------------------------------------------------


@form("v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32", "v_add_co_ci_u32", "v_sub_co_ci_u32",
      "v_subrev_co_ci_u32")  # fmt: skip
def _carried(o: Operands) -> Step:
    plain(o)
    i, long = o.i, o.i.kind.startswith("VOP3")
    a, b = sources(o, ["u32", "u32"])
    if "subrev" in i.name:
        a, b = b, a
    carry = o.lane_bits(i.get("src2") if long else VCC) if "_ci_" in i.name else None
    into = i.get("sdst") if long else VCC
    o.touched |= {into + n for n in range(o.arch.mask_words)} - {o.arch.null}
    write, sign = o.write_vector(i.get("vdst"), "u32"), 1 if "add" in i.name else -1

    def step(m: Any, s: Strand) -> None:
        total = a(s).astype(np.int64) + sign * b(s).astype(np.int64)
        if carry is not None:
            total = total + sign * carry(s)
        out = np.broadcast_to(total >> 32 != 0, (len(s.rows), s.arch.lanes))
        where = o.where(s)
        write(s, total.astype(U))
        s.put_lanes(into, out if where is None else out & where)

    return step


@form("v_mad_u64_u32")
def _wide_product(o: Operands) -> Step:
    plain(o)
    reads, write = sources(o, ["u32", "u32", "u64"]), o.write_vector(o.i.get("vdst"), "u64")
    into = o.i.get("sdst")

    def step(m: Any, s: Strand) -> None:
        a, b, c = (read(s) for read in reads)
        product = a.astype(np.uint64) * b.astype(np.uint64)
        total = np.broadcast_to(product + c, (len(s.rows), s.arch.lanes))
        write(s, total)
        if into != s.arch.null:
            s.put_lanes(into, (total < product) & s.active_lanes())

    return step


# ---- division -----------------------------------------------------------------------------------


@form("v_div_scale_f32")
def _scale(o: Operands) -> Step:
    reads, write = sources(o, ["f32"] * 3), o.write_vector(o.i.get("vdst"), "f32")
    into = o.i.get("sdst")

    def step(m: Any, s: Strand) -> None:
        result, back = numbers.division_scale(*[read(s) for read in reads])
        lanes = np.broadcast_to(back, (len(s.rows), s.arch.lanes)) & s.active_lanes()
        write(s, result)
        s.put_lanes(into, lanes)

    return step


@form("v_div_fmas_f32")
def _end(o: Operands) -> Step:
    reads, write = sources(o, ["f32"] * 3), o.write_vector(o.i.get("vdst"), "f32")
    back = o.lane_bits(VCC)
    return lambda m, s: write(s, numbers.division_end(*[read(s) for read in reads], back(s)))
