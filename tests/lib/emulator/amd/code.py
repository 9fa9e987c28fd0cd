"""Code objects: the segments of an ELF file, its kernel descriptors and its metadata note.

LLVM's "User Guide for AMDGPU Backend" describes all three.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.lib.emulator.faults import Unknown

ARCHITECTURES = {0x41: "gfx1100", 0x4C: "gfx942"}  # The keys are EF_AMDGPU_MACH_AMDGCN_*.
_LOAD, _NOTE, _SYMBOLS = 1, 4, 11
_POINTER_TO_PARAMETERS = 1 << 3  # This property says that user registers hold the pointer.
_NEAREST_WITH_DENORMALS = 0xF0
# Properties of other user registers, which no kernel here asks for.
_OTHER_USER_REGISTERS = 0b1110111


@dataclass(frozen=True)
class Kernel:
    """A kernel's descriptor: `entry` is a byte of `image`; `parameters` are offsets and widths.

    `preloaded` are the first parameter word and the number of words that newer firmware loads into
    registers. A wave then starts 256 bytes behind `entry`.
    """

    arch: str
    name: str
    image: bytes
    entry: int
    shared: int
    parameter_bytes: int
    parameters: tuple[tuple[int, int], ...]
    user_registers: int
    most_threads: int
    preloaded: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class CodeObject:
    arch: str
    image: bytes
    symbols: Mapping[str, int]
    kernels: Mapping[str, Mapping[str, Any]]

    def kernel(self, name: str) -> Kernel | None:
        """Returns the kernel `name`, or None if it does not exist.

        Raises Unknown if the kernel needs features that the emulator lacks.
        """
        if name not in self.kernels:
            return None
        about, at = self.kernels[name], self.symbols[f"{name}.kd"]
        shared, private, parameter_bytes = struct.unpack_from("<III", self.image, at)
        (entry,) = struct.unpack_from("<q", self.image, at + 16)
        floats, resources = struct.unpack_from("<II", self.image, at + 48)
        properties, early = struct.unpack_from("<HH", self.image, at + 56)
        if private or not properties & _POINTER_TO_PARAMETERS or properties & _OTHER_USER_REGISTERS:
            raise Unknown(f"scratch memory or registers that {name} asks the driver for")
        if floats >> 12 & 0xFF != _NEAREST_WITH_DENORMALS:
            raise Unknown(f"the floating-point mode {floats >> 12 & 0xFF:#x} of {name}")
        rows = tuple(
            (int(argument[".offset"]), int(argument[".size"]))
            for argument in about[".args"]
            if not argument[".value_kind"].startswith("hidden")
        )
        if len(rows) != len(about[".args"]):
            raise Unknown(f"hidden parameters of {name}")
        return Kernel(
            self.arch, name, self.image, at + entry, shared, parameter_bytes, rows,
            resources >> 1 & 31, int(about[".max_flat_workgroup_size"]), (early >> 7, early & 127),
        )  # fmt: skip


def code_object(address: int) -> CodeObject:
    """Reads the code object that lies at an address of this process."""
    head = ctypes.string_at(address, 64)
    programs, sections = struct.unpack_from("<QQ", head, 32)
    (flags,) = struct.unpack_from("<I", head, 48)
    program_count, _, section_count = struct.unpack_from("<HHH", head, 56)
    arch = ARCHITECTURES.get(flags & 0xFF)
    if arch is None:
        raise Unknown(f"code for the machine {flags & 0xFF:#x}")
    image, metadata = bytearray(), {}
    for n in range(program_count):
        kind, _, offset, place, _, length, room, _ = struct.unpack(
            "<IIQQQQQQ", ctypes.string_at(address + programs + 56 * n, 56)
        )
        data = ctypes.string_at(address + offset, length)
        if kind == _LOAD:
            image.extend(bytes(max(place + room - len(image), 0)))
            image[place : place + length] = data
        elif kind == _NOTE:
            name, described, _ = struct.unpack_from("<III", data)
            start = 12 + -(-name // 4) * 4
            metadata = _unpacked(data[start : start + described])
    headers = [
        struct.unpack("<IIQQQQIIQQ", ctypes.string_at(address + sections + 64 * n, 64))
        for n in range(section_count)
    ]
    kernels = {entry[".name"]: entry for entry in metadata["amdhsa.kernels"]}
    return CodeObject(arch, bytes(image), _symbols(address, headers), kernels)


def _symbols(address: int, headers: list[tuple[int, ...]]) -> dict[str, int]:
    addresses = {}
    for header in headers:
        if header[1] != _SYMBOLS:
            continue
        names = ctypes.string_at(address + headers[header[6]][4], headers[header[6]][5])
        for at in range(header[4], header[4] + header[5], 24):
            name, _, _, _, value, _ = struct.unpack("<IBBHQQ", ctypes.string_at(address + at, 24))
            addresses[names[name : names.index(b"\0", name)].decode()] = value
    return addresses


_NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i"}
_LENGTHS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpacked(data: bytes) -> Any:
    """Decodes a MessagePack value."""
    value, _ = _value(data, 0)
    return value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    kind = data[at]
    if kind < 0x80 or kind in _CONSTANTS:
        return _CONSTANTS.get(kind, kind), at + 1
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        return struct.unpack_from(form, data, at + 1)[0], at + 1 + struct.calcsize(form)
    at, length = at + 1, kind & (31 if 0xA0 <= kind < 0xC0 else 15)
    if kind in _LENGTHS:
        (length,) = struct.unpack_from(_LENGTHS[kind], data, at)
        at += struct.calcsize(_LENGTHS[kind])
    if 0xA0 <= kind < 0xC0 or 0xD9 <= kind <= 0xDB:
        return data[at : at + length].decode(), at + length
    items, count = [], length * (1 if 0x90 <= kind < 0xA0 or kind in (0xDC, 0xDD) else 2)
    for _ in range(count):
        item, at = _value(data, at)
        items.append(item)
    if count == length:
        return items, at
    return dict(zip(items[::2], items[1::2], strict=True)), at
