"""The engine that runs AMD code behind a Device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeAlias

from tests.lib.emulator.device import Launch

from .code import CodeObject, Kernel, code_object
from .run import run

Edit: TypeAlias = Callable[[Kernel], Kernel]
_ELF = b"\x7fELF"


class AmdEngine:
    """An engine for AMD code objects; `archs` collects the architectures of the loaded code.

    Without a seed, waves at the same instruction run together. With a seed, each wave of a
    workgroup runs alone from barrier to barrier in a seeded order. Kernels that support preloaded
    parameters then start with their parameters in registers. `edit` changes kernels, so that tests
    can plant mistakes.
    """

    def __init__(self, seed: int | None = None, edit: Edit = lambda kernel: kernel) -> None:
        self.seed, self._edit = seed, edit
        self.archs: set[str] = set()

    def load(self, address: int) -> CodeObject | None:
        if ctypes.string_at(address, 4) != _ELF:
            return None
        code = code_object(address)
        self.archs.add(code.arch)
        return code

    def find(self, module: CodeObject, name: str) -> Kernel | None:
        kernel = module.kernel(name)
        return None if kernel is None else self._edit(kernel)

    def parameters(self, kernel: Kernel, value: Callable[[int, int], bytes]) -> bytes:
        buffer = bytearray(b"\xcc" * kernel.parameter_bytes)
        for number, (offset, width) in enumerate(kernel.parameters):
            buffer[offset : offset + width] = value(number, width)
        return bytes(buffer)

    def run(self, kernel: Kernel, launch: Launch) -> None:
        run(kernel, launch, self.seed)
