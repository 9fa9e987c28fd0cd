"""Tile kernels to object files, in worker processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tcc.backends.cpu.emit import KernelText, emit_kernel
from tcc.backends.cpu.worker import receive, send
from tcc.errors import InternalError, UserError
from tcc.ir.tile import TileKernel
from tcc.target import Target


@dataclass(frozen=True, slots=True)
class CompiledKernels:
    """One object file and one LLVM listing for each kernel, in order.

    `scratch` is the bytes of private memory a thread needs to run any of them, 64-byte aligned.
    """

    objects: tuple[bytes, ...]
    scratch: int
    listings: tuple[str, ...]


def compile_kernels(
    kernels: Sequence[TileKernel], names: Sequence[str], target: Target, jobs: int
) -> CompiledKernels:
    """Object code of each kernel under its name, by up to `jobs` processes.

    The bytes depend on the kernels, names and target only.  Raises InternalError, naming the
    kernel and a file with its LLVM text, where code generation fails or kills its process.
    """
    if len(kernels) != len(names):
        raise ValueError(f"{len(kernels)} kernels and {len(names)} names")
    pool = _Pool(target, min(max(jobs, 1), len(kernels)))
    try:
        texts = []
        for kernel, name in zip(kernels, names, strict=True):
            texts.append(emit_kernel(kernel, name, target))
            pool.submit(texts[-1])
        objects = pool.results()
    finally:
        pool.abandon()
    scratch = max((t.scratch for t in texts), default=0)
    return CompiledKernels(tuple(objects), scratch, tuple(t.llvm for t in texts))


def kernel_assembly(llvm: str, target: Target) -> str:
    """The assembly of a kernel's LLVM IR, as `compile_kernels` would encode it.

    Raises UserError where LLVM does not take the text.
    """
    process = _start()
    try:
        to_worker, from_worker = _pipes(process)
        send(to_worker, (llvm, target, True))
        listing, error = receive(from_worker)
    except (EOFError, OSError):
        listing, error = b"", f"the compiler process ended: {_last_words(process)}"
    finally:
        _stop(process)
    if error:
        raise UserError("the kernel's LLVM IR cannot be compiled", why=error)
    text: str = listing.decode()
    return text


class _Pool:
    """Worker processes, each driven by a thread that takes the next kernel when it is free."""

    def __init__(self, target: Target, jobs: int) -> None:
        self._target = target
        self._texts: list[KernelText] = []
        self._objects: dict[int, bytes] = {}
        self._failures: dict[int, str] = {}
        self._next = 0
        self._done = False
        self._change = threading.Condition()
        self._threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(jobs)]
        for thread in self._threads:
            thread.start()

    def submit(self, text: KernelText) -> None:
        with self._change:
            self._texts.append(text)
            self._change.notify()

    def results(self) -> list[bytes]:
        """The objects in order of submission, once all are there."""
        self._finish()
        for number in sorted(self._failures):
            raise _failure(self._texts[number], self._failures[number])
        return [self._objects[n] for n in range(len(self._texts))]

    def abandon(self) -> None:
        """Ends the processes; kernels not yet begun are dropped."""
        with self._change:
            self._next = len(self._texts)
        self._finish()

    def _finish(self) -> None:
        with self._change:
            self._done = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def _take(self) -> tuple[int, KernelText] | None:
        with self._change:
            while self._next == len(self._texts) and not self._done:
                self._change.wait()
            # After a failure nothing more is begun: the first one by order is already under way.
            if self._next == len(self._texts) or self._failures:
                return None
            self._next += 1
            return self._next - 1, self._texts[self._next - 1]

    def _drive(self) -> None:
        process = _start()
        try:
            while (work := self._take()) is not None:
                number, text = work
                try:
                    code, error = _ask(process, text, self._target)
                except (EOFError, OSError):
                    code, error = b"", f"the compiler process ended: {_last_words(process)}"
                with self._change:
                    if error:
                        self._failures[number] = error
                    else:
                        self._objects[number] = code
                if error:
                    return
        finally:
            _stop(process)


Process = subprocess.Popen[bytes]


def _start() -> Process:
    # The worker sees modules where this process does, however they came to be there.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        "from tcc.backends.cpu.worker import serve; serve()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _pipes(process: Process) -> tuple[BinaryIO, BinaryIO]:
    assert process.stdin is not None
    assert process.stdout is not None
    # Popen types its pipes as IO[bytes]; they are buffered binary streams.
    return process.stdin, process.stdout  # type: ignore[return-value]


def _ask(process: Process, text: KernelText, target: Target) -> tuple[bytes, str]:
    to_worker, from_worker = _pipes(process)
    send(to_worker, (text.llvm, target, False))
    answer: tuple[bytes, str] = receive(from_worker)
    return answer


def _last_words(process: Process) -> str:
    assert process.stderr is not None
    lines = process.stderr.read().decode(errors="replace").strip().splitlines()
    return f"exit status {process.wait()}; " + "\n".join(lines[:3] + lines[3:][-3:])


def _stop(process: Process) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                continue
    process.wait()


def _failure(text: KernelText, why: str) -> InternalError:
    folder = Path(tempfile.mkdtemp(prefix="tcc-kernel-"))
    path = folder / f"{text.name}.ll"
    path.write_text(text.llvm)
    return InternalError(f"LLVM cannot compile the kernel {text.name}", where=str(path), why=why)
