"""Files that claim to be large are refused within bounds of memory and time."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tcc import artifact
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.runtime.sections import SEAL, SEAL_MAGIC

from tests.lib.fuzz.hostile_archives import members, packed
from tests.lib.fuzz.hostile_artifacts import cases as artifacts

MIB = 1 << 20
MOST_BYTES, MOST_SECONDS = 256 * MIB, 10
_SECTION = struct.Struct("<IIQQQQIIQQ")


def refused(action: Callable[[], object]) -> str:
    """Returns why the action was refused; fails if it exceeds bounds of memory or CPU time."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the recorded peak
    before, start = _status("VmRSS"), time.process_time()
    with pytest.raises(UserError) as error:
        action()
    assert _status("VmHWM") - before < MOST_BYTES
    assert time.process_time() - start < MOST_SECONDS
    return f"{error.value}"


def _status(field: str) -> int:
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if field in s)
    return int(line.split()[1]) * 1024


def _sparse(path: Path, data: bytes, size: int) -> Path:
    """Writes a file of `data`, extended by a hole to `size` bytes."""
    with path.open("wb") as file:
        file.write(data)
        file.truncate(len(data) + size)
    return path


# ---- artifacts -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("clean")
    next(case for case in artifacts() if case.name == "artifact-clean").write_to(folder)
    return (folder / "m.so").read_bytes()


def _sections(data: bytes) -> dict[str, tuple[int, list[int]]]:
    """Returns (offset of the row, row) in the section table, by section name."""
    (table,), (count, names) = (
        struct.unpack_from("<Q", data, 40),
        struct.unpack_from("<2H", data, 60),
    )
    places = [table + n * _SECTION.size for n in range(count)]
    rows = [list(_SECTION.unpack_from(data, at)) for at in places]
    texts = data[rows[names][4] :]
    named = [texts[row[0] : texts.index(b"\0", row[0])].decode() for row in rows]
    return {name: (at, row) for name, at, row in zip(named, places, rows, strict=True)}


def _grown(clean: bytes, section: str, content: bytes, size: int) -> bytes:
    """Returns the artifact with the given content, declared as `size` bytes, appended as the
    section."""
    data, (at, row) = bytearray(clean), _sections(clean)[section]
    row[4:6] = len(clean), size
    _SECTION.pack_into(data, at, *row)
    return bytes(data) + content


READERS = {
    ".tcc.manifest": artifact.read_manifest,
    ".tcc.program0": artifact.read_program,
    ".dynstr": artifact.needed_glibc,
    ".shstrtab": artifact.read_manifest,
}


@pytest.mark.parametrize("section", READERS)
def test_sections_of_gigabytes(clean: bytes, tmp_path: Path, section: str) -> None:
    path = _sparse(tmp_path / "m.so", _grown(clean, section, b"", 40 << 30), 41 << 30)
    assert "too" in refused(lambda: READERS[section](path))


def test_an_image_of_gigabytes(clean: bytes, tmp_path: Path) -> None:
    """The section table lies far behind, and hashing the file for its seal would take long."""
    (count,) = struct.unpack_from("<H", clean, 60)
    (table,) = struct.unpack_from("<Q", clean, 40)
    rows = clean[table : table + count * _SECTION.size]
    for size, why in ((40 << 30, "would have"), (300 << 20, "its seal")):
        path = _sparse(tmp_path / "m.so", clean[:40] + struct.pack("<Q", size) + clean[48:], size)
        with path.open("r+b") as file:
            file.seek(size)
            file.write(rows + SEAL.pack(SEAL_MAGIC, size + len(rows), bytes(32)))
        assert why in refused(lambda path=path: artifact.verify_image(path))


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'{"":0},', b'"",', b"1.5,", '"é",'.encode()])
def test_a_manifest_of_many_small_things(clean: bytes, tmp_path: Path, unit: bytes) -> None:
    manifest = b'{"abi": [' + unit * (15 * MIB // len(unit)) + b"0]}"
    path = tmp_path / "m.so"
    path.write_bytes(_grown(clean, ".tcc.manifest", manifest, len(manifest)))
    refused(lambda: artifact.read_manifest(path))


def test_listings_that_grow_when_they_are_unpacked(clean: bytes, tmp_path: Path) -> None:
    bomb = zlib.compress(b"[" + b"[]," * (17 * MIB) + b"0]", 9)
    data = _grown(clean, ".tcc.manifest", bomb, len(bomb))
    path = tmp_path / "m.so"
    path.write_bytes(data.replace(b".tcc.manifest\0", b".tcc.listings\0"))
    assert "listings" in refused(lambda: artifact.read_listings(path))


# ---- models --------------------------------------------------------------------------------------


def _field(number: int, content: bytes, size: int | None = None) -> bytes:
    """Returns a protobuf field with a declared length, which may exceed the content."""
    remaining, octets = len(content) if size is None else size, bytearray([number << 3 | 2])
    while remaining > 127:
        octets.append(remaining & 127 | 128)
        remaining >>= 7
    return bytes((*octets, remaining)) + content


_FRAME = b"\x08\x09" + _field(8, b"\x0a\x00\x10\x12")
_HOLE = 1900 * MIB
MODELS = {
    "nodes": (_field(7, _field(1, b"") * 2_000_000), 0),
    "attributes": (_field(7, _field(1, _field(5, b"") * 2_000_000)), 0),
    "names": (_field(7, _field(1, _field(1, b"") * 2_000_000)), 0),
    "a text": (_field(6, b"", _HOLE), _HOLE),
    "a text of a node": (_field(7, _field(1, _field(6, b"", _HOLE - 16), _HOLE - 8), _HOLE), _HOLE),
    "a graph of zeros": (_field(7, b"", _HOLE), _HOLE),
    "nothing": (b"", _HOLE),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_many_small_things_and_of_long_texts(tmp_path: Path, name: str) -> None:
    data, hole = MODELS[name]
    path = _sparse(tmp_path / "m.onnx", _FRAME + data, hole)
    refused(lambda: load_model(path))


# ---- archives ------------------------------------------------------------------------------------


def _archive(path: Path, **changed: bytes) -> Path:
    parts = members()
    path.write_bytes(packed({**parts, **changed}))
    return path


def test_an_archive_whose_program_is_many_small_things(tmp_path: Path) -> None:
    (name,) = (n for n in members() if n.startswith("m/models/") or "models/" in n)
    for unit in (b"[],", b"{},", b'"",'):
        many = b'{"schema_version": [' + unit * (15 * MIB // len(unit)) + b"0]}"
        path = _archive(tmp_path / "m.pt2", **{name: many})
        assert "MiB" in refused(lambda path=path: load_model(path))


def test_an_archive_with_a_long_text(tmp_path: Path) -> None:
    (name,) = (n for n in members() if n.endswith("byteorder"))
    path = _archive(tmp_path / "m.pt2", **{name: b"little" + bytes(270 * MIB)})
    assert "bytes" in refused(lambda: load_model(path))


def test_an_archive_of_many_members(tmp_path: Path) -> None:
    some: dict[str, Any] = {f"m/data/{n:060}": b"" for n in range(120_000)}
    path = _archive(tmp_path / "m.pt2", **some)
    assert "directory" in refused(lambda: load_model(path))
