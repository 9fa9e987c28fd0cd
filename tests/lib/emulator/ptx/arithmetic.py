"""Instructions on values alone: integers, floats, predicates, and selections between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .numbers import TYPES, fused, halves, packed, pairs
from .parse import Instruction
from .program import Array, Body, Machine, Program, Strand, form, parts


def pure(
    p: Program, i: Instruction, result: str, kinds: Sequence[str], function: Callable[..., Array]
) -> Body:
    """Returns an instruction with one result, which `function` computes from values of `kinds`."""
    write = p.write(i.operands[0], result)
    reads = [p.read(o, kind) for o, kind in zip(i.operands[1:], kinds, strict=True)]

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        write(m, s, function(*[read(m, s, active) for read in reads]), active)

    return body


# ---- two operands -------------------------------------------------------------------------------

_ORDINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@form(r"(add|sub)\.([us](?:16|32|64))|mul(?:\.lo)\.([us](?:16|32|64))")
def _integer(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    name, kind = f[1] or "mul", f[2] or f[3]
    return pure(p, i, kind, (kind, kind), _ORDINARY[name])


@form(r"(add|sub|mul)\.rn\.(f16|f32|f64)|(add|sub|mul)\.(f16|f32|f64)")
def _float(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    kind = f[2] or f[4]
    return pure(p, i, kind, (kind, kind), _ORDINARY[f[1] or f[3]])


@form(r"(and|or|xor)\.(pred|b16|b32|b64)")
def _bits(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[2], (f[2], f[2]), _ORDINARY[f[1]])


@form(r"not\.(pred|b16|b32|b64)")
def _not(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[1], (f[1],), np.invert)


@form(r"(min|max)\.([us](?:16|32|64))")
def _extreme_integer(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[2], (f[2], f[2]), np.minimum if f[1] == "min" else np.maximum)


def _zero_ordered(name: str, nan: bool, a: Array, b: Array) -> Array:
    """Returns the minimum or maximum, where -0 is less than +0; with `nan` NaN wins, else it
    loses."""
    less = (a < b) | ((a == b) & np.signbit(a))
    extreme = np.where(less if name == "min" else ~less, a, b)
    either = np.isnan(a) | np.isnan(b)
    other = np.array(np.nan, a.dtype) if nan else np.where(np.isnan(a), b, a)
    return np.where(either, other, extreme).astype(a.dtype)


@form(r"(min|max)(\.NaN)?\.(f16|f32|f64)")
def _extreme(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    nan = bool(f[2])
    return pure(p, i, f[3], (f[3], f[3]), lambda a, b: _zero_ordered(f[1], nan, a, b))


@form(r"(min|max)(\.NaN)?\.(bf16|f16x2|bf16x2)")
def _extreme_packed(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    kind = f[3].removesuffix("x2")

    def choose(a: Array, b: Array) -> Array:
        a, b = a.astype(np.uint32), b.astype(np.uint32)
        operand_pairs = [_zero_ordered(f[1], bool(f[2]), x, y)
                for x, y in zip(pairs(a, kind), pairs(b, kind), strict=True)]  # fmt: skip
        results = packed(*[halves(x, kind) for x in operand_pairs])
        return results if f[3].endswith("x2") else results.astype(np.uint16)

    return pure(p, i, f[3], (f[3], f[3]), choose)


@form(r"copysign\.(f32|f64)")
def _copysign(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[1], (f[1], f[1]), lambda sign, size: np.copysign(size, sign))


# ---- widening products --------------------------------------------------------------------------

_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


@form(r"(mul|mad)\.wide\.([us](?:16|32))")
def _wide(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    wide = _WIDER[f[2]]
    dtype = TYPES[wide]
    if f[1] == "mul":
        return pure(p, i, wide, (f[2], f[2]), lambda a, b: a.astype(dtype) * b.astype(dtype))
    return pure(
        p, i, wide, (f[2], f[2], wide), lambda a, b, c: a.astype(dtype) * b.astype(dtype) + c
    )


@form(r"mad\.lo\.([us](?:16|32|64))")
def _mad(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[1], (f[1],) * 3, lambda a, b, c: a * b + c)


@form(r"mul\.hi\.([us](?:16|32|64))")
def _high(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    def high(a: Array, b: Array) -> Array:
        product = a.astype(object) * b.astype(object)
        return np.asarray(product >> (8 * a.dtype.itemsize)).astype(a.dtype)

    def narrow(a: Array, b: Array) -> Array:
        wide = np.int64 if f[1][0] == "s" else np.uint64
        shift = wide(8 * a.dtype.itemsize)
        return (a.astype(wide) * b.astype(wide) >> shift).astype(a.dtype)

    return pure(p, i, f[1], (f[1], f[1]), high if f[1].endswith("64") else narrow)


def _quotient(a: Array, b: Array) -> Array:
    """Returns quotients that truncate towards zero; a quotient by zero is all ones, as on the
    machine."""
    divisor = np.where(b == 0, 1, b).astype(a.dtype)
    floored = np.floor_divide(a, divisor)
    exact = floored * divisor == a
    upward = ~exact & ((a < 0) != (b < 0)) if a.dtype.kind == "i" else False
    return np.where(b == 0, np.array(-1).astype(a.dtype), floored + upward).astype(a.dtype)


@form(r"(div|rem)\.([us](?:16|32|64))")
def _divided(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    if f[1] == "div":
        return pure(p, i, f[2], (f[2], f[2]), _quotient)
    return pure(p, i, f[2], (f[2], f[2]), lambda a, b: a - _quotient(a, b) * b)


# ---- shifts and fields --------------------------------------------------------------------------


@form(r"(shl|shr)\.([bus])(16|32|64)")
def _shift(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    kind, width = f[2] + f[3], int(f[3])

    def shift(a: Array, by: Array) -> Array:
        amount = np.minimum(by, width - 1).astype(a.dtype)
        if f[1] == "shr" and f[2] == "s":
            return a >> amount
        shifted = a << amount if f[1] == "shl" else a >> amount
        return np.where(by >= width, 0, shifted).astype(a.dtype)

    return pure(p, i, kind, (kind, "u32"), shift)


@form(r"bfe\.([us])(32|64)")
def _field(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    kind, width = f[1] + f[2], int(f[2])

    def field(a: Array, at: Array, length: Array) -> Array:
        begin = (at & 255).astype(np.int64)
        size = np.minimum((length & 255).astype(np.int64), width - np.minimum(begin, width))
        up = np.maximum(width - begin - size, 0).astype(a.dtype)
        shifted = (a << up) >> np.minimum(width - size, width - 1).astype(a.dtype)
        return np.where(size == 0, 0, shifted).astype(a.dtype)

    return pure(p, i, kind, (kind, "u32", "u32"), field)


@form(r"prmt\.b32")
def _prmt(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    """`prmt` picks any four of eight bytes; bit 3 of a selector replicates the byte's sign."""

    def choose(a: Array, b: Array, how: Array) -> Array:
        octets = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
        result = np.zeros(np.broadcast(a, b, how).shape, np.uint32)
        for n in range(4):
            choice = how >> np.uint32(4 * n) & np.uint32(15)
            place = (choice & np.uint32(7)).astype(np.uint64) * np.uint64(8)
            byte = octets >> place & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            byte = np.where(choice & np.uint32(8), sign, byte).astype(np.uint32)
            result |= byte << np.uint32(8 * n)
        return result

    return pure(p, i, "b32", ("b32",) * 3, choose)


