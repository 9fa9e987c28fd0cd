"""Reads archives of torch (.pt2): the members of the zip file, and their weights.

Nothing is unpacked, unpickled or evaluated.  Members are stored uncompressed, so weights are views
of the mapped file.
"""

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tcc.bounded import parse_json
from tcc.errors import UserError
from tcc.file_kind import ZIP, file_kind
from tcc.frontends.model_file import map_file
from tcc.frontends.place import placed
from tcc.frontends.torch.calls import TorchProgram
from tcc.frontends.torch.tensors import PARTS, part_type
from tcc.frontends.torch.wire import member, numbers, program_of, scalar_type
from tcc.frozen import frozen
from tcc.ir.narrow import bf16_values
from tcc.ir.op import Array
from tcc.ir.types import BF16, DType
from tcc.zipped import zip_equal

# The parts of a member's local header that are read: its signature, and the sizes of name and extra
# field.
_LOCAL = struct.Struct("<4s22x2H")
_LARGEST_DIRECTORY = 1 << 23
_LARGEST_JSON = 1 << 26
_LARGEST_TEXT = 100
_SCHEMA = 8  # the major version of torch's format
_AGAIN = "save it with torch.export.save of PyTorch 2.9 or newer, or give --allow-pickle"


def read_archive(path: str) -> TorchProgram:
    """Reads the program of an archive that `torch.export.save` wrote.

    Raises `UserError` where the file is no archive, is damaged, or has weights that would have to
    be unpickled.
    """
    data = map_file(Path(path), "this tcc reads archives of torch.export.save")
    head = data[:64].tobytes()
    if not head.startswith(ZIP) and (kind := file_kind(head)):
        raise UserError(
            "the file is not an archive of torch.export.save",
            where=path,
            why=f"it is {kind}",
            hint="only the name of such an archive ends in .pt2",
        )
    with _reading(path):
        return _read(data)


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turns errors of reading an archive into a `UserError`."""
    with placed(where):
        try:
            yield
        except (ValueError, RecursionError) as error:
            raise UserError(
                "the archive cannot be read", why=str(error)[:500], hint=_AGAIN
            ) from error


def _read(data: memoryview) -> TorchProgram:
    archive = _Archive(data, _members(data), set())
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
    return program_of(content, _Weights(archive, name).contents)


# ---- members of the zip file ---------------------------------------------------------------------


@frozen
class _Archive:
    """The zip file.

    `members` maps a name to the offset, size and checksum of its bytes. `sound` has the names whose
    checksums were verified.
    """

    data: memoryview
    members: Mapping[str, tuple[int, int, int]]
    sound: set[str]

    def bytes_of(self, name: str, largest: int | None = None) -> memoryview:
        entry = self.members.get(name)
        if entry is None:
            raise ValueError(f"it has no member {name[:200]}")
        offset, size, checksum = entry
        if largest is not None and size > largest:
            raise ValueError(f"{name[:200]} has {size} bytes")
        content = self.data[offset : offset + size]
        if name not in self.sound and zlib.crc32(content) != checksum:
            raise ValueError(f"the checksum of {name[:200]} is wrong")
        self.sound.add(name)
        return content

    def text(self, name: str) -> str:
        return bytes(self.bytes_of(name, _LARGEST_TEXT)).decode("utf-8")

    def json(self, name: str) -> Any:
        return parse_json(bytes(self.bytes_of(name, _LARGEST_JSON)))


class _File:
    """A file for `zipfile` that limits the size of the directory, which `zipfile` reads whole."""

    def __init__(self, data: memoryview) -> None:
        file: Any = data.obj
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int = -1) -> bytes:
        if size > _LARGEST_DIRECTORY:
            raise ValueError(f"its directory has {size} bytes")
        data: bytes = self._read(size)
        return data


def _members(data: memoryview) -> dict[str, tuple[int, int, int]]:
    """Returns the offset, size and checksum of each member by its name.

    The name leaves out the folder that contains the whole archive.
    """
    file: Any = _File(data)
    try:
        listed = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(f"it is no zip file, or is damaged ({error})") from error
    members: dict[str, tuple[int, int, int]] = {}
    for entry in listed:
        name = entry.orig_filename
        root, slash, inner = name.partition("/")
        if not root or not slash or ".." in name.split("/") or "\\" in name or "\0" in name:
            raise ValueError(f"a member has the name {name[:200]!r}")
        if inner in members:
            raise ValueError(f"two members have the name {inner[:200]!r}")
        members[inner] = _place(data, entry)
    if len({entry.orig_filename.partition("/")[0] for entry in listed}) != 1:
        raise ValueError("its members do not lie in one folder")
    places = sorted(members.values())
    if any(start + size > following for (start, size, _), (following, *_) in pairwise(places)):
        raise ValueError("members overlap")
    return members


def _place(data: memoryview, entry: zipfile.ZipInfo) -> tuple[int, int, int]:
    """Returns the offset of a member's first byte, the number of its bytes, and their checksum."""
    name, at, size = entry.orig_filename[:200], entry.header_offset, entry.file_size
    if entry.compress_type or entry.flag_bits & 1 or entry.compress_size != size:
        raise ValueError(f"the member {name} is compressed or encrypted")
    if not 0 <= at <= len(data) - _LOCAL.size:
        raise ValueError(f"the member {name} lies outside")
    mark, *fields = _LOCAL.unpack_from(data, at)
    start = at + _LOCAL.size + sum(fields)
    if mark != b"PK\x03\x04" or start + size > len(data):
        raise ValueError(f"the member {name} is truncated")
    return start, size, entry.CRC


