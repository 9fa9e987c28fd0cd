"""A fuzz target: artifact files, as far as tcc reads them before it loads their code."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir

from tcc.artifact import read_listings, read_manifest, verify_image
from tcc.errors import UserError
from tcc.runtime.images import foreign_machine

_SECTION = struct.Struct("<IIQQQQIIQQ")
_MANIFEST = (
    b'{"abi": 3, "variants": [{"features": "avx2"}], "name": "m", '
    b'"weights": {"bytes": 0, "place": "artifact", "sha256": ""}}'
)


def check(data: bytes) -> None:
    """Raises an exception that a user must not see."""
    path = Path(gettempdir()) / f"tcc-artifact-{os.getpid()}.so"
    path.write_bytes(data)
    for read in (read_manifest, read_listings, verify_image):
        try:
            read(path)
        except UserError as error:
            if not error.what:
                raise
    foreign_machine(path)
    path.unlink()


def seeds(folder_of: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Yields ELF files of three sections: none, the names of sections, and a manifest."""
    names = b"\0.shstrtab\0.tcc.manifest\0"
    at = 64 + len(names)
    end = at + len(_MANIFEST)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, end, 0, 64, 0, 0, 64, 3, 1)
    sections = _SECTION.pack(*[0] * 10)
    sections += _SECTION.pack(1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    sections += _SECTION.pack(11, 1, 0, 0, at, len(_MANIFEST), 0, 0, 1, 0)
    yield "small", head + names + _MANIFEST + sections
    yield "weights", head + names + _MANIFEST.replace(b'"bytes": 0', b'"bytes": 9') + sections