@form(r"popc\.b32")
def _popc(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    return pure(p, i, "u32", ("b32",), lambda a: np.bitwise_count(a).astype(np.uint32))


# ---- one operand --------------------------------------------------------------------------------


@form(r"(neg|abs)\.(s16|s32|s64|f16|f32|f64)")
def _sign(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[2], (f[2],), np.negative if f[1] == "neg" else np.abs)


def _through_double(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda a: function(a.astype(np.float64)).astype(a.dtype)


# The PTX manual allows devices an error (2 units for ex2 and lg2, 1 for rcp). Here results are
# rounded once.
_APPROXIMATE: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2, "lg2": np.log2, "rcp": np.reciprocal, "rsqrt": lambda a: 1 / np.sqrt(a),
    "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
}  # fmt: skip


@form(r"(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.approx\.f32")
def _approximate(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, "f32", ("f32",), _through_double(_APPROXIMATE[f[1]]))


@form(r"(sqrt|rcp)\.rn\.(f32|f64)")
def _root(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[2], (f[2],), np.sqrt if f[1] == "sqrt" else lambda a: a.dtype.type(1) / a)


@form(r"div\.rn\.(f32|f64)")
def _div(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[1], (f[1], f[1]), np.divide)


@form(r"fma\.rn\.(f16|f32|f64)")
def _fma(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[1], (f[1],) * 3, fused)


# ---- choices ------------------------------------------------------------------------------------


@form(r"selp\.([bus](?:16|32|64)|f32|f64)")
def _selp(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[1], (f[1], f[1], "pred"), lambda a, b, which: np.where(which, a, b))


_COMPARISONS: dict[str, Callable[..., Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip


def _comparison(name: str, is_float: bool) -> Callable[[Array, Array], Array]:
    """Returns a comparison of floats or integers.

    A comparison of floats holds for NaN if its name ends in `u`.
    """
    if name in ("num", "nan"):
        either = lambda a, b: np.isnan(a) | np.isnan(b)  # noqa: E731
        return either if name == "nan" else lambda a, b: ~either(a, b)
    if is_float and name.endswith("u"):
        ordered = _COMPARISONS[name[:-1]]
        return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)
    if is_float and name == "ne":
        return lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b)
    return _COMPARISONS[name]


@form(r"setp\.(\w+)(?:\.(and|or|xor))?\.([bus](?:16|32|64)|f16|f32|f64)")
def _setp(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    kind, compare = f[3], _comparison(f[1], f[3][0] == "f")
    if f[2] is None:
        return pure(p, i, "pred", (kind, kind), compare)
    join = _ORDINARY[f[2]]
    return pure(p, i, "pred", (kind, kind, "pred"), lambda a, b, c: join(compare(a, b), c))


@form(r"mov\.([bus](?:8|16|32|64)|f32|f64|pred)")
def _mov(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    """`mov` also converts between one register and the parts of a vector, lowest part first."""
    to, source = (parts(o) for o in i.operands)
    if len(to) == len(source) == 1:
        return pure(p, i, f[1], (f[1],), lambda a: a)
    width = int(f[1][1:]) // 8
    if len(to) > 1:
        kind = f"b{8 * width // len(to)}"
        writes, read = [p.write(o, kind) for o in to], p.read(source[0], f[1])

        def divide(m: Machine, s: Strand, active: Array | None) -> None:
            words = np.ascontiguousarray(read(m, s, active)).view(TYPES[kind])
            for n, write in enumerate(writes):
                write(m, s, words[:, n :: len(writes)], active)

        return divide
    kind = f"b{8 * width // len(source)}"
    reads, write = [p.read(o, kind) for o in source], p.write(to[0], f[1])

    def join(m: Machine, s: Strand, active: Array | None) -> None:
        register_parts = np.broadcast_arrays(*[read(m, s, active) for read in reads])
        write(m, s, np.stack(register_parts, -1).view(TYPES[f"b{8 * width}"])[..., 0], active)

    return join
