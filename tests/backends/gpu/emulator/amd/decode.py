"""Machine code to instructions, by the formats in tinygrad's wheel.

Names are those of RDNA3: CDNA's other names for the same instructions are put right here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tinygrad.renderer.amd import decode_inst
from tinygrad.runtime.autogen.amd.rdna3 import ins as rdna3

from tests.backends.gpu.emulator.faults import Unknown

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
    """`fields` are tinygrad's, `raw` all bits; `dpp` is the word that says how lanes move."""

    at: int
    size: int
    name: str
    kind: str
    fields: Any
    raw: int
    dpp: int | None = None

    def get(self, name: str, default: int = 0) -> int:
        """A field's number: of a register its code."""
        value = getattr(self.fields, name, default)
        return int(getattr(value, "offset", value))

    @property
    def literal(self) -> int:
        return (
            self.get("literal")
            if hasattr(self.fields, "literal")
            else self.raw >> (8 * self.size - 32)
        )


def named(name: str) -> str:
    name = name.lower()
    for pattern, other in _SAME:
        name = pattern.sub(other, name)
    return name


@lru_cache(1 << 16)
def _decoded(data: bytes, arch: str) -> tuple[Any, int, int | None]:
    """Fields, length in bytes, and the word of a DPP exchange."""
    word = int.from_bytes(data[:8], "little")
    top = word >> 26 & 63
    if arch == "rdna3" and top == _MUBUF:  # not in the decoder's list
        return rdna3.MUBUF.from_bytes(data), 8, None
    if arch == "rdna3" and top in _VOP3 and word >> 32 & 511 == _DPP:
        dpp = int.from_bytes(data[8:12], "little")
        plain = word & ~(511 << 32) | (256 + (dpp & 255)) << 32
        return decode_inst(plain.to_bytes(8, "little") + data[8:], arch), 12, dpp
    fields = decode_inst(data, arch)
    size = fields.size()
    if type(fields).__name__.endswith("_DPP16"):
        return fields, size, int.from_bytes(data[4:8], "little")
    if not type(fields).__name__.endswith("_LIT") and _wants_literal(fields):
        size += 4
    return fields, size, None


def _wants_literal(fields: Any) -> bool:
    names = ("src0", "src1", "src2", "ssrc0", "ssrc1", "srcx0", "srcy0")
    return any(getattr(getattr(fields, n, None), "offset", None) == 255 for n in names)


def instructions(code: bytes, start: int, arch: str) -> Iterator[Instruction]:
    """From `start` to the last `s_endpgm` before padding; raises Unknown for what has no format."""
    at, furthest = start, start
    while True:
        data = code[at : at + 16]
        try:
            fields, size, dpp = _decoded(data, FORMATS[arch])
        except (ValueError, AssertionError) as error:
            raise Unknown(f"byte {at} of the code of {arch}: {data.hex()}") from error
        raw = int.from_bytes(data[:size], "little")
        kind = type(fields).__name__
        name = "vopd" if kind.startswith("VOPD") else named(fields.op.name)
        made = Instruction(at, size, name, kind, fields, raw, dpp)
        yield made
        at += size
        if "branch" in name:
            furthest = max(furthest, target(made))
        if name == "s_endpgm" and at > furthest:
            return
        if name == "s_branch" and at > furthest:
            return


def target(i: Instruction) -> int:
    """The byte that a branch goes to."""
    offset = i.get("simm16")
    return i.at + 4 + 4 * (offset - (offset >> 15 << 16))
