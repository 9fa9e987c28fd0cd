"""Reads an artifact's manifest, program and weights from the file without loading its code.

The manifest is JSON in the ELF section `.tcc.manifest`.  The seal, a hash of the ELF image, follows
the image; then come the weights, which end with a trailer (src/weights.c defines it).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from tcc.runtime import elf
from tcc.runtime.reports import InputError
from tcc.runtime.sections import (
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

# The largest size in bytes of an image and of its parts, because a damaged or hostile file may
# claim any size.  Reading takes at most 256 MiB and some seconds before the file is verified.
_MOST_IMAGE = 512 << 20
_MOST_SECTION = MappingProxyType({LISTINGS_SECTION: MOST_LISTINGS, ".dynstr": elf.MOST_NAMES})
_MOST_OTHERS = 16 << 20
_COPY_AGAIN = "copy the file again, or compile the model again"


@dataclass(frozen=True, slots=True)
class WeightRange:
    """The place of the weights: `size` bytes at `offset` of `path`, with their content hash."""

    path: Path
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """The artifact at `path`, which is not trusted.

    `parse` returns the value of a JSON text; it raises ValueError or RecursionError for a text that
    it refuses. `kind` returns the kind of a file that begins with some bytes, as in "a gzip
    archive"; "" if it is unknown. All methods raise InputError for a file that is missing, is no
    artifact or is damaged.
    """

    path: Path
    parse: Callable[[bytes], Any]
    kind: Callable[[bytes], str]

    def manifest(self) -> dict[str, Any]:
        """Returns the manifest.

        Raises InputError also where the file is cut short, or has another ABI.
        """
        manifest = self._parsed_manifest(self._section(MANIFEST_SECTION))
        if manifest.get("abi") != ABI_VERSION:
            raise InputError(
                "the artifact is for another version of tcc",
                where=str(self.path),
                why=f"it has ABI {manifest.get('abi')}, this tcc has ABI {ABI_VERSION}",
                hint="compile the model again",
            )
        find_weights(self.path, manifest)
        return manifest

    def verify_image(self) -> None:
        """Reads the artifact's image, all but its weights; raises InputError unless the hash of the
        image is the hash in its seal.

        Without this check, code with a flipped bit would crash or compute wrong results.
        """
        with self._image() as file:
            size = elf.read_header(file).size
            if size > _MOST_IMAGE:
                raise self._no_artifact(f"its code would have {size} bytes")
            seal = SEAL.unpack(elf.read_at(file, size, SEAL.size))
            digest = elf.hash_at(file, 0, size)
        if seal != (SEAL_MAGIC, size, digest):
            raise InputError(
                "the artifact is damaged",
                where=str(self.path),
                why="its code does not have the hash in its seal",
                hint=_COPY_AGAIN,
            )

    def program(self, variant: int = 0) -> bytes:
        """Returns the encoded program of a variant."""
        return self._section(f"{PROGRAM_SECTION}{variant}")[:-1]

    def listings(self) -> dict[str, str]:
        """Returns the kernels' LLVM IR or Triton source by symbol; empty where none is kept."""
        packed = self._section(LISTINGS_SECTION)
        if not packed:
            return {}
        try:
            data = zlib.decompressobj().decompress(packed, MOST_LISTINGS)
            listings = self.parse(data)
        except (zlib.error, ValueError, RecursionError) as error:
            raise self._no_artifact("its listings cannot be unpacked") from error
        if not isinstance(listings, dict) or not all(isinstance(t, str) for t in listings.values()):
            raise self._no_artifact("its listings are no texts by kernel")
        return listings

    def code_bytes(self) -> int:
        """Returns the bytes of machine code: kernels and runtime, without code for GPUs."""
        with self._image() as file:
            return elf.code_bytes(file)

    def needed_glibc(self) -> str:
        """Returns the oldest glibc with every function that the artifact calls, as in `glibc 2.17`.

        It comes from the versions of the ELF symbols.
        """
        names = self._section(".dynstr")
        versions = re.findall(rb"(?<=\0GLIBC_)\d{1,9}(?:\.\d{1,9})*(?=\0)", names)
        newest = max(([*map(int, version.split(b"."))] for version in versions), default=[2])
        return f"glibc {'.'.join(map(str, newest))}"

    def _no_artifact(self, why: str) -> InputError:
        return InputError(
            "the file is not a tcc artifact, or is damaged",
            where=str(self.path),
            why=why,
            hint="make one with: tcc compile MODEL.onnx",
        )

    @contextmanager
    def _image(self) -> Iterator[BinaryIO]:
        """Yields the open file; raises InputError for a file that is no ELF file."""
        with _opened(self.path, "artifact") as file:
            start = file.read(elf.HEADER_BYTES)
            kind = self.kind(start)
            if kind and not start.startswith(elf.MAGIC):
                raise self._no_artifact(f"it is {kind}")
            try:
                yield file
            except elf.ElfError as error:
                raise self._no_artifact(str(error)) from error

    def _section(self, name: str) -> bytes:
        """Returns the bytes of the section `name`."""
        with self._image() as file:
            section = elf.read_section(file, name, _MOST_SECTION.get(name, _MOST_OTHERS))
        if section is None and name != LISTINGS_SECTION:
            raise self._no_artifact(f"it has no section {name}")
        return section or b""

    def _parsed_manifest(self, data: bytes) -> dict[str, Any]:
        try:
            manifest = self.parse(data)
        except (ValueError, RecursionError) as error:
            raise self._no_artifact("its manifest is not JSON, or too large") from error
        if not isinstance(manifest, dict):
            raise self._no_artifact("its manifest is not an object")
        if manifest.get("abi") != ABI_VERSION:
            return manifest
        variants = manifest.get("variants")
        if not (
            isinstance(variants, list) and variants and all(isinstance(v, dict) for v in variants)
        ):
            raise self._no_artifact("its manifest does not describe its variants")
        match manifest.get("weights"):
            case {"bytes": 0} | {"bytes": int(), "place": _, "sha256": _}:
                return manifest
        raise self._no_artifact("its manifest does not name the weights")


def find_weights(path: Path, manifest: Mapping[str, Any]) -> WeightRange | None:
    """Returns the place of the artifact's weights; None for a model without weights.

    Raises InputError where the weights are missing or belong to another model.
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
    raise InputError(
        "the artifact's weights are missing or damaged",
        where=str(where),
        why="the file does not end with the weights that the manifest names",
        hint=_COPY_AGAIN,
    )


def verify_weights(weights: WeightRange) -> None:
    """Reads all weights and raises InputError unless they have the hash in the manifest."""
    with _opened(weights.path, "artifact's weights") as file:
        digest = elf.hash_at(file, weights.offset, weights.size)
    if digest.hex() != weights.sha256:
        raise InputError(
            "the artifact's weights are damaged",
            where=str(weights.path),
            why="their content hash is not the one in the manifest",
            hint=_COPY_AGAIN,
        )


@contextmanager
def _opened(path: Path, what: str, hint: str = "") -> Iterator[BinaryIO]:
    """Yields the open file at `path`; raises InputError where it cannot be opened or read.

    `what` is the message's noun for the file.  A pipe is refused, because it could block forever.
    """
    try:
        if path.is_fifo():
            raise OSError("it is a pipe")
        file = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise _unreadable(path, what, hint, error) from error
    with file:
        try:
            yield file
        except OSError as error:
            raise _unreadable(path, what, hint, error) from error


def _unreadable(path: Path, what: str, hint: str, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or str(error)
    return InputError(f"the {what} cannot be read", where=str(path), why=why, hint=hint)
