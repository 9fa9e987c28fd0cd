"""Reads the dynamic linker's tables of a 64-bit shared library; the source is the ELF
specification."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

Sections = dict[str, bytes]


def sections(path: Path) -> Sections:
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01"
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, table + n * size) for n in range(count)]
    names = data[heads[names_at][4] :]
    contents = {}
    for head in heads:
        name = names[head[0] : names.index(b"\0", head[0])].decode()
        contents[name] = data[head[4] : head[4] + head[5]]
    return contents


def text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def dynamic(path: Path, tag: int) -> list[str]:
    """Returns the names under a tag of the dynamic section: 1 the libraries needed, 14 the
    SONAME."""
    contents = sections(path)
    entries = struct.iter_unpack("<qQ", contents[".dynamic"])
    return [text(contents[".dynstr"], value) for key, value in entries if key == tag]


def needed_versions(path: Path) -> dict[str, set[str]]:
    """Returns the versions of symbols that the library needs, by the library that defines them."""
    contents = sections(path)
    return {library: set(names) for library, names in _needed(contents)}


def newest_glibc(path: Path) -> tuple[int, ...]:
    """Returns the newest version of glibc that the library needs, as numbers."""
    version_names = (name for names in needed_versions(path).values() for name in names)
    return max(version_numbers(name) for name in version_names if name.startswith("GLIBC_"))


def version_numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version such as GLIBC_2.17."""
    return tuple(map(int, version.removeprefix("GLIBC_").split(".")))


def _needed(contents: Sections) -> Iterator[tuple[str, list[str]]]:
    needs, strings, at = contents.get(".gnu.version_r", b""), contents[".dynstr"], 0
    while needs:
        _, count, file, first, following = struct.unpack_from("<HHIII", needs, at)
        names, here = [], at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", needs, here)
            names.append(text(strings, name))
            here += step
        yield text(strings, file), names
        if not following:
            return
        at += following
