"""Loads and stores: scalar, through addresses, through buffers, and shared memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.lib.emulator.faults import Unknown

from .forms import form
from .operands import ACCUMULATORS, Operands
from .waves import Array, Pending, Step, Strand

_OFF = (124, 127)  # codes of "no scalar base"
_BYTES = {"b8": 1, "u8": 1, "i8": 1, "b16": 2, "u16": 2, "i16": 2, "b32": 4, "b64": 8, "b96": 12,
          "b128": 16}  # fmt: skip
_WORDS = {"b32": 1, "b64": 2, "b128": 4, "b256": 8, "b512": 16}


def _signed(value: int, bits: int) -> int:
    return value - (value >> bits - 1 << bits)


# ---- scalars ------------------------------------------------------------------------------------


@form(*(f"s_load_{name}" for name in _WORDS))
def _scalars(o: Operands) -> Step:
    i, count = o.i, _WORDS[o.i.name.removeprefix("s_load_")]
    base, offset = o.scalar(i.get("sbase"), "i64"), _signed(i.get("offset"), 21)
    more = None
    if o.arch.name == "gfx1100":
        more = None if i.get("soffset") == o.arch.null else o.scalar(i.get("soffset"), "u32")
    elif i.get("soffset_en") or not i.get("imm"):
        raise Unknown(f"{i.name} with an offset in a register")
    first = i.get("sdata")
    into = range(first, first + count)
    ready = Pending("shared", frozenset(into), any_order=True)

    def step(m: Any, s: Strand) -> None:
        address = base(s) + offset + (0 if more is None else more(s))
        words = m.memory.load(address[:, None] + 4 * np.arange(count), 4)
        for n, number in enumerate(into):
            s.put_scalar(number, words[:, n])
        s.pending.append(ready)

    o.touched |= set(into)
    return step


# ---- registers of a load or of a store ----------------------------------------------------------

_KIND = re.compile(r"(?:global|buffer|ds)_(load|store)_(d16_)?(hi_)?([bui]\d+)(_d16)?(_hi)?$")


class _Moved:
    """The data that an instruction moves between memory and consecutive registers."""

    def __init__(self, o: Operands, field: str) -> None:
        match = _KIND.match(o.i.name)
        assert match, o.i.name
        kind, self.half = match[4], bool(match[2] or match[5])
        self.high = int(bool(match[3] or match[6]))
        self.width, self.stores = _BYTES[kind], match[1] == "store"
        self.element = min(self.width, 4)
        self.signed = kind[0] == "i"
        self.code = o.i.get(field) + (ACCUMULATORS if o.i.get("acc") else 0)
        self.registers = frozenset(self.code + n for n in range(max(self.width // 4, 1)))
        if self.stores:
            o.touched |= self.registers

    def values(self, s: Strand, active: Array | None) -> Array:
        """Returns a store's values as unsigned numbers [lane, numbers]."""
        first = self.code - 256
        rows = s.vectors[first : first + len(self.registers)]
        flat = rows.reshape(len(rows), -1) if active is None else rows[:, active]
        if self.high:
            flat = flat >> np.uint32(16)
        return flat.T.astype(f"u{self.element}")

    def put(self, s: Strand, values: Array, active: Array | None) -> None:
        """Writes a load's values to the registers."""
        first = self.code - 256
        if self.element < 4:
            kind = "i" if self.signed else "u"
            values = values.view(f"{kind}{self.element}").astype(np.int64).astype(np.uint32)
        for n in range(values.shape[1]):
            row = s.vectors[first + n]
            new: Any = values[:, n]
            old = row.ravel() if active is None else row[active]
            if self.half:
                keep = np.uint32(0xFFFF if self.high else 0xFFFF0000)
                new = (new & np.uint32(0xFFFF)) << np.uint32(16 * self.high) | old & keep
            if active is None:
                s.vectors[first + n] = new.reshape(row.shape)
            else:
                row[active] = new


