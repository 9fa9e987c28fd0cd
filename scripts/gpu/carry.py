"""Packs each artifact, without its seeded weights, as a compressed file; needs only NumPy."""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpu.draws import ArrayDraw
from gpu.recipe import SectionPart, SectionRemainder, describe, rebuild

# The end of an artifact, as runtime/src/weights.c defines it: magic, version, offset, size,
# SHA-256.
_TRAILER = struct.Struct("<8sQQQ32s")
_MAGIC = b"TCCWGTS\0"


def pack(artifact: Path, draws: Mapping[str, ArrayDraw], out: Path) -> int:
    """Writes `artifact` to `out` without the weights that can be redrawn from `draws`.

    The section of weights also holds the kernels. Returns how many of its bytes `out` contains. An
    artifact for a CPU may have no section. Raises ValueError for a section of an unknown format.
    """
    data = artifact.read_bytes()
    magic, version, offset, size, digest = _TRAILER.unpack(data[-_TRAILER.size :])
    if magic != _MAGIC:
        offset, size, digest = len(data) - _TRAILER.size, 0, hashlib.sha256(b"").digest()
    elif version != 1 or offset + size + _TRAILER.size != len(data):
        raise ValueError(f"{artifact}: its weights are not at the end of the file")
    section = np.frombuffer(data, np.uint8, size, offset)
    parts, remainder = describe(section, draws)
    facts = {
        "size": size,
        "sha256": hashlib.sha256(data).hexdigest(),
        "weights_sha256": digest.hex(),
        "parts": [asdict(part) for part in parts],
    }
    with zipfile.ZipFile(out, "w") as file:
        for name, content in (
            ("head", data[:offset]),
            ("mask", remainder.mask),
            ("lines", remainder.lines),
            ("trailer", data[-_TRAILER.size :]),
            ("recipe.json", json.dumps(facts)),
        ):
            # A new ZipInfo has a fixed date, so equal artifacts give equal archives. LZMA is not
            # used, because some Pythons lack it.
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)
    return len(remainder.lines)


def unpack(archive: Path, draws: Mapping[str, ArrayDraw], out: Path) -> None:
    """Writes to `out` the artifact that `pack` packed into `archive`.

    Raises ValueError if the weights or the complete file differ from the packed artifact.
    """
    with zipfile.ZipFile(archive) as file:
        head, mask, lines, trailer = map(file.read, ("head", "mask", "lines", "trailer"))
        facts = json.loads(file.read("recipe.json"))
    parts = tuple(map(_part, facts["parts"]))
    section = rebuild(parts, SectionRemainder(facts["size"], mask, lines), draws)
    if hashlib.sha256(section).hexdigest() != facts["weights_sha256"]:
        raise ValueError(f"{archive}: the weights made from seeds are not those of the artifact")
    checksum = hashlib.sha256(head)
    checksum.update(section)
    checksum.update(trailer)
    if checksum.hexdigest() != facts["sha256"]:
        raise ValueError(f"{archive}: the file is damaged")
    with out.open("wb") as file:
        file.write(head)
        file.write(section.data)
        file.write(trailer)
    out.chmod(0o755)


def _part(fields: dict[str, Any]) -> SectionPart:
    panel = fields["panel"] and tuple(fields["panel"])
    return SectionPart(**{**fields, "panel": panel, "axes": tuple(fields["axes"])})
