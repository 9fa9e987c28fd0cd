"""Hand-made programs in the dense form that the fuzz target `program.c` reads."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import handle_programs
import programs
from tcc.backends.host import HEADER_WORDS, encode_program
from tcc.ir.program import Program

WIDE = -(1 << 15)  # eight bytes follow


def packed(program: Program) -> bytes:
    """Two bytes a word; those that need more, and the sign itself, have eight behind it."""
    record = encode_program(program)
    (count,) = struct.unpack_from("<q", record, 16)
    words = struct.unpack_from(f"<{count}q", record)[HEADER_WORDS:]
    parts = [struct.pack("<h", len(words))]
    parts += [
        struct.pack("<h", word) if WIDE < word < -WIDE else struct.pack("<hq", WIDE, word)
        for word in words
    ]
    return b"".join(parts) + record[count * 8 :]


def seeds() -> Iterator[tuple[str, bytes]]:
    """Inputs that get deep into the target, by name."""
    yield "mlp", packed(programs.mlp()[0])
    yield "every", packed(programs.every_instruction())
    yield "handles", packed(programs.handles())
    yield "growing", packed(handle_programs.growing(3))
    for number, (_, program) in enumerate(handle_programs.lying()):
        yield f"lying-{number}", packed(program)
