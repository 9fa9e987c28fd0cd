"""Matrix instructions of one warp: `ldmatrix`, `stmatrix`, `mma.sync`."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tests.lib.emulator.faults import Unknown

from .loads import looked_at, put
from .machine import LANES
from .numbers import cut_tf32, from_float8, pairs
from .parse import Instruction
from .program import Array, Body, Machine, Program, Strand, form, parts, whole

_LANE = np.arange(LANES)
GROUP, MEMBER = _LANE // 4, _LANE % 4  # A lane's group of four lanes, and its place in the group.
_COUNT = {"x1": 1, "x2": 2, "x4": 4}


def _rows_of_matrices(m: Machine, s: Strand, address: Array, count: int) -> tuple[Array, Array]:
    """Returns warps and addresses of the rows: lane n has row n % 8 of matrix n / 8."""
    at = np.broadcast_to(address, (len(s.rows), LANES))[:, : 8 * count]
    return np.repeat(s.rows, 8 * count), at.ravel()


@form(r"ldmatrix\.sync\.aligned\.m8n8\.(x1|x2|x4)(\.trans)?\.shared(?:::cta)?\.b16")
def _ldmatrix(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    count, transposed = _COUNT[f[1]], bool(f[2])
    writes, address = (
        [p.write(o, "b32") for o in parts(i.operands[0])],
        p.address(i.operands[1], "u32"),
    )

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        whole(s, active)
        rows, at = _rows_of_matrices(m, s, address(m, s, active), count)
        places = looked_at(m, rows, at, 16)
        halves = m.shared.get(places[:, None] + 2 * np.arange(8), 2)
        matrices = halves.reshape(len(s.rows), count, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        for n, write in enumerate(writes):
            words = np.ascontiguousarray(matrices[:, n]).view(np.uint32)
            write(m, s, words.reshape(len(s.rows), LANES), active)

    return body


@form(r"stmatrix\.sync\.aligned\.m8n8\.(x1|x2|x4)(\.trans)?\.shared(?:::cta)?\.b16")
def _stmatrix(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    count, transposed = _COUNT[f[1]], bool(f[2])
    reads, address = (
        [p.read(o, "b32") for o in parts(i.operands[1])],
        p.address(i.operands[0], "u32"),
    )

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        whole(s, active)
        values = [np.broadcast_to(r(m, s, active), (len(s.rows), LANES)) for r in reads]
        matrices = np.ascontiguousarray(np.stack(values, 1)).view(np.uint16)
        matrices = matrices.reshape(len(s.rows), count, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        rows, at = _rows_of_matrices(m, s, address(m, s, active), count)
        put(m, rows, at, matrices.reshape(-1, 8))

    return body


# ---- mma ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Elements:
    """The elements of a kind in a 32-bit register."""

    kind: str
    count: int

    def values(self, bits: Array) -> Array:
        """Returns the values, with the elements of each register on the last axis."""
        if self.kind in ("f16", "bf16"):
            return np.stack(pairs(bits, self.kind), -1).astype(np.float64)
        if self.kind == "tf32":
            return cut_tf32(bits).astype(np.float64)[..., None]
        codes = np.ascontiguousarray(bits).view(np.uint8).reshape(*bits.shape, 4)
        if self.kind in ("s8", "u8"):
            return codes.view(np.int8 if self.kind == "s8" else np.uint8).astype(np.int64)
        return from_float8(codes, self.kind).astype(np.float64)


_COUNTS = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4, "e4m3": 4, "e5m2": 4}
ELEMENTS = {kind: Elements(kind, count) for kind, count in _COUNTS.items()}


def matrix_a(values: list[Array], elements: Elements) -> Array:
    """Returns A [warp, 16, k] from its registers [warp, lane]: eights of rows, then halves of k."""
    n = elements.count
    k = 4 * n * (len(values) // 2)
    full = np.zeros((len(values[0]), 16, k), elements.values(values[0]).dtype)
    for number, bits in enumerate(values):
        columns = 4 * n * (number >> 1) + n * MEMBER[:, None] + np.arange(n)
        full[:, (GROUP + 8 * (number & 1))[:, None], columns] = elements.values(bits)
    return full


def _matrix_b(values: list[Array], elements: Elements) -> Array:
    n = elements.count
    full = np.zeros((len(values[0]), 4 * n * len(values), 8), elements.values(values[0]).dtype)
    for number, bits in enumerate(values):
        rows = 4 * n * number + n * MEMBER[:, None] + np.arange(n)
        full[:, rows, GROUP[:, None]] = elements.values(bits)
    return full


_FLOAT = r"(f16|bf16|tf32|e4m3|e5m2)"
_FLOATS = rf"row\.col\.f32\.{_FLOAT}\.{_FLOAT}\.f32"
_INTEGERS = r"row\.col(\.satfinite)?\.s32\.([su]8)\.([su]8)\.s32"


@form(rf"mma\.sync\.aligned\.m16n8k(\d+)\.(?:{_FLOATS}|{_INTEGERS})")
def _mma(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    """Products are exact, and their sum is rounded once; a device rounds or truncates in between.

    Integer sums saturate at the ends of s32 with `.satfinite`; otherwise they wrap.
    """
    number, bounded = "f32" if f[2] else "s32", bool(f[4])
    element, right = ELEMENTS[f[2] or f[5]], ELEMENTS[f[3] or f[6]]
    kinds = ("b32", "b32", number)
    sources = zip(i.operands[1:], kinds, strict=True)
    reads = [[p.read(o, kind) for o in parts(operand)] for operand, kind in sources]
    writes = [p.write(o, number) for o in parts(i.operands[0])]
    if 4 * element.count * len(reads[0]) // 2 != int(f[1]):
        raise Unknown(i.text)

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        whole(s, active)
        shape = (len(s.rows), LANES)
        a, b, c = ([np.broadcast_to(r(m, s, active), shape) for r in readers] for readers in reads)
        product = matrix_a(a, element) @ _matrix_b(b, right)
        for n, write in enumerate(writes):
            total = product[:, GROUP + 8 * (n >> 1), 2 * MEMBER + (n & 1)] + c[n]
            if bounded:
                total = np.clip(total, -(2**31), 2**31 - 1)
            write(m, s, total.astype(c[n].dtype), active)

    return body
