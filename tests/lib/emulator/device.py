"""The fake driver with an emulator behind it.

`tests/lib/fake_gpu/fake_driver.c` hands over images and launches, and an Engine interprets them.
The fake driver does the rest: memory, streams and graphs. No code here depends on the vendor.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tcc.backends.artifact.gpu_binaries import Platform
from tcc.errors import TccError

from tests.lib.fake_gpu.fakes import Driver

from .faults import Fault, Unknown
from .memory import GlobalMemory

_LAUNCH_FAILED = 719  # Both drivers use this number.
# The fake driver puts this tag above addresses for the host; kernels see addresses without it.
_TAG = 0x5A


@dataclass(frozen=True)
class Launch:
    """A kernel's launch.

    `parameters` are the bytes that the kernel sees; `shared` is the size of its dynamic shared
    memory.
    """

    blocks: int
    threads: int
    shared: int
    parameters: bytes
    memory: GlobalMemory


class Engine(Protocol):
    """An emulator of a vendor's code; `seed` decides the order of execution."""

    seed: int | None

    def load(self, address: int) -> Any:
        """Returns the module whose image lies at the address, or None if this engine does not take
        it."""

    def find(self, module: Any, name: str) -> Any:
        """Returns the module's kernel of a name, or None if there is none."""

    def parameters(self, kernel: Any, value: Callable[[int, int], bytes]) -> bytes:
        """Returns the bytes that the kernel sees; `value(n, width)` returns those of parameter
        n."""

    def run(self, kernel: Any, launch: Launch) -> None:
        """Executes a launch; raises Fault and Unknown."""


class _Calls(ctypes.Structure):
    _fields_ = (
        ("load", ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)),
        ("find", ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_char_p)),
        ("launch", ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, *(ctypes.c_uint,) * 3,
                                    ctypes.POINTER(ctypes.c_void_p))),
        ("perform", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_long)),
    )  # fmt: skip


class Device(Driver):
    """A fake driver in this process whose kernels an engine executes.

    `launches` counts executed kernels; `error` is the error of the first launch that failed.
    """

    def __init__(self, path: Path, platform: Platform, engine: Engine) -> None:
        super().__init__(path, platform)
        self.engine = engine
        self._things: list[Any] = [None]  # Modules, kernels and launches by their numbers.
        self.launches = 0
        self.error: BaseException | None = None
        fields = dict(_Calls._fields_)
        calls = {name: fields[name](self._guarded(getattr(self, f"_{name}"))) for name in fields}
        self._calls = _Calls(**calls)
        self._library.fake_emulator.argtypes = (_Calls,)
        self._library.fake_emulator(self._calls)

    def _guarded(self, call: Any) -> Any:
        """Wraps a callback: an error does not pass through C, but is stored, and the call fails."""

        def answer(*arguments: Any) -> int:
            try:
                return int(call(*arguments))
            except BaseException as error:
                self.error = self.error or error
                if not isinstance(error, Fault | Unknown):
                    traceback.print_exc()
                return 0 if call.__name__ != "_perform" else _LAUNCH_FAILED

        return answer

    def _numbered(self, thing: Any) -> int:
        if thing is None:
            return 0
        self._things.append(thing)
        return len(self._things) - 1

    def _load(self, image: int) -> int:
        return self._numbered(self.engine.load(image))

    def _find(self, module: int, name: bytes) -> int:
        return self._numbered(self.engine.find(self._things[module], name.decode()))

    def _launch(self, kernel: int, blocks: int, threads: int, shared: int, pointers: Any) -> int:
        function = self._things[kernel]

        def value(number: int, width: int) -> bytes:
            raw = ctypes.string_at(pointers[number], width)
            tagged = width == 8 and raw[7] == _TAG
            return raw[:7] + b"\0" if tagged else raw

        parameters = self.engine.parameters(function, value)
        return self._numbered((function, blocks, threads, shared, parameters))

    def _perform(self, number: int) -> int:
        kernel, blocks, threads, shared, parameters = self._things[number]
        launch = Launch(blocks, threads, shared, parameters, GlobalMemory(self.allocations()))
        self.launches += 1
        self.engine.run(kernel, launch)
        return 0

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Raises the emulator's stored error in place of the error that the runtime reports."""
        try:
            yield
        except (RuntimeError, TccError):
            if self.error is not None:
                raise self.error from None
            raise

    def allocations(self) -> list[tuple[int, int]]:
        """Returns the allocations as addresses that kernels see and sizes in bytes."""
        room = 1 << 12
        rows = ((ctypes.c_uint64 * 2) * room)()
        count = self._library.fake_allocations(rows, room)
        assert count <= room
        return [(int(a), int(n)) for a, n in rows[:count]]
