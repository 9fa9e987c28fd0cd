"""Turns operand codes (registers and constants) into functions that read and write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tests.lib.emulator.faults import Unknown

from .decode import Instruction
from .lanes import Exchange
from .waves import Arch, Array, Strand

Read: TypeAlias = Callable[[Strand], Array]
Write: TypeAlias = Callable[[Strand, Array], None]

TYPES: dict[str, Any] = {
    "b16": np.uint16, "u16": np.uint16, "i16": np.int16, "f16": np.float16, "b32": np.uint32,
    "u32": np.uint32, "i32": np.int32, "f32": np.float32, "b64": np.uint64, "u64": np.uint64,
    "i64": np.int64, "f64": np.float64,
}  # fmt: skip
WIDTHS = {name: np.dtype(dtype).itemsize for name, dtype in TYPES.items()}
_FLOATS = {240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0,
           248: 0.15915494309189532}  # fmt: skip
_VECTOR, _LITERAL, _SCC = 256, 255, 253
ACCUMULATORS = 256  # The accumulator registers start at this vector register.
_NEGATIVE = {2: np.uint16(0x8000), 4: np.uint32(0x80000000), 8: np.uint64(1 << 63)}
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def constant(code: int, kind: str, literal: int) -> Any:
    """Returns an inline constant or a literal as a number of the type, or None for a register."""
    dtype, width = np.dtype(TYPES[kind]), WIDTHS[kind]
    if 128 <= code <= 208:
        value = code - 128 if code <= 192 else 192 - code
        return np.array(value, np.int64).astype(f"i{width}").view(dtype)[()]
    if code in _FLOATS:
        number = np.array(_FLOATS[code], {2: np.float16, 4: np.float32, 8: np.float64}[width])
        return number.view(dtype)[()]
    if code != _LITERAL:
        return None
    if kind == "f64":  # The literal is the upper half.
        return np.array(literal << 32, np.uint64).view(dtype)[()]
    if kind == "i64":
        return np.array(literal, np.uint32).view(np.int32).astype(np.int64)[()]
    return np.array(literal & (1 << 8 * min(width, 4)) - 1, f"u{width}").view(dtype)[()]


class Operands:
    """The operands of one instruction. `touched` collects the codes of all its registers."""

    def __init__(self, i: Instruction, arch: Arch) -> None:
        self.i, self.arch = i, arch
        self.touched: set[int] = set()
        self.exchange = None if i.dpp is None else Exchange(i.dpp, arch)

    # ---- scalars: values are [wave] ----------

    def scalar(self, code: int, kind: str) -> Read:
        fixed = constant(code, kind, self.i.literal)
        if fixed is not None:
            return lambda s: fixed
        dtype = TYPES[kind]
        if code == self.arch.null:
            return lambda s: dtype(0)
        if code == _SCC:
            return lambda s: s.scc.astype(np.uint32).view(dtype)
        if code >= 128:
            raise Unknown(f"the scalar operand {code}")
        self.touched |= {code} if WIDTHS[kind] < 8 else {code, code + 1}
        if WIDTHS[kind] == 8:
            return lambda s: _paired(s.scalars[code], s.scalars[code + 1]).view(dtype)
        if WIDTHS[kind] == 2:
            return lambda s: s.scalars[code].astype(np.uint16).view(dtype)
        return lambda s: s.scalars[code].view(dtype)

    def write_scalar(self, code: int, kind: str) -> Write:
        self.touched |= {code} if WIDTHS[kind] < 8 else {code, code + 1}
        if WIDTHS[kind] == 8:

            def wide(s: Strand, value: Array) -> None:
                bits = np.broadcast_to(value, len(s.rows)).astype(TYPES[kind]).view(np.uint64)
                s.put_scalar(code, bits.astype(np.uint32))
                s.put_scalar(code + 1, (bits >> np.uint64(32)).astype(np.uint32))

            return wide
        return lambda s, value: s.put_scalar(code, np.asarray(value).astype(TYPES[kind]).view("u4"))

    def lane_bits(self, code: int) -> Read:
        """Returns a function that reads a scalar register as truth values of lanes."""
        self.touched |= {code + n for n in range(self.arch.mask_words)}
        return lambda s: s.lanes_of(code)

    # ---- vectors: values are [wave, lane], or broadcast to that ----------

    def source(self, code: int, kind: str, place: int = 0) -> Read:
        """Returns a function that reads a source of a vector instruction.

        `place` is the operand's position, which selects its modifiers.
        """
        read = self._selected(code, kind, place)
        negative, absolute = self._modifiers(place)
        if not (negative or absolute):
            return read
        sign, dtype = _NEGATIVE[WIDTHS[kind]], TYPES[kind]
        unsigned = _BITS[WIDTHS[kind]]

        def modified(s: Strand) -> Array:
            bits = np.asarray(read(s)).view(unsigned)
            bits = bits & ~sign if absolute else bits
            return (bits ^ sign if negative else bits).view(dtype)

        return modified

    def _modifiers(self, place: int) -> tuple[bool, bool]:
        i = self.i
        if i.dpp is not None and not i.kind.startswith("VOP3"):
            return (bool(i.dpp >> 20 + 2 * place & 1), bool(i.dpp >> 21 + 2 * place & 1))
        if "SDWA" in i.kind:
            return bool(i.get(f"src{place}_neg")), bool(i.get(f"src{place}_abs"))
        if i.kind.startswith("VOP3") and not i.kind.startswith("VOP3P"):
            absolute = 0 if "VOP3SD" in i.kind else i.get("abs")
            return bool(i.get("neg") >> place & 1), bool(absolute >> place & 1)
        return False, False

    def _selected(self, code: int, kind: str, place: int) -> Read:
        if place == 0 and self.exchange is not None:
            if WIDTHS[kind] != 4:
                raise Unknown(f"{self.i.name} of {kind} with lanes exchanged")
            exchange = self.exchange
            read = self.vector(_VECTOR + (self.i.dpp or 0) % 256, "u32")
            return lambda s: exchange.moved(s, read(s)).view(TYPES[kind])
        if "SDWA" in self.i.kind and place < 2:
            return self._part(code, kind, place)
        half = 0
        if WIDTHS[kind] == 2:
            code, half = self._half(code, place)
        return self.vector(code, kind, half)

    def _half(self, code: int, place: int) -> tuple[int, int]:
        """Returns the register of a 16-bit operand, and its half of that register."""
        if self.i.kind.startswith("VOP3"):
            return code, self.i.get("opsel") >> place & 1
        if self.arch.name == "gfx1100" and code >= _VECTOR + 128:
            return code - 128, 1
        return code, 0

    def _part(self, code: int, kind: str, place: int) -> Read:
        """Returns a function that reads an SDWA operand: a byte or a word of a register."""
        i = self.i
        which, signed = i.get(f"src{place}_sel"), i.get(f"src{place}_sext")
        number = i.get("vsrc0") if place == 0 else code
        if i.get("s0" if place == 0 else "s1"):
            number -= _VECTOR if number >= _VECTOR else 0
        read, dtype = self.vector(number, "u32"), TYPES[kind]
        if which == 6:
            return lambda s: _narrowed(read(s), kind)
        shift = np.uint32(8 * which if which < 4 else 16 * (which - 4))
        part = {(0, 0): np.uint8, (0, 1): np.int8, (1, 0): np.uint16, (1, 1): np.int16}[
            int(which >= 4), int(signed)
        ]
        wide_type = f"{'i' if signed else 'u'}{WIDTHS[kind]}"
        return lambda s: (read(s) >> shift).astype(part).astype(wide_type).view(dtype)

    def vector(self, code: int, kind: str, half: int = 0) -> Read:
        """Returns a function that reads a source without modifiers; `half` selects 16 of 32
        bits."""
        if code < _VECTOR:
            read = self.scalar(code, kind if WIDTHS[kind] != 2 else "b32")
            fixed = constant(code, kind, self.i.literal)
            if fixed is not None:
                return lambda s: fixed
            if WIDTHS[kind] != 2:
                return lambda s: _column(read(s))
            return lambda s: _narrowed(_column(read(s)) >> np.uint32(16 * half), kind)
        number, dtype = code - _VECTOR, TYPES[kind]
        self.touched |= {code} if WIDTHS[kind] < 8 else {code, code + 1}
        if WIDTHS[kind] == 8:
            return lambda s: _paired(s.vectors[number], s.vectors[number + 1]).view(dtype)
        if WIDTHS[kind] == 2:
            return lambda s: _narrowed(s.vectors[number] >> np.uint32(16 * half), kind)
        return lambda s: s.vectors[number].view(dtype)

    def where(self, s: Strand) -> Array | None:
        """Returns the lanes that an instruction writes."""
        if self.exchange is None:
            return s.active
        return self.exchange.written(s)

    def destination(self, code: int, kind: str) -> Write:
        """Returns a function that writes the destination of a vector instruction."""
        if WIDTHS[kind] == 2:
            code, half = self._half(code, 3)
            return self.write_half(code, half)
        if "SDWA" in self.i.kind:
            return self._write_part(code)
        return self.write_vector(code, kind)

    def write_vector(self, code: int, kind: str) -> Write:
        number, width = code - _VECTOR, WIDTHS[kind]
        dtype = TYPES[kind]
        self.touched |= {code} if width < 8 else {code, code + 1}

        def write(s: Strand, value: Array) -> None:
            where = self.where(s)
            bits = np.asarray(value).astype(dtype, copy=False).view(_BITS[width])
            if width == 8:
                s.put_vector(number, bits.astype(np.uint32), where)
                bits = bits >> np.uint64(32)
            s.put_vector(number + (width == 8), bits.astype(np.uint32, copy=False), where)

        return write

    def write_half(self, code: int, half: int, *, clears: bool | None = None) -> Write:
        """Returns a function that writes half a register.

        On gfx942 a write of the low half clears the high half, unless the instruction says
        otherwise.
        """
        number = code - _VECTOR
        self.touched.add(code)
        if "SDWA" in self.i.kind:
            return self._write_part(code)
        if clears is None:
            clears = self.arch.name == "gfx942" and not half
        mask = np.uint32(0 if clears else 0xFFFF << (0 if half else 16))

        def write(s: Strand, value: Array) -> None:
            bits = np.asarray(value).view(np.uint16).astype(np.uint32) << np.uint32(16 * half)
            s.put_vector(number, bits | s.vectors[number] & mask, self.where(s))

        return write

    def _write_part(self, code: int) -> Write:
        which, unused = self.i.get("dst_sel"), self.i.get("dst_unused")
        if unused == 1:
            raise Unknown("SDWA that extends a sign in the destination")
        number = code - _VECTOR
        self.touched.add(code)
        bits_of, shift = (32, 0) if which == 6 else (8, 8 * which)
        if which in (4, 5):
            bits_of, shift = 16, 16 * (which - 4)
        mask = np.uint32((1 << bits_of) - 1)
        kept_bits = np.uint32(~(int(mask) << shift) & 0xFFFFFFFF if unused == 2 else 0)

        def write(s: Strand, value: Array) -> None:
            array = np.asarray(value)
            bits = array.view(_BITS[array.dtype.itemsize]).astype(np.uint32)
            placed = (bits & mask) << np.uint32(shift)
            s.put_vector(number, placed | s.vectors[number] & kept_bits, s.active)

        return write


def _paired(low: Array, high: Array) -> Array:
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def _column(value: Array) -> Array:
    return value[:, None] if value.ndim else value


def _narrowed(bits: Array, kind: str) -> Array:
    if WIDTHS[kind] == 2:
        return bits.astype(np.uint16).view(TYPES[kind])
    return bits.view(TYPES[kind])
