"""Packed pairs, mixed types, two instructions in one (VOPD), and exchanges between lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.lib.emulator.faults import Unknown

from . import numbers
from .forms import form
from .operands import Operands, Read, constant
from .vector import ROWS, plain
from .waves import VCC, Array, Step, Strand

_PAIRS = {"v_pk_add_f32": np.add, "v_pk_mul_f32": np.multiply, "v_pk_fma_f32": numbers.fused}


def _signed(read: Read, negative: bool, absolute: bool = False) -> Read:
    if not (negative or absolute):
        return read
    size: Any = np.abs if absolute else np.asarray
    return lambda s: -size(read(s)) if negative else size(read(s))


@form(*_PAIRS)
def _pair(o: Operands) -> Step:
    plain(o)
    i, function = o.i, _PAIRS[o.i.name]
    count = 3 if i.name == "v_pk_fma_f32" else 2
    upper = i.get("opsel_hi") | i.get("opsel_hi2") << 2
    parts = []
    for selection, signs in ((i.get("opsel"), i.get("neg")), (upper, i.get("neg_hi"))):
        reads = []
        for n in range(count):
            code, high = i.get(f"src{n}"), selection >> n & 1
            if high and constant(code, "f32", i.literal) is not None:
                raise Unknown(f"{i.name}: the upper half of a constant")
            reads.append(_signed(o.vector(code + high, "f32"), bool(signs >> n & 1)))
        parts.append(reads)
    writes = [o.write_vector(i.get("vdst") + n, "f32") for n in range(2)]

    def step(m: Any, s: Strand) -> None:
        results = [function(*[read(s) for read in reads]) for reads in parts]
        for write, value in zip(writes, results, strict=True):
            write(s, value)

    return step


def _widened(read: Read) -> Read:
    return lambda s: read(s).astype(np.float32)


@form("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16")
def _mixed(o: Operands) -> Step:
    plain(o)
    i = o.i
    narrow = i.get("opsel_hi") | i.get("opsel_hi2") << 2
    reads = []
    for n in range(3):
        half = i.get("opsel") >> n & 1
        read = o.vector(i.get(f"src{n}"), "f16" if narrow >> n & 1 else "f32", half)
        reads.append(
            _signed(_widened(read), bool(i.get("neg") >> n & 1), bool(i.get("neg_hi") >> n & 1))
        )
    code = i.get("vdst")
    if i.name == "v_fma_mix_f32":
        write = o.write_vector(code, "f32")
        return lambda m, s: write(s, numbers.fused(*[read(s) for read in reads]))
    half = o.write_half(code, int("hi" in i.name), clears=False)
    return lambda m, s: half(s, numbers.fused(*[r(s) for r in reads]).astype(np.float16))


# ---- two instructions in one (VOPD) -------------------------------------------------------------


@form("vopd")
def _dual(o: Operands) -> Step:
    """Both halves read before either half writes."""
    pairs = [_half(o, part) for part in "xy"]

    def step(m: Any, s: Strand) -> None:
        # Copies, because the writes change the registers that views would show.
        results = [np.array(value(s)) for value, _ in pairs]
        for (_, write), value in zip(pairs, results, strict=True):
            write(s, value)

    return step


def _half(o: Operands, part: str) -> tuple[Any, Any]:
    i = replace(o.i, kind="VOP2")
    name = getattr(i.fields, f"op{part}").name.lower().replace("v_dual_", "v_")
    name = name.removesuffix("_e32")
    first, second = i.get(f"src{part}0"), i.get(f"vsrc{part}1")
    into = i.get(f"vdst{part}")
    if name == "v_cndmask_b32":
        reads = [o.vector(first, "b32"), o.vector(second, "b32")]
        lanes = o.lane_bits(VCC)
        return (lambda s: np.where(lanes(s), reads[1](s), reads[0](s))), o.write_vector(into, "b32")
    if name not in ROWS:
        raise Unknown(f"v_dual: {name}")
    row, indices = ROWS[name], [first, second]
    if name == "v_fmac_f32":
        indices.append(into)
    if name == "v_fmaak_f32":
        indices.append(255)
    if name == "v_fmamk_f32":
        indices.insert(1, 255)
    reads = [o.vector(code, kind) for code, kind in zip(indices, row.taken, strict=False)]
    assert len(reads) == len(row.taken), name
    return (lambda s: row.function(*[r(s) for r in reads])), o.write_vector(into, row.made)


# ---- between lanes ------------------------------------------------------------------------------


@form("v_readlane_b32")
def _read_lane(o: Operands) -> Step:
    read, lane = o.vector(o.i.get("src0"), "u32"), o.scalar(o.i.get("src1"), "u32")
    write = o.write_scalar(o.i.get("vdst") & 255, "u32")

    def step(m: Any, s: Strand) -> None:
        lane_index = np.broadcast_to(lane(s), len(s.rows)) % s.arch.lanes
        write(s, np.take_along_axis(read(s), lane_index[:, None].astype(np.int64), 1)[:, 0])

    return step


@form("v_readfirstlane_b32")
def _read_first(o: Operands) -> Step:
    read = o.vector(o.i.get("src0"), "u32")
    write = o.write_scalar(o.i.get("vdst") & 255, "u32")

    def step(m: Any, s: Strand) -> None:
        first = s.active_lanes().argmax(1)
        every = np.broadcast_to(read(s), (len(s.rows), s.arch.lanes))
        write(s, np.take_along_axis(every, first[:, None], 1)[:, 0])

    return step


@form("v_writelane_b32")
def _write_lane(o: Operands) -> Step:
    value, lane = (o.scalar(o.i.get(f"src{n}"), "u32") for n in range(2))
    number = o.i.get("vdst") - 256
    o.touched.add(o.i.get("vdst"))

    def step(m: Any, s: Strand) -> None:
        waves = np.arange(len(s.rows))
        s.vectors[number, waves, np.broadcast_to(lane(s), len(waves)) % s.arch.lanes] = value(s)

    return step


@form("v_permlanex16_b32")
def _other_row(o: Operands) -> Step:
    i = o.i
    read = o.vector(i.get("src0"), "u32")
    low, high = (o.scalar(i.get(f"src{n}"), "u32") for n in (1, 2))
    inactive_too, zeros = i.get("opsel") & 1, i.get("opsel") >> 1 & 1
    o.touched.add(i.get("vdst"))

    def step(m: Any, s: Strand) -> None:
        lane = np.arange(s.arch.lanes)
        words = [np.broadcast_to(w(s), len(s.rows))[:, None] for w in (low, high)]
        word = np.where(lane % 16 < 8, words[0], words[1])
        member = word >> (4 * (lane % 8)).astype(np.uint32) & np.uint32(15)
        lane_index = ((lane // 16 ^ 1) * 16 + member).astype(np.int64)
        value: Array = np.take_along_axis(read(s), lane_index, 1)
        where = s.active
        if where is not None and not inactive_too:
            there = np.take_along_axis(where, lane_index, 1)
            value = np.where(there, value, 0).astype(np.uint32)
            where = where if zeros else where & there
        s.put_vector(i.get("vdst") - 256, value, where)

    return step
