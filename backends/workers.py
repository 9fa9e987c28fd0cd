"""Worker processes: code generation away from the user's process.

A fatal error of LLVM or Triton ends the worker and no other process, and a worker ends with the
process that started it, whatever it is doing.  A worker reads requests from
its standard input and answers on its standard output; both are pickled, behind their length.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, BinaryIO

from tcc.backends.environment import compiler_environment
from tcc.budgets import BUDGETS, Budgets, lacks_memory, out_of_memory
from tcc.children import ending
from tcc.errors import UserError
from tcc.memory import HELPERS
from tcc.record import record

_LENGTH = struct.Struct("<Q")
_LEAST_BYTES = 64 << 20  # with less not even the libraries load
_MOST_SERVED = 1000  # requests of earlier compiles
_SECONDS = 0.1  # of a wait, between two others


def send(stream: BinaryIO, message: Any) -> None:
    """Writes one message."""
    data = pickle.dumps(message, protocol=5)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads one message; raises EOFError where the other side has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the other process has ended")
    size = _LENGTH.unpack(head)[0]
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other process ended inside a message")
    return pickle.loads(data)


def serve(handle: Callable[[Any], tuple[Any, str]]) -> None:
    """In a worker: answers requests by `handle`'s (result, error) until the other side ends.  What
    libraries print goes to the standard error."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            request = receive(source)
        except EOFError:
            return
        send(sink, handle(request))


class WorkerFailedError(Exception):
    """Request `number` failed or killed its worker; `why` is what is known of it, `over` the error
    of the budget that was too small."""

    def __init__(self, number: int, why: str | UserError) -> None:
        super().__init__(str(why))
        self.number, self.why = number, str(why)
        self.over = why if isinstance(why, UserError) else None


def kept(text: str, name: str) -> str:
    """The path of a new file NAME with this text: an error names it, so it outlives the process."""
    handle, path = tempfile.mkstemp(f"-{name}", "tcc-kernel-", text=True)
    with open(handle, "w") as file:
        file.write(text)
    return path


class WorkerPool:
    """Processes of the module `module`, each driven by a thread that takes the next request.

    The module's function `main` serves.  A process that takes more memory, or longer for a
    request, than `budgets` say, ends.
    """

    def __init__(
        self,
        module: str,
        jobs: int,
        budgets: Budgets = BUDGETS,
    ) -> None:
        self._module, self._budgets = module, budgets
        self._requests: list[Any] = []
        self._answers: dict[int, Any] = {}
        self._failures: dict[int, str | UserError] = {}
        self._workers: list[_Worker] = []
        self._next = 0
        self._running = 0
        self._done = False
        self._change = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._served = 0
        self.wake(jobs)

    def wake(self, jobs: int) -> None:
        """Starts processes until there are `jobs`."""
        while len(self._threads) < jobs:
            thread = threading.Thread(target=self._drive, daemon=True)
            thread.start()
            self._threads.append(thread)

    def submit(self, request: Any) -> int:
        """Its number: how many were submitted before it."""
        with self._change:
            self._requests.append(request)
            self._change.notify_all()
            return len(self._requests) - 1

    def answers(self, numbers: Sequence[int]) -> list[Any]:
        """Those to the requests of these numbers, once they are there; more may be submitted later.

        Raises WorkerFailedError for the first request that failed, one of these or another.
        """
        with self._change:
            while not self._change.wait_for(lambda: self._settled(numbers), _SECONDS):
                pass  # a wait without an end could not be ended
            for number in sorted(self._failures):
                raise WorkerFailedError(number, self._failures[number])
            return [self._answers[n] for n in numbers]

    def _settled(self, numbers: Sequence[int]) -> bool:
        if self._failures:
            return self._running == 0
        return all(n in self._answers for n in numbers)

    def forget(self) -> bool:
        """Drops all requests with their answers, so that the processes can serve others.

        False where one failed or has no answer yet, a process has ended, or they have served so
        many that memory which LLVM keeps would count: the pool has to end.
        """
        with self._change:
            self._served += len(self._requests)
            if len(self._answers) < len(self._requests) or self._served > _MOST_SERVED:
                return False
            self._requests.clear()
            self._answers.clear()
            self._next = 0
            for worker in self._workers:
                worker.complaints.seek(0)  # the process writes where this file is read
                worker.complaints.truncate()
            return all(worker.process.poll() is None for worker in self._workers)

    def abandon(self) -> None:
        """Ends the processes, whatever they are doing; requests not yet begun are dropped."""
        with self._change:
            self._next = len(self._requests)
            for worker in self._workers:
                worker.process.kill()
            self._done = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def _take(self) -> tuple[int, Any] | None:
        with self._change:
            while self._next == len(self._requests) and not self._done:
                self._change.wait()
            # After a failure nothing more is begun: the first one by order is already under way.
            if self._next == len(self._requests) or self._failures:
                return None
            self._next += 1
            self._running += 1
            return self._next - 1, self._requests[self._next - 1]

    def _drive(self) -> None:
        try:
            with _worker(self._module, self._budgets) as worker:
                self._workers.append(worker)
                self._serve(worker)
        except OSError as error:
            # of starting the process: what is asked of a running one fails by itself
            if (work := self._take()) is not None:
                self._note(work[0], None, f"no compiler process can be started: {error}")

    def _serve(self, worker: _Worker) -> None:
        while (work := self._take()) is not None:
            number, request = work
            try:
                answer, error = _ask(worker, request)
            except (MemoryError, RuntimeError) as failure:  # no memory, or none for a thread
                answer, error = None, out_of_memory(self._budgets, failure)
            self._note(number, answer, error)
            if error:
                return

    def _note(self, number: int, answer: Any, error: str | UserError) -> None:
        with self._change:
            self._running -= 1
            if error:
                self._failures[number] = error
            else:
                self._answers[number] = answer
            self._change.notify_all()


