"""Decodes machine code into instructions with the formats in tinygrad's wheel.

Names are those of RDNA3; this module translates CDNA's other names for the same instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias

from tinygrad.renderer.amd import _VARIANT_SRC0, _load_formats
from tinygrad.renderer.amd.dsl import (
    AlignedSGPRField,
    BitField,
    EnumBitField,
    FixedBitField,
    SrcField,
    VDSTYField,
)
from tinygrad.runtime.autogen.amd.rdna3 import ins as rdna3

from tests.lib.emulator.faults import Unknown

FORMATS = {"gfx1100": "rdna3", "gfx942": "cdna"}
_VOP3, _MUBUF, _DPP = (0b110101, 0b110011), 0b111000, 250
_SAME = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"_(e32|e64|dpp|sdwa)$", ""),
        (r"^((?:global|buffer|s)_(?:load|store))_dwordx(\d)$", r"\1_x\2"),
        (r"_dword$|_x1$", "_b32"),
        (r"_x2$", "_b64"),
        (r"_x3$", "_b96"),
        (r"_x4$", "_b128"),
        (r"_x8$", "_b256"),
        (r"_store_byte$", "_store_b8"),
        (r"_store_short$", "_store_b16"),
        (r"_ubyte$", "_u8"),
        (r"_sbyte$", "_i8"),
        (r"_ushort$", "_u16"),
        (r"^ds_read", "ds_load"),
        (r"^ds_write", "ds_store"),
        (r"^(ds_(?:load|store))2st64_", r"\1_2addr_stride64_"),
        (r"^(ds_(?:load|store))2_", r"\1_2addr_"),
        (r"^s_andn2_", "s_and_not1_"),
        (r"^v_(add|sub|subrev)_u(16|32)$", r"v_\1_nc_u\2"),
        (r"^v_addc_co_u32$", "v_add_co_ci_u32"),
        (r"^v_subb_co_u32$", "v_sub_co_ci_u32"),
        (r"^v_subbrev_co_u32$", "v_subrev_co_ci_u32"),
        (r"^v_ffbh_i32$", "v_cls_i32"),
        (r"^v_mad_mix", "v_fma_mix"),
        (r"^v_accvgpr_(read|write)$", r"v_accvgpr_\1_b32"),
    )
]


@dataclass(frozen=True)
class Instruction:
    """A decoded instruction: tinygrad's `fields`, all bits `raw`, and `dpp`, the word that moves
    lanes."""

    at: int
    size: int
    name: str
    kind: str
    fields: Any
    raw: int
    dpp: int | None = None

    def get(self, name: str, default: int = 0) -> int:
        """Returns a field's number, for a register its code."""
        return _number(self.fields, name, default)

    def has(self, name: str) -> bool:
        return hasattr(type(self.fields), name)

    @property
    def literal(self) -> int:
        return self.get("literal") if self.has("literal") else self.raw >> (8 * self.size - 32)


# ---- fields -------------------------------------------------------------------------------------
# tinygrad makes an object for each field access; reading numbers alone takes a tenth of the time.


@cache
def _place(kind: type, name: str) -> tuple[int, int, int, int] | None:
    """Returns a field's lowest bit, mask, left shift and addend in a format.

    Returns None for a field without a plain number.
    """
    field = getattr(kind, name, None)
    if not isinstance(field, BitField) or isinstance(field, VDSTYField):
        return None
    shift = field._align.bit_length() - 1 if isinstance(field, AlignedSGPRField) else 0
    base = field._valid_range[0] if isinstance(field, SrcField) else 0
    return field.lo, field.mask, shift, base


def _number(fields: Any, name: str, default: int) -> int:
    place = _place(type(fields), name)
    if place is None:
        value = getattr(fields, name, default)
        return int(getattr(value, "offset", value))
    low, mask, shift, base = place
    return ((fields._raw >> low & mask) << shift) + base


# ---- formats ------------------------------------------------------------------------------------


# A field's lowest bit, its mask, and some values.
_Numbers: TypeAlias = tuple[int, int, frozenset[int]]


@dataclass(frozen=True)
class _Format:
    """A format of at least `size` bytes.

    `mask`, `bits` and `opcodes` identify it; `variants` are field values that may select a variant.
    """

    kind: Any
    size: int
    mask: int
    bits: int
    opcodes: tuple[_Numbers, ...]
    variants: tuple[_Numbers, ...]

    def takes(self, word: int, size: int) -> bool:
        if word & self.mask != self.bits or size < self.size:
            return False
        return all(word >> low & mask in numbers for low, mask, numbers in self.opcodes)

    def decoded(self, word: int, data: bytes) -> Any:
        """Returns tinygrad's fields; where a variant is possible, tinygrad's slow decoder
        decides."""
        if any(word >> low & mask in numbers for low, mask, numbers in self.variants):
            return self.kind.from_bytes(data)
        fields = object.__new__(self.kind)
        fields._raw = word & (1 << 8 * self.kind._base_size) - 1
        return fields


