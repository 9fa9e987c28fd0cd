"""Writes first inputs of the C fuzz targets: `python -m packed_programs NAME FOLDER`.

Inputs of `program.c` are hand-written programs in the dense form that it reads.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import handle_programs
import programs
from tcc.backends.artifact.encode_program import HEADER_WORDS, encode_program
from tcc.ir.program import Program

WIDE = -(1 << 15)  # marks that eight bytes follow


def packed(program: Program) -> bytes:
    """Packs a program to two bytes per word; words that need more, and the mark itself, are the
    mark and eight bytes."""
    record = encode_program(program)
    (count,) = struct.unpack_from("<q", record, 16)
    words = struct.unpack_from(f"<{count}q", record)[HEADER_WORDS:]
    parts = [struct.pack("<h", len(words))]
    parts += [
        struct.pack("<h", word) if WIDE < word < -WIDE else struct.pack("<hq", WIDE, word)
        for word in words
    ]
    return b"".join(parts) + record[count * 8 :]


def seeds(target: str) -> Iterator[tuple[str, bytes]]:
    """Yields (name, input) for inputs that reach deep into a target."""
    yield from _programs() if target == "program" else _strings()


def _strings() -> Iterator[tuple[str, bytes]]:
    """Yields inputs that call each function on these texts, with every number of cuts and with
    few."""
    texts = ("a,b,,c", " 12 ", "-1e5", "nan", "0.1", "ßŉ aA", "", "99999999999", "aa bb")
    data = b"\xff".join(text.encode() for text in texts)
    for number in range(7):
        yield f"any-{number}", bytes((number, 255, 1)) + b"," + data
        yield f"few-{number}", bytes((number, 2, number % 3)) + b"a" + data


def _programs() -> Iterator[tuple[str, bytes]]:
    yield "mlp", packed(programs.mlp()[0])
    yield "every", packed(programs.every_instruction())
    yield "handles", packed(programs.handles())
    yield "growing", packed(handle_programs.growing(3))
    for number, (_, program) in enumerate(handle_programs.lying()):
        yield f"lying-{number}", packed(program)


def main(target: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds(target):
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
