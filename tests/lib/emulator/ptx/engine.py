"""The engine that runs NVIDIA code behind a Device: PTX, and cubins by the PTX they come from."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tcc.backends.gpu.source import CompiledKernel

from tests.lib.emulator.device import Launch

from .program import Program
from .run import program, run

Edit: TypeAlias = Callable[[str], str]
_ELF, _HEADER = b"\x7fELF", 64


@dataclass(frozen=True)
class Entry:
    program: Program
    text: str


class PtxEngine:
    """An engine for PTX; `compiled` are the kernels whose cubins it accepts.

    `forms` collects the forms of loaded code. Equal seeds give equal runs; other seeds give other
    orders of warps. `edit` changes the text, so that tests can plant mistakes.
    """

    def __init__(
        self, compiled: Sequence[CompiledKernel] = (), seed: int | None = 0, edit: Edit = str
    ) -> None:
        self._texts = {code.image: code.assembly for code in compiled}
        self.seed, self._edit = seed, edit
        self.forms: set[str] = set()

    def load(self, address: int) -> str | None:
        head = ctypes.string_at(address, 4)
        if head != _ELF:
            self.forms.add("ptx")
            return self._edit(ctypes.string_at(address).decode())
        self.forms.add("cubin")
        for image, text in self._texts.items():
            # The header is compared first, because a read of a longer image may pass the file's
            # end.
            if ctypes.string_at(address, _HEADER) == image[:_HEADER] and (
                ctypes.string_at(address, len(image)) == image
            ):
                return self._edit(text)
        return None

    def find(self, module: str, name: str) -> Entry:
        return Entry(program(module, name), module)

    def parameters(self, kernel: Entry, value: Callable[[int, int], bytes]) -> bytes:
        rows = kernel.program.kernel.parameters.values()
        buffer = bytearray(max((row.offset + row.width for row in rows), default=0))
        for number, row in enumerate(rows):
            buffer[row.offset : row.offset + row.width] = value(number, row.width)
        return bytes(buffer)

    def run(self, kernel: Entry, launch: Launch) -> None:
        run(kernel.program, launch, self.seed or 0)