def _chosen(addresses: Array, active: Array | None, s: Strand) -> Array:
    every = np.broadcast_to(addresses, (len(s.rows), s.arch.lanes))
    return every.ravel() if active is None else every[active]


def _touch(m: Any, s: Strand, access: _Moved, addresses: Array, active: Array | None) -> None:
    """Loads or stores global memory at the addresses of active lanes."""
    count = access.width // access.element
    places = _chosen(addresses, active, s)[:, None] + access.element * np.arange(count)
    if access.stores:
        m.memory.store(places, access.values(s, active))
    else:
        access.put(s, m.memory.load(places, access.element), active)


def _begun(o: Operands, access: _Moved) -> Pending | None:
    """Returns the pending request, or None for a store of gfx1100.

    gfx1100 counts stores separately, and no registers depend on that counter.
    """
    if access.stores and o.arch.name == "gfx1100":
        return None
    return Pending("loads", frozenset() if access.stores else access.registers)


def _names(start: str) -> list[str]:
    loads = [f"{start}_load_{k}" for k in ("u8", "i8", "u16", "i16", "b32", "b64", "b96", "b128")]
    stores = [f"{start}_store_{k}" for k in ("b8", "b16", "b32", "b64", "b96", "b128")]
    halves = [f"{start}_load_d16{hi}_{k}" for hi in ("", "_hi") for k in ("u8", "i8", "b16")]
    return [*loads, *stores, *halves, *(f"{start}_store_d16_hi_{k}" for k in ("b8", "b16"))]


@form(*_names("global"))
def _global(o: Operands) -> Step:
    i = o.i
    access = _Moved(o, "data" if "_store_" in i.name else "vdst")
    offset = _signed(i.get("offset"), 13)
    based = i.get("saddr") not in _OFF
    address = o.vector(i.get("addr"), "u32" if based else "i64")
    base = o.scalar(i.get("saddr"), "i64") if based else None
    begun = _begun(o, access)

    def step(m: Any, s: Strand) -> None:
        at = address(s).astype(np.int64) + offset
        if base is not None:
            at = at + base(s)[:, None]
        _touch(m, s, access, at, s.active)
        if begun is not None:
            s.pending.append(begun)

    return step


@form(*_names("buffer"))
def _buffer(o: Operands) -> Step:
    """Raw buffers: an access that ends behind the last record reads zeros and writes nothing."""
    i = o.i
    if i.get("idxen") or i.get("lds") or i.get("tfe"):
        raise Unknown(f"{i.name} with an index or into shared memory")
    access = _Moved(o, "vdata")
    address_of = o.vector(i.get("vaddr"), "u32") if i.get("offen") else None
    base = o.scalar(i.get("srsrc"), "u64")
    records, flags = (o.scalar(i.get("srsrc") + n, "u32") for n in (2, 3))
    more = o.scalar(i.get("soffset"), "u32")
    offset, begun = i.get("offset"), _begun(o, access)

    def step(m: Any, s: Strand) -> None:
        descriptor = base(s)
        if (descriptor >> np.uint64(48)).any() or (flags(s) >> np.uint32(30)).any():
            raise Unknown("a buffer with a stride")
        at = np.full((len(s.rows), s.arch.lanes), offset, np.int64)
        at = at + (0 if address_of is None else address_of(s))
        inside = at + access.width <= records(s).astype(np.int64)[:, None]
        start = descriptor.astype(np.int64) + more(s)
        active = inside if s.active is None else inside & s.active
        if not access.stores and not inside.all():
            _zeros(s, access, ~inside & s.active_lanes())
        _touch(m, s, access, at + start[:, None], None if active.all() else active)
        if begun is not None:
            s.pending.append(begun)

    return step