# ---- weights -------------------------------------------------------------------------------------

# The most bytes of a tensor whose elements share memory, so that the file stores fewer bytes.
_SHARED = 1 << 24
# The weights that are read take at most this many times the bytes of the file.
_USES = 64


@dataclass(slots=True)
class _Weights:
    """Reads the parameters, buffers and constants of one program, by name.

    `bytes_read` is the number of bytes of all arrays read so far.
    """

    archive: _Archive
    model: str
    configs: dict[str, tuple[str, Any]] = field(default_factory=dict)
    bytes_read: int = 0

    def __post_init__(self) -> None:
        for kind in ("weights", "constants"):
            listed = f"data/{kind}/{self.model}_{kind}_config.json"
            if listed not in self.archive.members:
                continue
            for name, config in member(self.archive.json(listed), "config", dict).items():
                self.configs.setdefault(name, (f"data/{kind}/", config))

    def contents(self, name: str) -> tuple[Array, DType]:
        """Returns the elements of a constant, as a view of the file where NumPy has the type."""
        with _reading(f"constant {name[:200]}"):
            return self._contents(name)

    def _contents(self, name: str) -> tuple[Array, DType]:
        if name not in self.configs:
            raise ValueError("the archive does not hold it")
        folder, config = self.configs[name]
        if member(config, "use_pickle", bool):
            raise ValueError("it is pickled, which can run any code")
        meta = member(config, "tensor_meta", dict)
        name = scalar_type(meta.get("dtype"))
        dtype = part_type(name)
        storage = self.archive.bytes_of(folder + member(config, "path_name", str))
        array = _view(storage, dtype, meta, 2 if name in PARTS else 1)
        self.bytes_read += array.nbytes
        if self.bytes_read > _USES * len(self.archive.data):
            raise ValueError("the weights take many times the file's size")
        return (bf16_values(array), dtype) if dtype is BF16 else (array, dtype)


def _view(storage: memoryview, dtype: DType, meta: Mapping[str, Any], parts: int) -> Array:
    """Returns the elements that `meta` describes, from the bytes of their storage.

    Elements of several `parts`, such as complex numbers, get a last axis for the parts.
    """
    if meta.get("layout") != 7:
        raise ValueError("it is sparse")
    kind = np.dtype(np.uint16) if dtype is BF16 else dtype.carrier
    sizes, strides = numbers(member(meta, "sizes", list)), numbers(member(meta, "strides", list))
    (offset,) = numbers([meta.get("storage_offset")])
    if len(sizes) != len(strides) or len(sizes) > 64 or min([offset, *sizes, *strides]) < 0:
        raise ValueError("its sizes are wrong")
    if parts > 1:
        sizes, strides = (*sizes, parts), (*(n * parts for n in strides), 1)
        offset *= parts
    count = math.prod(sizes)
    if not count:
        return np.zeros(sizes, kind)
    last = offset + sum((n - 1) * step for n, step in zip_equal(sizes, strides))
    if (last + 1) * kind.itemsize > len(storage):
        raise ValueError("it is larger than what is stored")
    if count * kind.itemsize > max(len(storage), _SHARED):
        raise ValueError("its elements share memory")
    steps = [step * kind.itemsize for step in strides]
    flat = np.frombuffer(storage, np.uint8)
    return np.ndarray(sizes, kind, flat, offset * kind.itemsize, steps)
