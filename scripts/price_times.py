"""Times the schedules of a kernel alone, in interleaved rounds, on one thread and on all."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from environment import ROOT
from peaks import Calm, undisturbed
from price_kernels import KernelBuffer, ScheduleCandidate
from tcc.backends.artifact.toolchain import (
    RUNTIME_FLAGS,
    find_toolchain,
    run_tool,
    runtime_folder,
    runtime_objects,
)
from tcc.backends.cpu.compile import compile_kernels
from tcc.target import Target

SOURCE = ROOT / "scripts" / "price_check.c"
# A launch reads the next copy of the constants, so that caches hold as few of them as in a run of
# the model. All copies take at most MIN_ROTATED bytes, or four times the last cache if that is
# more. With fewer bytes, the cache would keep a part of each copy: with copies of 64 MiB and a
# cache of 32 MiB on Zen 4, constants were read at 50 GB/s, where memory gives 34.
MIN_ROTATED, MAX_SETS = 64 << 20, 1 << 14
MIN_LAUNCHES, MAX_LAUNCHES = 3, 1000  # launches of a schedule in a round
_PAGE, _STAGGER = 4096, 64 * 67  # bytes; the stagger starts each buffer at another offset in a page

# The bytes of an element with which buffers of a type are filled. Floats get about 0.001, which
# causes no denormals: arithmetic on these is slow. Buffers of all other types are filled with
# zeros, because an integer may be an index, and zero is always in range.
_FILLS = MappingProxyType(
    {
        "f32": np.float32(1e-3).tobytes(),
        "f64": np.float64(1e-3).tobytes(),
        "f16": np.float16(1e-3).tobytes(),
        "bf16": np.float32(1e-3).tobytes()[2:],
    }
)


@dataclass(frozen=True, slots=True)
class RoundEffort:
    """The effort of a measurement: its number of rounds, and a schedule's seconds in a round."""

    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Rounds:
    """The times of a kernel's schedules.

    `seconds[round][n]` is the time of a launch of schedule number n. `calm[round]` is True if no
    other work disturbed the machine in that round.
    """

    seconds: list[list[float]]
    calm: list[bool]

    def medians(self) -> list[float]:
        """Returns the median time of each schedule over the calm rounds.

        If no round was calm, all rounds count.
        """
        calm_rounds = [s for s, calm in zip(self.seconds, self.calm, strict=True) if calm]
        return [
            statistics.median(schedule_seconds)
            for schedule_seconds in zip(*(calm_rounds or self.seconds), strict=True)
        ]