def _zeros(s: Strand, access: _Moved, where: Array) -> None:
    count = max(access.width // 4, 1)
    access.put(s, np.zeros((int(where.sum()), count), f"u{access.element}"), where)


# ---- shared memory ------------------------------------------------------------------------------

_DS_LOADS = ("u8", "i8", "u16", "i16", "b32", "b64", "b96", "b128")
_DS_HALVES = [f"ds_load_{k}_d16{hi}" for k in ("u8", "i8", "u16") for hi in ("", "_hi")]


@form(*(f"ds_load_{k}" for k in _DS_LOADS), *_DS_HALVES)
def _load_shared(o: Operands) -> Step:
    i, access = o.i, _Moved(o, "vdst")
    address, offset = o.vector(i.get("addr"), "u32"), i.get("offset0") | i.get("offset1") << 8
    begun = Pending("shared", access.registers)

    def step(m: Any, s: Strand) -> None:
        at = np.broadcast_to(address(s), (len(s.rows), s.arch.lanes)).astype(np.int64) + offset
        access.put(s, m.shared.load(s, at, access.width, access.element), s.active)
        s.pending.append(begun)

    return step


@form(*(f"ds_store_{k}" for k in ("b8", "b16", "b32", "b64", "b96", "b128")),
      "ds_store_b8_d16_hi", "ds_store_b16_d16_hi")  # fmt: skip
def _store_shared(o: Operands) -> Step:
    i, access = o.i, _Moved(o, "data0")
    address, offset = o.vector(i.get("addr"), "u32"), i.get("offset0") | i.get("offset1") << 8
    begun = Pending("shared", frozenset(), shared_write=True)

    def step(m: Any, s: Strand) -> None:
        at = np.broadcast_to(address(s), (len(s.rows), s.arch.lanes)).astype(np.int64) + offset
        m.shared.store(s, at, access.values(s, s.active))
        s.pending.append(begun)

    return step


@form(*(f"ds_{what}_2addr{far}_b{n}" for what in ("load", "store") for far in ("", "_stride64")
        for n in (32, 64)))  # fmt: skip
def _two(o: Operands) -> Step:
    i, width = o.i, 8 if o.i.name.endswith("64") else 4
    unit = width * (64 if "stride64" in i.name else 1)
    stores = "_store_" in i.name
    address, words = o.vector(i.get("addr"), "u32"), width // 4
    shift = ACCUMULATORS if i.get("acc") else 0
    if stores:
        firsts = [i.get(f"data{n}") + shift for n in range(2)]
    else:
        firsts = [i.get("vdst") + shift, i.get("vdst") + words + shift]
    registers = frozenset(code + n for code in firsts for n in range(words))
    if stores:
        o.touched |= registers
    begun = Pending("shared", frozenset() if stores else registers, shared_write=stores)

    def step(m: Any, s: Strand) -> None:
        base = np.broadcast_to(address(s), (len(s.rows), s.arch.lanes)).astype(np.int64)
        active = s.active
        for n, code in enumerate(firsts):
            at, rows = base + unit * i.get(f"offset{n}"), slice(code - 256, code - 256 + words)
            if stores:
                part = s.vectors[rows]
                flat = part.reshape(words, -1) if active is None else part[:, active]
                m.shared.store(s, at, np.ascontiguousarray(flat.T))
                continue
            values = m.shared.load(s, at, width, 4)
            for k in range(words):
                row = s.vectors[code - 256 + k]
                if active is None:
                    row[...] = values[:, k].reshape(row.shape)
                else:
                    row[active] = values[:, k]
        s.pending.append(begun)

    return step


@form("ds_bpermute_b32")
def _exchanged(o: Operands) -> Step:
    """Exchanges lanes through the paths of shared memory, not its bytes; inactive lanes provide
    0."""
    i = o.i
    address, data = o.vector(i.get("addr"), "u32"), o.vector(i.get("data0"), "u32")
    offset = i.get("offset0") | i.get("offset1") << 8
    begun = Pending("shared", frozenset([i.get("vdst")]))

    def step(m: Any, s: Strand) -> None:
        lane = (address(s).astype(np.int64) + offset) // 4 % s.arch.lanes
        values = data(s) if s.active is None else np.where(s.active, data(s), np.uint32(0))
        s.put_vector(i.get("vdst") - 256, np.take_along_axis(values, lane, 1), s.active)
        s.pending.append(begun)

    return step
