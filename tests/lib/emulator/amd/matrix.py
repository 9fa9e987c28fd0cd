"""Matrix products: WMMA of RDNA3 and MFMA of CDNA3.

Sums are exact enough in f64, or integers, and are rounded once. Layouts: AMD, "RDNA3 Instruction
Set Architecture", section 7.9, and "CDNA3 Instruction Set Architecture", section 7.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.lib.emulator.faults import Fault, Unknown
from tests.lib.emulator.ptx.numbers import cut_tf32, from_bf16

from .forms import form
from .operands import ACCUMULATORS, Operands, Read
from .vector import plain
from .waves import Array, Step, Strand

_SIDE = 16


def _halves(bits: Array) -> Array:
    return np.ascontiguousarray(bits).view(np.uint16)


_ELEMENTS: dict[str, Callable[[Array], Array]] = {
    "f16": lambda bits: _halves(bits).view(np.float16).astype(np.float64),
    "bf16": lambda bits: from_bf16(_halves(bits)).astype(np.float64),
    "f32": lambda bits: np.ascontiguousarray(bits).view(np.float32).astype(np.float64),
    "xf32": lambda bits: cut_tf32(np.ascontiguousarray(bits)).astype(np.float64),
    "i8": lambda bits: np.ascontiguousarray(bits).view(np.int8).astype(np.int64),
    "u8": lambda bits: np.ascontiguousarray(bits).view(np.uint8).astype(np.int64),
}


@dataclass(frozen=True)
class _Form:
    result: str
    element: str
    registers: int  # of A and of B


_WMMA = {
    "v_wmma_f32_16x16x16_f16": _Form("f32", "f16", 8),
    "v_wmma_f32_16x16x16_bf16": _Form("f32", "bf16", 8),
    "v_wmma_i32_16x16x16_iu8": _Form("i32", "i8", 4),
}
_MFMA = {
    "v_mfma_f32_16x16x4_f32": _Form("f32", "f32", 1),
    "v_mfma_f32_16x16x8_xf32": _Form("f32", "xf32", 2),
    "v_mfma_f32_16x16x16_f16": _Form("f32", "f16", 2),
    "v_mfma_f32_16x16x16_bf16": _Form("f32", "bf16", 2),
    "v_mfma_i32_16x16x32_i8": _Form("i32", "i8", 2),
}


def _registers(o: Operands, code: int, count: int) -> Callable[[Strand], Array]:
    """Returns a function that reads registers as [wave, lane, register]."""
    o.touched |= {code + n for n in range(count)}
    first = code - 256
    return lambda s: np.moveaxis(s.vectors[first : first + count], 0, -1)


def _addend(o: Operands, code: int, count: int, kind: str) -> Callable[[Strand], Array]:
    """Returns a function that reads the addend: [wave, lane, register] of the type, or one
    number."""
    if code < 256:
        number: Read = o.scalar(code, kind)
        return lambda s: number(s)
    read, dtype = _registers(o, code, count), {"f32": np.float32, "i32": np.int32}[kind]
    return lambda s: np.ascontiguousarray(read(s)).view(dtype)


def _sum(addend: Array, product: Array, kind: str) -> Array:
    with np.errstate(all="ignore"):
        if kind == "f32":
            return np.asarray(addend + product).astype(np.float32).view(np.uint32)
        return (np.asarray(addend, np.int64) + product).astype(np.uint32)


def _put(s: Strand, code: int, values: Array) -> None:
    """Writes [wave, lane, register] in all lanes."""
    for n in range(values.shape[-1]):
        s.vectors[code - 256 + n] = values[..., n]


@form(*_WMMA)
def _wmma(o: Operands) -> Step:
    """Each half of a wave holds all rows of A and columns of B; the result has every other row."""
    plain(o)
    i, f = o.i, _WMMA[o.i.name]
    signs = i.get("neg")
    if (signs and f.element != "i8") or i.get("neg_hi") or i.get("opsel"):
        raise Unknown(f"{i.name} with modifiers")
    reads = [_registers(o, i.get(f"src{n}"), f.registers) for n in range(2)]
    elements = [
        _ELEMENTS["u8" if f.element == "i8" and not signs >> n & 1 else f.element] for n in range(2)
    ]
    addend = _addend(o, i.get("src2"), 8, f.result)
    into = i.get("vdst")
    o.touched |= {into + n for n in range(8)}

    def step(m: Any, s: Strand) -> None:
        if s.active is not None:
            raise Fault("a product of matrices where not all lanes take part")
        matrices = []
        for read, element in zip(reads, elements, strict=True):
            bits = read(s)
            if (bits[:, :_SIDE] != bits[:, _SIDE:]).any():
                raise Fault("the halves of a wave hold different rows of a matrix")
            matrices.append(element(bits[:, :_SIDE]))
        product = matrices[0] @ matrices[1].swapaxes(1, 2)  # row, column
        pairs = product.reshape(len(s.rows), 8, 2, _SIDE)  # register, half of the lanes, column
        lanes = pairs.transpose(0, 2, 3, 1).reshape(len(s.rows), 2 * _SIDE, 8)
        _put(s, into, _sum(addend(s), lanes, f.result))

    return step


@form(*_MFMA)
def _mfma(o: Operands) -> Step:
    """Lane l holds row l % 16 of A and column l % 16 of B.

    Its values are the quarter l // 16 of the depth. It gets four rows of column l % 16 of the
    result.
    """
    i, f = o.i, _MFMA[o.i.name]
    if i.get("cbsz") or i.get("abid") or i.get("blgp"):
        raise Unknown(f"{i.name} with modifiers")
    bits_of_acc = i.get("acc")
    reads = [
        _registers(o, i.get(f"src{n}") + (ACCUMULATORS if bits_of_acc >> n & 1 else 0), f.registers)
        for n in range(2)
    ]
    element, shift = _ELEMENTS[f.element], ACCUMULATORS if i.get("acc_cd") else 0
    third = i.get("src2")
    addend = _addend(o, third + (shift if third >= 256 else 0), 4, f.result)
    into = i.get("vdst") + shift
    o.touched |= {into + n for n in range(4)}

    def step(m: Any, s: Strand) -> None:
        matrices = []
        for read in reads:
            values = element(read(s)).reshape(len(s.rows), 4, _SIDE, -1)
            matrices.append(values.swapaxes(1, 2).reshape(len(s.rows), _SIDE, -1))
        product = matrices[0] @ matrices[1].swapaxes(1, 2)
        # quarter of the lanes, register, column
        quarters = product.reshape(len(s.rows), 4, 4, _SIDE)
        lanes = quarters.swapaxes(2, 3).reshape(len(s.rows), 4 * _SIDE, 4)
        _put(s, into, _sum(addend(s), lanes, f.result))

    return step


@form("v_accvgpr_read_b32", "v_accvgpr_write_b32")
def _accumulator(o: Operands) -> Step:
    i, reads = o.i, "read" in o.i.name
    source, into = i.get("src0"), i.get("vdst")
    if reads:
        source += ACCUMULATORS if source < 512 else 0
    else:
        into += ACCUMULATORS if into < 512 else 0
    read, write = o.vector(source, "u32"), o.write_vector(into, "u32")
    return lambda m, s: write(s, read(s))
