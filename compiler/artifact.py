"""Reads an artifact's manifest, program and weights from the file without loading its code.

The manifest is JSON in the ELF section `.tcc.manifest`.  The seal, a hash of the ELF image, follows
the image; then come the weights, which end with a trailer (runtime/src/weights.c defines it).
"""

import hashlib
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from tcc import runtime
from tcc.bounded import parse_json
from tcc.errors import RunTimeoutError, UserError, file_errors
from tcc.file_kind import ELF, file_kind
from tcc.frozen import frozen
from tcc.ir.container import (
    ABI_VERSION,
    LISTINGS_SECTION,
    MANIFEST_SECTION,
    MOST_LISTINGS,
    PROGRAM_SECTION,
    SEAL,
    SEAL_MAGIC,
    SIDE_SUFFIX,
    TRAILER,
    TRAILER_MAGIC,
    TRAILER_VERSION,
)
from tcc.runtime import Module
from tcc.runtime.comm import Comm

_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_EXECUTED = 4  # the flag of a section with machine code
_OBJECT = 1  # the type of an object file
# The largest size in bytes of an image and of its parts, because a damaged or hostile file may
# claim any size.  Reading takes at most 256 MiB and some seconds before the file is verified.
_MOST_IMAGE = 512 << 20
_MOST_NAMES = 1 << 20
_MOST_SECTION = MappingProxyType({LISTINGS_SECTION: MOST_LISTINGS, ".dynstr": _MOST_NAMES})
_MOST_OTHERS = 16 << 20
_CHUNK = 1 << 22


@frozen
class WeightRange:
    """The place of the weights: `size` bytes at `offset` of `path`, with their content hash."""

    path: Path
    offset: int
    size: int
    sha256: str