_VARIANTS = frozenset([249, 250, 255])  # source codes of SDWA, DPP and a literal


def _format(kind: Any) -> _Format:
    mask, bits, opcodes, variants = 0, 0, [], []
    for name, field in kind._fields:
        if isinstance(field, FixedBitField):
            mask |= field.mask << field.lo
            bits |= field.default << field.lo
        elif isinstance(field, EnumBitField) and field.allowed is not None:
            allowed = frozenset(int(value.value) for value in field.allowed)
            opcodes.append((field.lo, field.mask, allowed))
        elif isinstance(field, EnumBitField) and name in ("opx", "opy"):
            names = {int(n.value): n.name for n in field._enum}
            opcodes.append((field.lo, field.mask, frozenset(names)))
            literal = frozenset(n for n, v in names.items() if "FMAMK" in v or "FMAAK" in v)
            variants.append((field.lo, field.mask, literal))
        elif isinstance(field, SrcField):
            variants.append((field.lo, field.mask, _VARIANTS))
    for suffix, code in _VARIANT_SRC0.items():
        if kind.__name__.endswith(suffix):
            mask, bits = mask | 511, bits | code
    size = 4 + max(field.lo for _, field in kind._fields) // 32 * 4
    return _Format(kind, size, mask, bits, tuple(opcodes), tuple(variants))


@cache
def _buffer() -> _Format:
    """Returns RDNA3's MUBUF format, which the decoder's list lacks."""
    return _format(rdna3.MUBUF)


@cache
def formats(arch: str) -> tuple[_Format, ...]:
    """Returns the formats of `arch` in the order in which the decoder tries them.

    Loading is slow, so a process calls this before it forks.
    """
    return tuple(_format(kind) for kind in _load_formats()[arch])


def _decode(data: bytes, arch: str) -> Any:
    """Returns the fields; raises ValueError if no format matches."""
    word = int.from_bytes(data, "little")
    for candidate in formats(arch):
        if candidate.takes(word, len(data)):
            return candidate.decoded(word, data)
    raise ValueError(f"no format of {arch}")


@cache
def named(name: str) -> str:
    name = name.lower()
    for pattern, other in _SAME:
        name = pattern.sub(other, name)
    return name


@lru_cache(1 << 16)
def _decoded(data: bytes, arch: str) -> tuple[Any, int, int | None]:
    """Returns the fields, the length in bytes, and the DPP word (None without DPP)."""
    word = int.from_bytes(data[:8], "little")
    top = word >> 26 & 63
    if arch == "rdna3" and top == _MUBUF:
        return _buffer().decoded(int.from_bytes(data, "little"), data), 8, None
    if arch == "rdna3" and top in _VOP3 and word >> 32 & 511 == _DPP:
        dpp = int.from_bytes(data[8:12], "little")
        plain = word & ~(511 << 32) | (256 + (dpp & 255)) << 32
        return _decode(plain.to_bytes(8, "little") + data[8:], arch), 12, dpp
    fields = _decode(data, arch)
    size = fields.size()
    if type(fields).__name__.endswith("_DPP16"):
        return fields, size, int.from_bytes(data[4:8], "little")
    if not type(fields).__name__.endswith("_LIT") and _wants_literal(fields):
        size += 4
    return fields, size, None


def _wants_literal(fields: Any) -> bool:
    names = ("src0", "src1", "src2", "ssrc0", "ssrc1", "srcx0", "srcy0")
    return any(_place(type(fields), n) and _number(fields, n, 0) == 255 for n in names)


def instructions(code: bytes, start: int, arch: str) -> Iterator[Instruction]:
    """Yields the instructions from `start` to the last `s_endpgm` before padding.

    Raises Unknown for bytes without a format.
    """
    at, furthest = start, start
    while True:
        data = code[at : at + 16]
        try:
            fields, size, dpp = _decoded(data, FORMATS[arch])
            kind = type(fields).__name__
            name = "vopd" if kind.startswith("VOPD") else named(fields.op.name)
        except (ValueError, AssertionError) as error:
            raise Unknown(f"byte {at} of the code of {arch}: {data.hex()}") from error
        raw = int.from_bytes(data[:size], "little")
        instruction = Instruction(at, size, name, kind, fields, raw, dpp)
        yield instruction
        at += size
        if "branch" in name:
            furthest = max(furthest, target(instruction))
        if name == "s_endpgm" and at > furthest:
            return
        if name == "s_branch" and at > furthest:
            return


def target(i: Instruction) -> int:
    """Returns the byte address that a branch jumps to."""
    offset = i.get("simm16")
    return i.at + 4 + 4 * (offset - (offset >> 15 << 16))