class _Work(ctypes.Structure):
    """Mirrors the struct `work` of price_check.c."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("width", "sets", "units")),
        ("scratch", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "threads")),
    )


class KernelCode:
    """The native code of a kernel's schedules, and the sizes of their buffers.

    `weights` is the number of bytes of the model's constants: a run of the model reads so many
    bytes between two launches, so copies of the kernel's constants need not take more.
    """

    def __init__(
        self, candidates: Sequence[ScheduleCandidate], target: Target, weights: int
    ) -> None:
        self.names = [f"schedule{n}" for n in range(len(candidates))]
        jobs = len(os.sched_getaffinity(0))
        compiled = compile_kernels([c.kernel for c in candidates], self.names, target, jobs)
        self.objects, self.scratch = compiled.objects, compiled.scratch
        self.units = [c.units for c in candidates]
        self.buffers = [c.buffers() for c in candidates]
        self.rotated = min(weights, max(MIN_ROTATED, 4 * target.profile.l3))

    @property
    def digest(self) -> str:
        """Returns a hash of the code and the buffers, on which times depend."""
        measured_state = repr((self.units, self.buffers, self.rotated)).encode()
        hasher = hashlib.sha256(SOURCE.read_bytes() + measured_state)
        for data in self.objects:
            hasher.update(hashlib.sha256(data).digest())
        return hasher.hexdigest()


class Schedules:
    """The linked code of a kernel's schedules, ready to run; raises ToolError if linking fails."""

    def __init__(self, code: KernelCode, folder: Path) -> None:
        self._library = ctypes.CDLL(str(_linked(code.objects, folder / code.digest)))
        self._library.times.restype = ctypes.c_int64
        entries = (getattr(self._library, name) for name in code.names)
        self._entries = [ctypes.cast(entry, ctypes.c_void_p) for entry in entries]
        self._units = code.units
        self.memory = KernelMemory(code.buffers, code.rotated)
        self._stride = -(-code.scratch // _PAGE) * _PAGE + _PAGE
        self._scratch = bytearray()

    def rounds(self, effort: RoundEffort, threads: int, calm: Calm) -> Rounds:
        """Returns the times of every schedule in every round; a disturbed round is repeated."""
        result = Rounds([], [])
        for number in range(effort.rounds):
            seconds, calmly = undisturbed(lambda n=number: self._round(effort, threads, n), calm)
            result.seconds.append(seconds)
            result.calm.append(calmly)
        return result

    def _round(self, effort: RoundEffort, threads: int, number: int) -> list[float]:
        """Returns the median time of each schedule in round `number`.

        Every other round takes the schedules in reverse order, so that no schedule always follows
        the same one.
        """
        order = range(len(self._entries))
        medians = {
            n: self.turn(n, threads, effort.seconds) for n in (order if number % 2 else order[::-1])
        }
        return [medians[n] for n in order]

    def turn(self, number: int, threads: int, seconds: float) -> float:
        """Launches schedule `number` for about `seconds`; returns the median time of a launch."""
        if len(self._scratch) < threads * self._stride + _PAGE:
            self._scratch = bytearray(threads * self._stride + _PAGE)
        scratch = ctypes.addressof(ctypes.c_char.from_buffer(self._scratch))
        table, out = self.memory.table, np.zeros(MAX_LAUNCHES, np.int64)
        work = _Work(
            self._entries[number], table.ctypes.data, table.shape[1], table.shape[0],
            self._units[number], -(-scratch // _PAGE) * _PAGE, self._stride, threads,
        )  # fmt: skip
        budget = ctypes.c_int64(int(seconds * 1e9))
        count = self._library.times(
            ctypes.byref(work), ctypes.c_int64(MIN_LAUNCHES), ctypes.c_int64(MAX_LAUNCHES), budget,
            ctypes.c_void_p(out.ctypes.data),
        )  # fmt: skip
        return float(np.median(out[:count])) * 1e-9


class KernelMemory:
    """Memory for the buffers of a kernel, on huge pages where the system grants them.

    There are several copies of the constants, which take about `rotated` bytes in total; launches
    use them in turn. Operands and results have one copy. `table[copy, n]` is the address of buffer
    number n. Schedules may pack constants differently; a buffer has room for the largest form.
    """

    def __init__(self, buffers: Sequence[Sequence[KernelBuffer]], rotated: int) -> None:
        largest = [
            KernelBuffer(
                max(b.bytes for b in column_buffers),
                column_buffers[0].constant,
                column_buffers[0].dtype,
            )
            for column_buffers in zip(*buffers, strict=True)
        ]
        room = [-(-b.bytes // _PAGE) * _PAGE + _STAGGER for b in largest]
        constant = sum(n for n, b in zip(room, largest, strict=True) if b.constant)
        sets = max(1, min(MAX_SETS, rotated // constant)) if constant else 1
        self._mapping = mmap.mmap(
            -1,
            sum(room) + (sets - 1) * constant + _PAGE,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        )
        self._mapping.madvise(mmap.MADV_HUGEPAGE)
        data = np.frombuffer(self._mapping, np.uint8)
        self.table = np.zeros((sets, len(largest)), np.uint64)
        offset = 0
        for number in range(sets):
            for column, (buffer, size) in enumerate(zip(largest, room, strict=True)):
                if number and not buffer.constant:
                    self.table[number, column] = self.table[0, column]
                    continue
                self.table[number, column] = data.ctypes.data + offset
                fill = _FILLS.get(buffer.dtype, b"\0")
                words = np.dtype(f"u{len(fill)}")
                data[offset : offset + buffer.bytes].view(words)[:] = np.frombuffer(fill, words)
                offset += size


def _linked(objects: Sequence[bytes], folder: Path) -> Path:
    """Creates `folder` and links the kernels with the runtime to a library there.

    Returns the library's path.
    """
    folder.mkdir()
    names = [f"object{n}.o" for n in range(len(objects))]
    for name, data in zip(names, objects, strict=True):
        (folder / name).write_bytes(data)
    toolchain, base = find_toolchain(), runtime_folder()
    includes = f"-I{base / 'include'}", f"-I{base / 'src'}"
    run_tool((*toolchain.command, *RUNTIME_FLAGS, *includes, "-c", str(SOURCE)), folder)
    runtime = map(str, runtime_objects(toolchain))
    command = (*toolchain.command, "-shared", "-Wl,-z,nodelete", "-Wl,-z,defs")
    out = folder / "kernels.so"
    run_tool((*command, "price_check.o", *names, *runtime, "-o", str(out)), folder)
    return out
