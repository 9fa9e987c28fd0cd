"""Scalar instructions, including those that change the active lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .forms import form
from .numbers import reversed_bits
from .operands import WIDTHS, Operands, Read
from .waves import EXEC, Array, Step, Strand

_NOT_ZERO, _KEPT = "result", "kept"


def _bits(a: Array, by: Array) -> Array:
    return (by & by.dtype.type(8 * a.dtype.itemsize - 1)).astype(a.dtype)


def _carry_out(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    total = a.astype(np.uint64) + b
    return total.astype(np.uint32), total >> np.uint64(32) != 0


def _borrow_out(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    return a - b, b > a


def _with_carry(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    total = a.astype(np.uint64) + b + scc
    return total.astype(np.uint32), total >> np.uint64(32) != 0


def _with_borrow(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    total = a.astype(np.int64) - b.astype(np.int64) - scc
    return total.astype(np.uint32), total < 0


def _signed(how: Callable[..., Any]) -> Callable[..., tuple[Array, Array]]:
    """Returns the signed operation, which sets the condition code on overflow."""

    def both(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
        wide = how(a.astype(np.int64), b.astype(np.int64))
        result = wide.astype(np.int32)
        return result, result != wide

    return both


def _shifted_add(by: int) -> Callable[..., tuple[Array, Array]]:
    def both(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
        total = (a.astype(np.uint64) << np.uint64(by)) + b
        return total.astype(np.uint32), total >> np.uint64(32) != 0

    return both


def _field(a: Array, how: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    at, length = how & np.uint32(bits - 1), (how >> np.uint32(16)).astype(np.int64) & 127
    field_bits = (a >> at.astype(a.dtype)).astype(np.int64) & (np.int64(1) << length) - 1
    if a.dtype.kind == "i":
        top = np.where(length > 0, np.int64(1) << np.maximum(length - 1, 0), 0)
        field_bits = (field_bits ^ top) - top
    return field_bits.astype(a.dtype)


def _high(a: Array, b: Array) -> Array:
    wide = np.int64 if a.dtype == np.int32 else np.uint64
    return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)


# Names lack "s_". The columns are the types of the result and of the sources, the function, and the
# source of the condition code: a nonzero result, its old value, or the function's second result.
_WITH_CODE: dict[str, tuple[str, Callable[..., tuple[Array, Array]]]] = {
    "add_u32": ("u32", _carry_out), "sub_u32": ("u32", _borrow_out),
    "addc_u32": ("u32", _with_carry), "subb_u32": ("u32", _with_borrow),
    "add_i32": ("i32", _signed(np.add)), "sub_i32": ("i32", _signed(np.subtract)),
    **{f"lshl{n}_add_u32": ("u32", _shifted_add(n)) for n in range(1, 5)},
}  # fmt: skip
_PLAIN: dict[str, tuple[str, str, Callable[..., Any], str]] = {
    "mul_i32": ("i32", "i32 i32", np.multiply, _KEPT),
    "mul_hi_u32": ("u32", "u32 u32", _high, _KEPT),
    "mul_hi_i32": ("i32", "i32 i32", _high, _KEPT),
    "bfe_u32": ("u32", "u32 u32", _field, _NOT_ZERO),
    "bfe_i32": ("i32", "i32 u32", _field, _NOT_ZERO),
    "brev_b32": ("u32", "u32", reversed_bits, _KEPT),
}
for _n in (32, 64):
    _b, _i, _u = f"b{_n}", f"i{_n}", f"u{_n}"
    _PLAIN |= {
        f"and_{_b}": (_b, f"{_b} {_b}", np.bitwise_and, _NOT_ZERO),
        f"or_{_b}": (_b, f"{_b} {_b}", np.bitwise_or, _NOT_ZERO),
        f"xor_{_b}": (_b, f"{_b} {_b}", np.bitwise_xor, _NOT_ZERO),
        f"and_not1_{_b}": (_b, f"{_b} {_b}", lambda a, b: a & ~b, _NOT_ZERO),
        f"not_{_b}": (_b, _b, np.invert, _NOT_ZERO),
        f"mov_{_b}": (_b, _b, lambda a: a, _KEPT),
        f"lshl_{_b}": (_b, f"{_b} u32", lambda a, b: a << _bits(a, b), _NOT_ZERO),
        f"lshr_{_b}": (_b, f"{_b} u32", lambda a, b: a >> _bits(a, b), _NOT_ZERO),
        f"ashr_{_i}": (_i, f"{_i} u32", lambda a, b: a >> _bits(a, b), _NOT_ZERO),
    }


def _sources(o: Operands, kinds: list[str]) -> list[Read]:
    return [o.scalar(o.i.get(f"ssrc{n}"), kind) for n, kind in enumerate(kinds)]


@form(*(f"s_{name}" for name in _PLAIN))
def _value(o: Operands) -> Step:
    result_kind, operand_kinds, function, code = _PLAIN[o.i.name.removeprefix("s_")]
    reads, write = _sources(o, operand_kinds.split()), o.write_scalar(o.i.get("sdst"), result_kind)

    def step(m: Any, s: Strand) -> None:
        value = np.broadcast_to(function(*[read(s) for read in reads]), len(s.rows))
        if code is _NOT_ZERO:
            s.scc = value != 0
        write(s, value)

    return step


@form(*(f"s_{name}" for name in _WITH_CODE))
def _coded(o: Operands) -> Step:
    kind, function = _WITH_CODE[o.i.name.removeprefix("s_")]
    (a, b), write = _sources(o, [kind] * 2), o.write_scalar(o.i.get("sdst"), kind)

    def step(m: Any, s: Strand) -> None:
        value, code = function(np.asarray(a(s)), np.asarray(b(s)), s.scc)
        s.scc = np.array(np.broadcast_to(code, len(s.rows)))
        write(s, np.broadcast_to(value, len(s.rows)))

    return step


@form("s_cselect_b32", "s_cselect_b64")
def _choice(o: Operands) -> Step:
    kind = o.i.name[-3:]
    (a, b), write = _sources(o, [kind] * 2), o.write_scalar(o.i.get("sdst"), kind)
    return lambda m, s: write(s, np.where(s.scc, a(s), b(s)))


@form("s_movk_i32", "s_addk_i32", "s_mulk_i32")
def _short(o: Operands) -> Step:
    value = o.i.get("simm16")
    fixed = np.int64(value - (value >> 15 << 16))
    old, write = o.scalar(o.i.get("sdst"), "i32"), o.write_scalar(o.i.get("sdst"), "i32")
    name = o.i.name

    def step(m: Any, s: Strand) -> None:
        wide = np.full(len(s.rows), fixed)
        if name == "s_mulk_i32":
            wide = wide * old(s)
        if name == "s_addk_i32":
            wide = wide + old(s)
            s.scc = wide != wide.astype(np.int32)
        write(s, wide.astype(np.int32))

    return step


@form("s_bitset1_b32")
def _set_bit(o: Operands) -> Step:
    (at,) = _sources(o, ["u32"])
    old, write = o.scalar(o.i.get("sdst"), "u32"), o.write_scalar(o.i.get("sdst"), "u32")
    return lambda m, s: write(s, old(s) | np.uint32(1) << (at(s) & np.uint32(31)))


# ---- comparisons --------------------------------------------------------------------------------

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "lg": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less,
    "le": np.less_equal,
}  # fmt: skip


@form(*(f"s_cmp_{n}_{k}" for n in _COMPARISONS for k in ("i32", "u32", "u64")))
def _compared(o: Operands) -> Step:
    _, _, name, kind = o.i.name.split("_")
    a, b = _sources(o, [kind, kind])
    return lambda m, s: _decide(s, _COMPARISONS[name](a(s), b(s)))


@form(*(f"s_cmpk_{n}_{k}" for n in _COMPARISONS for k in ("i32", "u32")))
def _compared_short(o: Operands) -> Step:
    _, _, name, kind = o.i.name.split("_")
    value = o.i.get("simm16")
    fixed = value if kind == "u32" else value - (value >> 15 << 16)
    a = o.scalar(o.i.get("sdst"), kind)
    return lambda m, s: _decide(s, _COMPARISONS[name](a(s).astype(np.int64), fixed))


@form("s_bitcmp0_b32", "s_bitcmp1_b32")
def _bit(o: Operands) -> Step:
    (a, at), bit = _sources(o, ["u32", "u32"]), int("cmp1" in o.i.name)
    return lambda m, s: _decide(s, (a(s) >> (at(s) & np.uint32(31)) & np.uint32(1)) == bit)


def _decide(s: Strand, code: Array) -> None:
    s.scc = np.array(np.broadcast_to(code, len(s.rows)))


# ---- active lanes ----------

_SAVED: dict[str, Callable[..., Any]] = {
    "and": lambda new, old: new & old, "or": lambda new, old: new | old,
    "and_not1": lambda new, old: new & ~old,
}  # fmt: skip


@form(*(f"s_{name}_saveexec_b{n}" for name in _SAVED for n in (32, 64)))
def _saved(o: Operands) -> Step:
    kind, how = o.i.name[-3:], _SAVED[o.i.name.removeprefix("s_").rsplit("_", 2)[0]]
    assert WIDTHS[kind] * 8 == o.arch.lanes, o.i
    (new,), old = _sources(o, [kind]), o.scalar(EXEC, kind)
    save, write = o.write_scalar(o.i.get("sdst"), kind), o.write_scalar(EXEC, kind)

    def step(m: Any, s: Strand) -> None:
        before = np.array(old(s))
        after = how(np.array(np.broadcast_to(new(s), len(s.rows))), before)
        save(s, before)
        write(s, after)
        s.scc = after != 0

    return step