@record
class _Worker:
    """A process, and the file of its complaints: a pipe that is not read would stop it."""

    process: subprocess.Popen[bytes]
    complaints: IO[bytes]
    budgets: Budgets


@contextmanager
def _worker(module: str, budgets: Budgets) -> Iterator[_Worker]:
    # The worker sees modules where this process does, however they came to be there.
    program = (
        f"import resource, sys; most = min({budgets.kernel_bytes}, *(limit for limit in "
        "resource.getrlimit(resource.RLIMIT_DATA) if limit != resource.RLIM_INFINITY), 1 << 62); "
        "resource.setrlimit(resource.RLIMIT_DATA, (most, most)); "
        f"sys.path[:] = {sys.path!r}; from tcc.children import end_with_parent; "
        f"end_with_parent(); from {module} import main; main()"
    )
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],  # no module of the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=compiler_environment(),
        )
        HELPERS[process.pid] = 0
        try:
            yield _Worker(process, complaints, budgets)
        finally:
            del HELPERS[process.pid]
            _stop(process)


def _ask(worker: _Worker, request: Any) -> tuple[Any, str | UserError]:
    process = worker.process
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Event()
    seconds = min(worker.budgets.kernel_seconds, threading.TIMEOUT_MAX)
    clock = threading.Timer(seconds, _end, (process, late))
    clock.daemon = True
    clock.start()
    try:
        # Popen types its pipes as IO[bytes]; they are buffered binary streams.
        send(process.stdin, request)  # type: ignore[arg-type]
        answer, error = receive(process.stdout)  # type: ignore[arg-type]
    except (EOFError, OSError):
        code = process.wait()
        status = f"the compiler process ended: {ending(code)}"
        if late.is_set():
            return None, worker.budgets.over("kernel_seconds")
        if code == -signal.SIGKILL:  # nothing of tcc sends it and waits for an answer
            return None, worker.budgets.over("bytes", why=status)
        return None, _judged(worker, "; ".join([status, *_last_words(worker)]), ended=True)
    finally:
        clock.cancel()
    return answer, error and _judged(worker, "\n".join([error, *_last_words(worker)]))


def _judged(worker: _Worker, error: str, *, ended: bool = False) -> str | UserError:
    """`error`, or that of the budget that was too small for the process, which it may have `ended`
    without a word."""
    budgets = worker.budgets
    most = budgets.memory(), budgets.kernel_bytes
    if lacks_memory(error) or (ended and min(most) < _LEAST_BYTES):
        name = "bytes" if most[0] < most[1] else "kernel_bytes"
        return budgets.over(name, why=error.splitlines()[-1])
    return error


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _last_words(worker: _Worker) -> list[str]:
    worker.complaints.seek(0)
    lines = worker.complaints.read().decode(errors="replace").strip().splitlines()
    text = "\n".join(lines[:3] + lines[3:][-3:])
    return [text] if text else []


def _stop(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                continue
    process.wait()