def load(
    path: str | Path,
    threads: int | None = None,
    *,
    comm: Comm | None = None,
    check: bool = False,
) -> Module:
    """Loads an artifact; `threads` bounds its kernels' threads (None: all CPUs it may use).

    Code, tables and manifest are compared with a hash in the file.  Weights may be large, so only
    their size and the hash that the file names are checked; with `check`, or with TCC_VERIFY=1, the
    weights are read and compared with that hash too.  No hash proves who made the file.

    A model with collectives runs on `comm`, which `tcc.runtime.comm.open()` returns; without `comm`
    it runs on the comm that the process shares at the time of the run.  A file with plans for
    several numbers of ranks is loaded for the rank of `comm`, else of the shared comm, else for the
    rank that a launcher names, else for one rank.

    Raises UserError for a file that is no artifact, or that this machine cannot run.
    """
    # The manifest is read first, because its errors are clearer than the system loader's.
    manifest = read_manifest(Path(path))
    verify_image(Path(path))
    weights = find_weights(Path(path), manifest) if check else None
    if weights is not None:
        verify_weights(weights)
    return runtime.load(path, threads, comm=comm, error=UserError, late=RunTimeoutError)


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of the artifact at `path`.

    Raises UserError where the file is missing, is no artifact, is cut short, or has another ABI.
    """
    manifest = _parse_manifest(_read_section(path, MANIFEST_SECTION), path)
    if manifest.get("abi") != ABI_VERSION:
        raise UserError(
            "the artifact is for another version of tcc",
            where=path,
            why=f"it has ABI {manifest.get('abi')}, this tcc has ABI {ABI_VERSION}",
            hint="compile the model again",
        )
    find_weights(path, manifest)
    return manifest


def verify_image(path: Path) -> None:
    """Reads the artifact's image, all but its weights; raises UserError unless the hash of the
    image is the hash in its seal.

    Without this check, code with a flipped bit would crash or compute wrong results.
    """
    with _opened(path, "artifact") as file:
        # Linkers put the section table last, so the image ends behind it.
        header = _read_header(file, path)
        size = header.table + header.entry * header.count
        if size > _MOST_IMAGE:
            raise _not_an_artifact(path, f"its code would have {size} bytes")
        seal = SEAL.unpack(_read_at(file, size, SEAL.size, path))
        digest = _hash_at(file, 0, size)
    if seal != (SEAL_MAGIC, size, digest):
        raise UserError(
            "the artifact is damaged",
            where=path,
            why="its code does not have the hash in its seal",
            hint="copy the file again, or compile the model again",
        )


def read_program(path: Path, variant: int = 0) -> bytes:
    """Returns the encoded program of a variant; raises UserError for a file that is no artifact."""
    return _read_section(path, f"{PROGRAM_SECTION}{variant}")[:-1]


def read_listings(path: Path) -> dict[str, str]:
    """Returns the kernels' LLVM IR or Triton source by symbol; empty where none is kept.

    Raises UserError where the file is missing, is no artifact or is damaged.
    """
    packed = _read_section(path, LISTINGS_SECTION)
    if not packed:
        return {}
    try:
        data = zlib.decompressobj().decompress(packed, MOST_LISTINGS)
        listings = parse_json(data)
    except (zlib.error, ValueError, RecursionError) as error:
        raise _not_an_artifact(path, "its listings cannot be unpacked") from error
    if not isinstance(listings, dict) or not all(isinstance(t, str) for t in listings.values()):
        raise _not_an_artifact(path, "its listings are no texts by kernel")
    return listings


def code_bytes(path: Path) -> int:
    """Returns the bytes of machine code in an artifact: kernels and runtime, without code for GPUs.

    Raises UserError where the file is missing, is no artifact or is damaged.
    """
    with _opened(path, "artifact") as file:
        header = _read_header(file, path)
        table = _read_at(file, header.table, header.entry * header.count, path)
    return sum(row[5] for row in _SECTION.iter_unpack(table) if row[2] & _EXECUTED)


def needed_glibc(path: Path) -> str:
    """Returns the oldest glibc with every function that the artifact calls, as in `glibc 2.17`.

    It comes from the versions of the ELF symbols.  Raises UserError where the file is missing, is
    no artifact or is damaged.
    """
    names = _read_section(path, ".dynstr")
    versions = re.findall(rb"(?<=\0GLIBC_)\d{1,9}(?:\.\d{1,9})*(?=\0)", names)
    newest = max(([*map(int, version.split(b"."))] for version in versions), default=[2])
    return f"glibc {'.'.join(map(str, newest))}"


def find_weights(path: Path, manifest: dict[str, Any]) -> WeightRange | None:
    """Returns the place of the artifact's weights; None for a model without weights.

    Raises UserError where the weights are missing or belong to another model.
    """
    weights = manifest["weights"]
    if weights["bytes"] == 0:
        return None
    side = weights["place"] == "side file"
    where = path.with_name(path.name + SIDE_SUFFIX) if side else path
    hint = "copy the side file together with the artifact, or compile the model again"
    with _opened(where, "artifact's weights", hint) as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - TRAILER.size))
        data = file.read(TRAILER.size)
    if len(data) == TRAILER.size:
        magic, version, offset, size, digest = TRAILER.unpack(data)
        expected = (TRAILER_MAGIC, TRAILER_VERSION, weights["bytes"], weights["sha256"])
        fits = offset + size <= end - TRAILER.size
        if (magic, version, size, digest.hex()) == expected and fits:
            return WeightRange(where, offset, size, weights["sha256"])
    raise UserError(
        "the artifact's weights are missing or damaged",
        where=where,
        why="the file does not end with the weights that the manifest names",
        hint="copy the file again, or compile the model again",
    )


def verify_weights(weights: WeightRange) -> None:
    """Reads all weights and raises UserError unless they have the hash in the manifest."""
    with _opened(weights.path, "artifact's weights") as file:
        digest = _hash_at(file, weights.offset, weights.size)
    if digest.hex() != weights.sha256:
        raise UserError(
            "the artifact's weights are damaged",
            where=weights.path,
            why="their content hash is not the one in the manifest",
            hint="copy the file again, or compile the model again",
        )


def _hash_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Returns the SHA-256 of `size` bytes at `offset`, or of fewer at the end of the file."""
    digest = hashlib.sha256()
    file.seek(offset)
    while size and (chunk := file.read(min(size, _CHUNK))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.digest()


def _open(path: Path) -> BinaryIO:
    """Opens a file; raises OSError also for a name with a NUL, and for a pipe, which could block
    forever."""
    try:
        if path.is_fifo():
            raise OSError("it is a pipe")
        return path.open("rb")
    except ValueError as error:
        raise OSError(str(error)) from error


@contextmanager
def _opened(path: Path, what: str, hint: str = "") -> Iterator[BinaryIO]:
    """Yields the open file at `path`; raises UserError where it cannot be opened or read.

    `what` is the message's noun for the file.
    """
    with file_errors(f"the {what} cannot be read", path, hint), _open(path) as file:
        yield file


def _not_an_artifact(path: Path, why: str) -> UserError:
    hint = "make one with: tcc compile MODEL.onnx"
    return UserError(
        "the file is not a tcc artifact, or is damaged", where=path, why=why, hint=hint
    )


def _read_at(file: BinaryIO, offset: int, size: int, path: Path) -> bytes:
    if offset < 0 or size < 0 or offset + size > file.seek(0, 2):
        raise _not_an_artifact(path, "the file is cut short")
    file.seek(offset)
    return file.read(size)


@frozen
class _Header:
    """The header of an ELF file.

    `table` is the offset of the table of sections, which has `count` entries of `entry` bytes.
    `names` is the index of the section with the sections' names.
    """

    table: int
    entry: int
    count: int
    names: int


def _read_header(file: BinaryIO, path: Path) -> _Header:
    """Returns the header of an ELF64 little-endian file; raises UserError for other files."""
    start = _read_at(file, 0, min(_ELF_HEADER.size, file.seek(0, 2)), path)
    kind = file_kind(start)
    if kind and not start.startswith(ELF):
        raise _not_an_artifact(path, f"it is {kind}")
    if len(start) < _ELF_HEADER.size:
        raise _not_an_artifact(path, "it is too short for an ELF file")
    head = _ELF_HEADER.unpack(_read_at(file, 0, _ELF_HEADER.size, path))
    if head[0][:6] != b"\x7fELF\x02\x01":
        raise _not_an_artifact(path, "it is not a 64-bit little-endian ELF file")
    if head[1] == _OBJECT:
        raise _not_an_artifact(path, "it is an object file, for a program to link")
    header = _Header(head[6], *head[11:])
    if header.entry != _SECTION.size or header.names >= header.count:
        raise _not_an_artifact(path, "it has no section table")
    return header


def _read_section(path: Path, name: str) -> bytes:
    """Returns the bytes of the section `name` of the artifact at `path`."""
    with _opened(path, "artifact") as file:
        header = _read_header(file, path)
        raw = _read_at(file, header.table, header.entry * header.count, path)
        sections = list(_SECTION.iter_unpack(raw))
        start, size = sections[header.names][4:6]
        if size > _MOST_NAMES:
            raise _not_an_artifact(path, "its sections have too many names")
        names = _read_at(file, start, size, path)
        for start, *_, offset, size, _, _, _, _ in sections:
            if names.startswith(f"{name}\0".encode(), start):
                if size > _MOST_SECTION.get(name, _MOST_OTHERS):
                    raise _not_an_artifact(path, f"its section {name} is too large")
                return _read_at(file, offset, size, path)
    if name == LISTINGS_SECTION:
        return b""
    raise _not_an_artifact(path, f"it has no section {name}")


def _parse_manifest(data: bytes, path: Path) -> dict[str, Any]:
    try:
        manifest = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise _not_an_artifact(path, "its manifest is not JSON, or too large") from error
    if not isinstance(manifest, dict):
        raise _not_an_artifact(path, "its manifest is not an object")
    if manifest.get("abi") != ABI_VERSION:
        return manifest
    variants = manifest.get("variants")
    if not (isinstance(variants, list) and variants and all(isinstance(v, dict) for v in variants)):
        raise _not_an_artifact(path, "its manifest does not describe its variants")
    match manifest.get("weights"):
        case {"bytes": 0} | {"bytes": int(), "place": _, "sha256": _}:
            return manifest
    raise _not_an_artifact(path, "its manifest does not name the weights")
