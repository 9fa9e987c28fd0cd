"""Worker processes for code generation.

A fatal error of LLVM or Triton ends the worker process and no other. A worker ends when the process
that started it ends, whatever the worker is doing. A worker reads requests from its standard input
and answers on its standard output. Both are pickled, with their length in front.
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
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.memory import HELPERS
from tcc.runtime.children import ending

_LENGTH = struct.Struct("<Q")
_LEAST_BYTES = 64 << 20  # a worker with a lower memory limit cannot load its libraries
_MOST_SERVED = 1000  # requests that a pool answers before it must end
_SECONDS = 0.1  # the longest wait for an answer before checking for signals again


def send(stream: BinaryIO, message: Any) -> None:
    """Writes a message to the stream."""
    data = pickle.dumps(message, protocol=5)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads a message from the stream; raises EOFError if the other process has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the other process has ended")
    size = _LENGTH.unpack(head)[0]
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other process ended inside a message")
    return pickle.loads(data)


def serve(handle: Callable[[Any], tuple[Any, str]]) -> None:
    """Answers requests in a worker until its input ends.

    `handle` returns the pair (result, error). Output of libraries goes to the standard error.
    """
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            request = receive(source)
        except EOFError:
            return
        send(sink, handle(request))


class WorkerFailedError(Exception):
    """Request `number` failed or killed its worker.

    `why` is the reason. `over` is the error of the budget that was too small, or None.
    """

    def __init__(self, number: int, why: str | UserError) -> None:
        super().__init__(str(why))
        self.number, self.why = number, str(why)
        self.over = why if isinstance(why, UserError) else None


def write_error_file(text: str, name: str) -> str:
    """Writes `text` to a new file and returns its path.

    The file is not removed, because an error message names it.
    """
    handle, path = tempfile.mkstemp(f"-{name}", "tcc-kernel-", text=True)
    with open(handle, "w") as file:
        file.write(text)
    return path


class WorkerPool:
    """Processes that run `main` of the module `module`; a thread passes each process its requests.

    A process is ended if it exceeds the memory, or the time for a request, of `budgets`.
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
        """Submits a request; returns its number, counted from 0."""
        with self._change:
            self._requests.append(request)
            self._change.notify_all()
            return len(self._requests) - 1

    def answers(self, numbers: Sequence[int]) -> list[Any]:
        """Waits for the answers to the requests `numbers` and returns them.

        Raises WorkerFailedError for the first request that failed, even if it is none of `numbers`.
        """
        with self._change:
            while not self._change.wait_for(lambda: self._settled(numbers), _SECONDS):
                pass  # each wait is short, because signals are handled only between waits
            for number in sorted(self._failures):
                raise WorkerFailedError(number, self._failures[number])
            return [self._answers[n] for n in numbers]

    def has_answer(self, number: int) -> bool:
        """Returns True if the request `number` has been answered; any thread may ask."""
        return number in self._answers

    def _settled(self, numbers: Sequence[int]) -> bool:
        if self._failures:
            return self._running == 0
        return all(n in self._answers for n in numbers)

    def forget(self) -> bool:
        """Drops all requests and answers, so that the processes can serve another compile.

        Returns False if the pool must end. This is so if a request failed or has no answer yet, or
        if a process has ended. It is also so after many requests, because LLVM retains memory.
        """
        with self._change:
            self._served += len(self._requests)
            if len(self._answers) < len(self._requests) or self._served > _MOST_SERVED:
                return False
            self._requests.clear()
            self._answers.clear()
            self._next = 0
            for worker in self._workers:
                # The process shares this file position, so it then writes from the start again.
                worker.complaints.seek(0)
                worker.complaints.truncate()
            return all(worker.process.poll() is None for worker in self._workers)

    def abandon(self) -> None:
        """Ends the processes, whatever they are doing, and drops the requests that have not
        started."""
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
            # After a failure no further request starts. The failed request with the lowest number
            # has already started, because requests start in order.
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
            # The process could not be started. Errors of a running process are handled by `_ask`.
            if (work := self._take()) is not None:
                self._note(work[0], None, f"no compiler process can be started: {error}")

    def _serve(self, worker: _Worker) -> None:
        while (work := self._take()) is not None:
            number, request = work
            try:
                answer, error = _ask(worker, request)
            # Python raises these if memory is short or no thread can start.
            except (MemoryError, RuntimeError) as failure:
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


@frozen
class _Worker:
    """A process, and the file for its standard error; a pipe that nobody reads would block the
    process."""

    process: subprocess.Popen[bytes]
    complaints: IO[bytes]
    budgets: Budgets


@contextmanager
def _worker(module: str, budgets: Budgets) -> Iterator[_Worker]:
    # The worker gets the sys.path of this process, so that it imports the same modules.
    program = (
        f"import resource, sys; most = min({budgets.kernel_bytes}, *(limit for limit in "
        "resource.getrlimit(resource.RLIMIT_DATA) if limit != resource.RLIM_INFINITY), 1 << 62); "
        "resource.setrlimit(resource.RLIMIT_DATA, (most, most)); "
        f"sys.path[:] = {sys.path!r}; from tcc.runtime.children import end_with_parent; "
        f"end_with_parent(); from {module} import main; main()"
    )
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],  # -P: no modules of the current folder
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
    timed_out = threading.Event()
    seconds = min(worker.budgets.kernel_seconds, threading.TIMEOUT_MAX)
    clock = threading.Timer(seconds, _end, (process, timed_out))
    clock.daemon = True
    clock.start()
    try:
        # Popen types its pipes as IO[bytes], but they are buffered binary streams.
        send(process.stdin, request)  # type: ignore[arg-type]
        answer, error = receive(process.stdout)  # type: ignore[arg-type]
    except (EOFError, OSError):
        code = process.wait()
        status = f"the compiler process ended: {ending(code)}"
        if timed_out.is_set():
            return None, worker.budgets.over("kernel_seconds")
        # Before the time is over, tcc sends no SIGKILL to a process that has to answer. So the
        # system has sent it, because memory is short.
        if code == -signal.SIGKILL:
            return None, worker.budgets.over("bytes", why=status)
        return None, _with_budget(worker, "; ".join([status, *_last_words(worker)]), ended=True)
    finally:
        clock.cancel()
    return answer, error and _with_budget(worker, "\n".join([error, *_last_words(worker)]))


def _with_budget(worker: _Worker, error: str, *, ended: bool = False) -> str | UserError:
    """Returns the error of the budget that was too small for the process, else `error`.

    `ended`: the process ended without a message.
    """
    budgets = worker.budgets
    limits = budgets.memory(), budgets.kernel_bytes
    if lacks_memory(error) or (ended and min(limits) < _LEAST_BYTES):
        name = "bytes" if limits[0] < limits[1] else "kernel_bytes"
        return budgets.over(name, why=error.splitlines()[-1])
    return error


def _end(process: subprocess.Popen[bytes], timed_out: threading.Event) -> None:
    timed_out.set()
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
