"""Exchanges between the lanes of a warp, without memory."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tests.lib.emulator.faults import Fault, Unknown

from .machine import LANES
from .numbers import TYPES
from .parse import Instruction, Several
from .program import Array, Body, Machine, Program, Strand, form, parts, whole


def _every_lane(mask: Array, s: Strand, active: Array | None) -> None:
    whole(s, active)
    if (mask != 0xFFFFFFFF).any():
        raise Unknown("a mask of some lanes")


@form(r"shfl\.sync\.(bfly|idx|up|down)\.b32")
def _shfl(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    to = parts(i.operands[0])
    write, valid = p.write(to[0], "b32"), p.write(to[1], "pred") if len(to) > 1 else None
    value, by, clamp, mask = (p.read(o, "b32") for o in i.operands[1:])

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        _every_lane(mask(m, s, active), s, active)
        lane = np.arange(LANES)[None]
        step, bound = by(m, s, active).astype(np.int64), clamp(m, s, active).astype(np.int64)
        segment, most = bound >> 8 & 31, bound & 31
        low = lane & segment
        last = low | (most & ~segment)
        source = {
            "up": lane - step, "down": lane + step, "bfly": lane ^ step,
            "idx": low | (step & ~segment & 31),
        }[f[1]]  # fmt: skip
        inside = source >= last if f[1] == "up" else source <= last
        source = np.where(inside, source, lane)
        values = np.broadcast_to(value(m, s, active), (len(s.rows), LANES))
        write(m, s, np.take_along_axis(values, np.broadcast_to(source, values.shape), 1), active)
        if valid:
            valid(m, s, np.broadcast_to(inside, values.shape), active)

    return body


_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce,
    "and": np.bitwise_and.reduce, "or": np.bitwise_or.reduce, "xor": np.bitwise_xor.reduce,
}  # fmt: skip


@form(r"redux\.sync\.(add|min|max|and|or|xor)\.([bus]32)")
def _redux(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    write, value = p.write(i.operands[0], f[2]), p.read(i.operands[1], f[2])
    mask, reduce, dtype = p.read(i.operands[2], "b32"), _REDUCTIONS[f[1]], TYPES[f[2]]

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        _every_lane(mask(m, s, active), s, active)
        values = np.broadcast_to(value(m, s, active), (len(s.rows), LANES))
        more = {"dtype": dtype} if f[1] == "add" else {}
        write(m, s, np.repeat(reduce(values, axis=1, **more)[:, None], LANES, 1), active)

    return body


@form(r"elect\.sync")
def _elect(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    """`elect` chooses the same lane in each warp."""
    if not isinstance(i.operands[0], Several):
        raise Unknown(i.text)
    who, elected = i.operands[0].parts
    number, flag = p.write(who, "b32"), p.write(elected, "pred")
    mask = p.read(i.operands[1], "b32")

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        _every_lane(mask(m, s, active), s, active)
        shape = (len(s.rows), LANES)
        number(m, s, np.full(shape, m.leader, np.uint32), active)
        flag(m, s, np.broadcast_to(np.arange(LANES) == m.leader, shape), active)

    return body


@form(r"vote\.sync\.ballot\.b32")
def _ballot(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    write, flag = p.write(i.operands[0], "b32"), p.read(i.operands[1], "pred")
    mask = p.read(i.operands[2], "b32")

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        _every_lane(mask(m, s, active), s, active)
        flags = np.broadcast_to(flag(m, s, active), (len(s.rows), LANES))
        bits = (flags.astype(np.uint64) << np.arange(LANES, dtype=np.uint64)).sum(1)
        write(m, s, np.repeat(bits.astype(np.uint32)[:, None], LANES, 1), active)

    return body


@form(r"bar\.warp\.sync")
def _warp(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    """The barrier only checks masks, because lanes of a warp are one agent in the memory's
    history."""
    mask = p.read(i.operands[0], "b32")

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        _every_lane(mask(m, s, active), s, active)

    return body


@form(r"trap")
def _trap(p: Program, i: Instruction, _: re.Match[str]) -> Body:
    def body(m: Machine, s: Strand, active: Array | None) -> None:
        raise Fault("the kernel gives up")

    return body
