"""`cvt` and `cvta`."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .arithmetic import pure
from .numbers import TYPES, from_bf16, from_float8, halves, packed, to_bf16, to_integer, to_tf32
from .parse import Instruction
from .program import Array, Body, Machine, Program, Strand, form

_INTEGER = r"[us](?:8|16|32|64)"
_WHOLE: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip


@form(rf"cvt\.({_INTEGER})\.({_INTEGER})")
def _between_integers(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[1], (f[2],), lambda a: a.astype(TYPES[f[1]]))


@form(rf"cvt\.(rni|rzi|rmi|rpi)\.({_INTEGER})\.(f16|f32|f64)")
def _to_integer(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    convert, dtype = _WHOLE[f[1]], TYPES[f[2]]
    return pure(p, i, f[2], (f[3],), lambda a: to_integer(convert(a.astype(np.float64)), dtype))


def _from_wide_integer(a: Array) -> Array:
    """Converts 64-bit integers to f32 with one rounding: the detour through f64 rounds to odd."""
    double = a.astype(np.float64)
    back = double.astype(np.longdouble)
    remainder = a.astype(np.longdouble) - back
    bits = np.ascontiguousarray(double).view(np.int64)
    away = (remainder > 0) == (double > 0)
    odd = np.where((remainder != 0) & (bits & 1 == 0), bits + np.where(away, 1, -1), bits)
    return odd.view(np.float64).astype(np.float32)


@form(rf"cvt\.rn\.(f16|f32|f64)\.({_INTEGER})")
def _from_integer(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    dtype = TYPES[f[1]]
    if f[2][1:] == "64" and f[1] == "f32":
        return pure(p, i, f[1], (f[2],), _from_wide_integer)
    return pure(p, i, f[1], (f[2],), lambda a: a.astype(dtype))


@form(r"cvt\.(rni|rzi|rmi|rpi)\.(f16|f32|f64)\.(f16|f32|f64)")
def _whole(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[2], (f[3],), lambda a: _WHOLE[f[1]](a).astype(TYPES[f[2]]))


@form(r"cvt(?:\.rn)?\.(f16|f32|f64)\.(f16|f32|f64)")
def _between_floats(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    return pure(p, i, f[1], (f[2],), lambda a: a.astype(TYPES[f[1]]))


@form(r"cvt\.f32\.bf16")
def _widened(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    return pure(p, i, "f32", ("bf16",), from_bf16)


@form(r"cvt\.rn\.bf16\.f32")
def _narrowed(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    return pure(p, i, "bf16", ("f32",), to_bf16)


@form(r"cvt\.rn\.(bf16|f16)x2\.f32")
def _pair(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    """The first source becomes the high half."""

    def both(high: Array, low: Array) -> Array:
        return packed(halves(low, f[1]), halves(high, f[1]))

    return pure(p, i, "b32", ("f32", "f32"), both)


@form(r"cvt\.rn\.f16x2\.(e4m3|e5m2)x2")
def _pair_of_codes(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    def both(codes: Array) -> Array:
        values = [from_float8(codes >> np.uint16(shift) & np.uint16(255), f[1]) for shift in (0, 8)]
        return packed(*[halves(x, "f16") for x in values])

    return pure(p, i, "b32", ("b16",), both)


@form(r"cvt\.rna\.tf32\.f32")
def _rounded(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    return pure(p, i, "b32", ("f32",), to_tf32)


@form(r"cvta\.param\.u64")
def _generic(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    write, read = p.write(i.operands[0], "u64"), p.read(i.operands[1], "u64")

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        write(m, s, read(m, s, active) + np.uint64(m.parameters), active)

    return body


@form(r"cvta\.to\.global\.u64")
def _global(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    return pure(p, i, "u64", ("u64",), lambda a: a)
