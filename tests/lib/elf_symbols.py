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
    found = {}
    for head in heads:
        name = names[head[0] : names.index(b"\0", head[0])].decode()
        found[name] = data[head[4] : head[4] + head[5]]
    return found


def text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()


def dynamic(path: Path, tag: int) -> list[str]:
    """Returns the names under a tag of the dynamic section: 1 the libraries needed, 14 the
    SONAME."""
    held = sections(path)
    entries = struct.iter_unpack("<qQ", held[".dynamic"])
    return [text(held[".dynstr"], value) for key, value in entries if key == tag]


def needed_versions(path: Path) -> dict[str, set[str]]:
    """Returns the versions of symbols that the library needs, by the library that defines them."""
    held = sections(path)
    return {library: set(names) for library, names in _needed(held)}


def newest_glibc(path: Path) -> tuple[int, ...]:
    """Returns the newest version of glibc that the library needs, as numbers."""
    asked = (name for names in needed_versions(path).values() for name in names)
    return max(version_numbers(name) for name in asked if name.startswith("GLIBC_"))


def version_numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version such as GLIBC_2.17."""
    return tuple(map(int, version.removeprefix("GLIBC_").split(".")))


def _needed(held: Sections) -> Iterator[tuple[str, list[str]]]:
    needs, strings, at = held.get(".gnu.version_r", b""), held[".dynstr"], 0
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
