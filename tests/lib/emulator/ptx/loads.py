"""Loads and stores of threads."""

from __future__ import annotations

import re

import numpy as np

from tests.lib.emulator.faults import Fault
from tests.lib.emulator.memory import UNSIGNED

from .machine import LANES
from .numbers import TYPES
from .parse import Address, Instruction, Name
from .program import Array, Body, Machine, Program, Strand, form, parts

_TYPE = r"([bus](?:8|16|32|64)|f32|f64|f16)"
# Suffixes that only advise the caches.
_CACHE = r"(?:\.(?:nc|ca|cg|cs|cv|wb|wt|volatile|L1::\w+|L2::\w+))*"


def chosen(s: Strand, active: Array | None, *values: Array) -> list[Array]:
    """Returns flat arrays of the active lanes: first their warps, then `values`."""
    shape = (len(s.rows), LANES)
    rows = np.broadcast_to(s.rows[:, None], shape)
    every = [np.broadcast_to(v, shape) for v in (rows, *values)]
    return [v.ravel() if active is None else v[active] for v in every]


def _scattered(s: Strand, active: Array | None, values: Array) -> Array:
    """Returns the lanes' values as [warp, lane], with zeros for inactive lanes."""
    if active is None:
        return values.reshape(len(s.rows), LANES)
    full = np.zeros((len(s.rows), LANES), values.dtype)
    full[active] = values
    return full


@form(rf"ld\.param\.{_TYPE}")
def _parameter(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    source = i.operands[1]
    assert isinstance(source, Address)
    assert isinstance(source.base, Name)
    parameter = p.kernel.parameters[source.base.text]
    width = np.dtype(TYPES[f[1]]).itemsize
    begin, write = parameter.offset + source.offset, p.write(i.operands[0], f[1])
    if source.offset + width > parameter.width:
        raise Fault(f"{i.text}: a parameter of {parameter.width} bytes")

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        value = np.frombuffer(m.launch.parameters, TYPES[f[1]], 1, begin)
        write(m, s, np.broadcast_to(value, (len(s.rows), LANES)), active)

    return body


@form(rf"ld\.global{_CACHE}(?:\.v([248]))?\.{_TYPE}")
def _load_global(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    writes = [p.write(o, f[2]) for o in parts(i.operands[0])]
    address, dtype = p.address(i.operands[1], "u64"), np.dtype(TYPES[f[2]])
    width = dtype.itemsize

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        _, at = chosen(s, active, address(m, s, active))
        m.launch.memory.check(at, width * len(writes), width * len(writes))
        for n, write in enumerate(writes):
            loaded = m.launch.memory.load(at + n * width, width).view(dtype)
            write(m, s, _scattered(s, active, loaded), active)

    return body


@form(rf"st\.global{_CACHE}(?:\.v([248]))?\.{_TYPE}")
def _store_global(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    reads = [p.read(o, f[2]) for o in parts(i.operands[1])]
    address, width = p.address(i.operands[0], "u64"), np.dtype(TYPES[f[2]]).itemsize

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        values = [read(m, s, active) for read in reads]
        _, at, *flat = chosen(s, active, address(m, s, active), *values)
        m.launch.memory.check(at, width * len(reads), width * len(reads))
        for n, column in enumerate(flat):
            m.launch.memory.store(
                at + n * width, np.ascontiguousarray(column).view(UNSIGNED[width])
            )

    return body


@form(rf"ld\.(?:volatile\.)?shared(?:::cta)?(?:\.v([248]))?\.{_TYPE}")
def _load_shared(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    writes = [p.write(o, f[2]) for o in parts(i.operands[0])]
    address, dtype = p.address(i.operands[1], "u32"), np.dtype(TYPES[f[2]])
    width = dtype.itemsize

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        rows, at = chosen(s, active, address(m, s, active))
        places = looked_at(m, rows, at, width * len(writes))
        for n, write in enumerate(writes):
            loaded = m.shared.get(places + n * width, width).view(dtype)
            write(m, s, _scattered(s, active, loaded), active)

    return body


@form(rf"st\.(?:volatile\.)?shared(?:::cta)?(?:\.v([248]))?\.{_TYPE}")
def _store_shared(p: Program, i: Instruction, f: re.Match[str]) -> Body:
    reads = [p.read(o, f[2]) for o in parts(i.operands[1])]
    address = p.address(i.operands[0], "u32")

    def body(m: Machine, s: Strand, active: Array | None) -> None:
        values = [read(m, s, active) for read in reads]
        rows, at, *flat = chosen(s, active, address(m, s, active), *values)
        put(m, rows, at, np.stack(flat, 1))

    return body


def looked_at(m: Machine, rows: Array, addresses: Array, width: int) -> Array:
    """Returns the positions that threads of warps `rows` read; raises Fault for a race."""
    places, words, rows = _words(m, rows, addresses, width)
    agents = m.order.own[rows]
    m.shared.history.reads(rows, words, agents, m.order.seen[rows, agents])
    return places


def put(m: Machine, rows: Array, addresses: Array, values: Array) -> None:
    """Stores `values` [threads, elements] of warps `rows`; raises Fault for a race.

    Several warps may store an equal value to one place, because a layout may have copies.
    """
    width = values.dtype.itemsize * values.shape[1]
    places, words, rows_of_words = _words(m, rows, addresses, width)
    agents, new = m.order.own[rows_of_words], np.ascontiguousarray(values).view(np.uint8)
    at = places[:, None] + np.arange(width)
    equal = m.shared.known[at] & (m.shared.bytes[at] == new)
    unchanged = equal.reshape(len(words), -1).all(1)
    m.shared.history.writes(
        rows_of_words, words, agents, m.order.seen[rows_of_words, agents], kept=unchanged
    )
    m.shared.bytes[at], m.shared.known[at] = new, True
    if (m.shared.bytes[at] != new).any():
        raise Fault("a race: two threads store different values to one place in shared memory")


def _words(m: Machine, rows: Array, at: Array, width: int) -> tuple[Array, Array, Array]:
    places = m.shared.places(m.block_of[rows], at, width, width)
    words = m.shared.words(places, width)
    return places, words.ravel(), np.repeat(rows, words.shape[1])
