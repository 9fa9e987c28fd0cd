"""Archives of torch (.pt2): the members of the zip file, and the weights they hold.

Nothing is unpacked, unpickled or evaluated: members are stored as they are, so weights are views
of the mapped file.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tcc.errors import UserError
from tcc.frontends.model_file import map_file
from tcc.frontends.torch.calls import Program
from tcc.frontends.torch.tensors import element_type
from tcc.frontends.torch.wire import member, numbers, program_of, scalar_type
from tcc.ir.op import Array
from tcc.ir.types import BF16, DType
from tcc.record import record

_END = struct.Struct("<4s4H2LH")  # end of the central directory
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_FULL32 = 0xFFFFFFFF
_MOST_MEMBERS = 1 << 17
_LARGEST_JSON = 1 << 28
_SCHEMA = 8  # the major version of torch's format
_AGAIN = "save it with torch.export.save of PyTorch 2.9 or newer, or give --allow-pickle"


def read_archive(path: str) -> Program:
    """The program of an archive that `torch.export.save` wrote.

    Raises `UserError` where the file is no such archive, is damaged, or holds weights that would
    have to be unpickled.
    """
    data = map_file(Path(path), "this tcc reads archives of torch.export.save")
    try:
        return _read(data)
    except (ValueError, RecursionError) as error:
        raise UserError(
            "the archive cannot be read", where=path, why=str(error)[:500], hint=_AGAIN
        ) from error


def _read(data: memoryview) -> Program:
    archive = _Archive(data, dict(_members(data)))
    if archive.text("archive_format") != "pt2":
        raise ValueError("it is no archive of torch.export.save")
    if archive.text("byteorder") != "little":
        raise ValueError("its bytes are not in little-endian order")
    models = [n for n in archive.members if n.startswith("models/") and n.endswith(".json")]
    if len(models) != 1:
        raise ValueError(f"it holds {len(models)} programs, not one")
    name = models[0].removeprefix("models/").removesuffix(".json")
    content = archive.json(models[0])
    version = member(content, "schema_version", dict).get("major")
    if version != _SCHEMA:
        raise ValueError(f"version {version!r} of the format is unknown; {_SCHEMA} is known")
    weights = _Weights(archive, name)
    return program_of(content, weights.contents)


# ---- members of the zip file ---------------------------------------------------------------------


@record
class _Archive:
    """`members` are offset, size and checksum of what is stored, by name."""

    data: memoryview
    members: Mapping[str, tuple[int, int, int]]

    def bytes_of(self, name: str) -> memoryview:
        found = self.members.get(name)
        if found is None:
            raise ValueError(f"it has no member {name[:200]}")
        offset, size, checksum = found
        stored = self.data[offset : offset + size]
        if zlib.crc32(stored) != checksum:
            raise ValueError(f"the checksum of {name[:200]} is wrong")
        return stored

    def text(self, name: str) -> str:
        return bytes(self.bytes_of(name)[:100]).decode("utf-8")

    def json(self, name: str) -> Any:
        stored = self.bytes_of(name)
        if len(stored) > _LARGEST_JSON:
            raise ValueError(f"{name[:200]} has {len(stored)} bytes")
        return json.loads(bytes(stored))


def _members(data: memoryview) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """The members, without the archive's folder, in the order of the directory."""
    at, count = _directory(data)
    if count > _MOST_MEMBERS:
        raise ValueError(f"it has {count} members")
    taken: list[tuple[int, int]] = []
    seen: set[str] = set()
    for _ in range(count):
        name, place, at = _entry(data, at)
        taken.append((place[0], place[0] + place[1]))
        root, slash, inner = name.partition("/")
        if not root or not slash or ".." in name.split("/") or "\\" in name or "\0" in name:
            raise ValueError(f"a member has the name {name[:200]!r}")
        if name in seen:
            raise ValueError(f"two members have the name {name[:200]!r}")
        seen.add(name)
        yield inner, place
    if len({name.partition("/")[0] for name in seen}) != 1:
        raise ValueError("its members do not lie in one folder")
    taken.sort()
    if any(end > start for (_, end), (start, _) in pairwise(taken)):
        raise ValueError("members overlap")


def _directory(data: memoryview) -> tuple[int, int]:
    """Where the directory lies, and how many entries it has."""
    tail = bytes(data[-(_END.size + 0xFFFF) :])
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or place + _END.size > len(tail):
        raise ValueError("it is no zip file, or is truncated")
    count, offset = _END.unpack_from(tail, place)[4], _END.unpack_from(tail, place)[6]
    place += len(data) - len(tail)
    locator = place - _LOCATOR64.size
    if locator >= 0 and bytes(data[locator : locator + 4]) == b"PK\x06\x07":
        where = _LOCATOR64.unpack_from(data, locator)[2]
        found = _unpacked(_END64, data, where, b"PK\x06\x06")
        count, offset = found[7], found[9]
    return offset, count


def _unpacked(layout: struct.Struct, data: memoryview, at: int, magic: bytes) -> tuple[Any, ...]:
    if at + layout.size > len(data) or bytes(data[at : at + 4]) != magic:
        raise ValueError("its directory is damaged")
    return layout.unpack_from(data, at)


def _entry(data: memoryview, at: int) -> tuple[str, tuple[int, int, int], int]:
    """An entry of the directory: a name, where its bytes lie, and the next entry."""
    found = _unpacked(_ENTRY, data, at, b"PK\x01\x02")
    flags, method, checksum, packed, size = found[3], found[4], *found[7:10]
    name_end = at + _ENTRY.size + found[10]
    end = name_end + found[11] + found[12]
    if end > len(data):
        raise ValueError("its directory is truncated")
    name = bytes(data[at + _ENTRY.size : name_end]).decode("utf-8")
    extra = bytes(data[name_end : name_end + found[11]])
    size, packed, offset = _wide(extra, size, packed, found[16])
    if method or flags & 1 or packed != size:
        raise ValueError(f"the member {name[:200]} is compressed or encrypted")
    local = _unpacked(_LOCAL, data, offset, b"PK\x03\x04")
    start = offset + _LOCAL.size + local[9] + local[10]
    if start + size > len(data):
        raise ValueError(f"the member {name[:200]} is truncated")
    return name, (start, size, checksum), end


def _wide(extra: bytes, *values: int) -> list[int]:
    """The values of an entry, those that need 64 bits from its extra fields."""
    at, wide = 0, b""
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            wide = extra[at + 4 : at + 4 + size]
        at += 4 + size
    result = []
    for value in values:
        if value == _FULL32:
            if len(wide) < 8:
                raise ValueError("its directory is damaged")
            value, wide = struct.unpack_from("<Q", wide)[0], wide[8:]
        result.append(value)
    return result


# ---- weights -------------------------------------------------------------------------------------

_SHARED = 1 << 24  # bytes that elements may take when several share memory
_USES = 64  # of a byte of the file, by all weights together


@dataclass(slots=True)
class _Weights:
    """Parameters, buffers and constants of one program, by name."""

    archive: _Archive
    model: str
    configs: dict[str, tuple[str, Any]] = field(default_factory=dict)
    given: int = 0

    def __post_init__(self) -> None:
        for kind in ("weights", "constants"):
            listed = f"data/{kind}/{self.model}_{kind}_config.json"
            if listed not in self.archive.members:
                continue
            for name, config in member(self.archive.json(listed), "config", dict).items():
                self.configs.setdefault(name, (f"data/{kind}/", config))

    def contents(self, name: str) -> tuple[Array, DType]:
        """The elements of a constant: views of the file where NumPy has the type."""
        where = f"constant {name[:200]}"
        try:
            return self._contents(name, where)
        except ValueError as error:
            raise UserError(
                "the archive cannot be read", where=where, why=str(error), hint=_AGAIN
            ) from error

    def _contents(self, name: str, where: str) -> tuple[Array, DType]:
        if name not in self.configs:
            raise ValueError("the archive does not hold it")
        folder, config = self.configs[name]
        if member(config, "use_pickle", bool):
            raise ValueError("it is pickled, which can run any code")
        meta = member(config, "tensor_meta", dict)
        dtype = element_type(scalar_type(meta.get("dtype")), where)
        stored = self.archive.bytes_of(folder + member(config, "path_name", str))
        array = _view(stored, dtype, meta)
        self.given += array.nbytes
        if self.given > _USES * len(self.archive.data):
            raise ValueError("the weights take many times the file's size")
        return (_widened(array), dtype) if dtype is BF16 else (array, dtype)


def _view(stored: memoryview, dtype: DType, meta: Mapping[str, Any]) -> Array:
    """The elements that `meta` describes, in the bytes of their storage."""
    if meta.get("layout") != 7:
        raise ValueError("it is sparse")
    kind = np.dtype(np.uint16) if dtype is BF16 else dtype.carrier
    sizes, strides = numbers(member(meta, "sizes", list)), numbers(member(meta, "strides", list))
    (offset,) = numbers([meta.get("storage_offset")])
    if len(sizes) != len(strides) or len(sizes) > 64 or min([offset, *sizes, *strides]) < 0:
        raise ValueError("its sizes are wrong")
    count = 1
    for size in sizes:
        count *= size
    if not count:
        return np.zeros(sizes, kind)
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    if (last + 1) * kind.itemsize > len(stored):
        raise ValueError("it is larger than what is stored")
    if count * kind.itemsize > max(len(stored), _SHARED):
        raise ValueError("its elements share memory")
    steps = [step * kind.itemsize for step in strides]
    flat = np.frombuffer(stored, np.uint8)
    return np.ndarray(sizes, kind, flat, offset * kind.itemsize, steps)


def _widened(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)
