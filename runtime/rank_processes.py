"""The ranks of a job as processes of this host."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO

from tcc.runtime.children import ending
from tcc.runtime.reports import InputError

_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
# After a rank has failed, the others have so many seconds to say what they know of it, and then so
# many between SIGTERM and SIGKILL.
_LAST_WORDS, _LAST_GRACE = 0.6, 0.6
# A rank ends when the launcher ends, because that closes the pipe which is the rank's stdin.
_RANK = (
    "import os; from tcc.runtime.children import end_with_parent; end_with_parent(); "
    "os.dup2(os.open(os.devnull, os.O_RDONLY), 0); "
)


@dataclass(frozen=True, slots=True)
class _Rank:
    """A process and the files of its stdout and stderr.

    Files are used instead of pipes, because the reader of a pipe would also wait for processes that
    the rank leaves behind.
    """

    process: subprocess.Popen[bytes]
    stdout: IO[str]
    stderr: IO[str]


class RankFailedError(InputError):
    """A rank failed or could not be started; `exit_code` is the rank's own, 70 after a signal."""

    def __init__(self, what: str, why: str, exit_code: int) -> None:
        super().__init__(what, why=why)
        self.exit_code = exit_code


def run_ranks(
    count: int, pin: bool, program: str, arguments: Sequence[str], say: Callable[[str], None]
) -> list[str]:
    """Runs `count` ranks, and returns the stdout of each, in order of rank.

    A rank executes `program`, a text in Python, with `arguments` as its command line.
    `{rank}` in an argument becomes the rank's number.  Each rank gets its share of this process's
    CPUs as its number of threads, and with `pin` as its CPU affinity.  When a rank ends, `say`
    gets the lines of its stderr, each after the rank's name.  If a rank fails, all other ranks end
    within two seconds, `say` gets a sentence of each, and RankFailedError is raised with the exit
    code of the first rank that failed.  Ranks end when the calling thread ends, for whatever
    reason.
    """
    ends: SimpleQueue[tuple[int, bool]] = SimpleQueue()
    with _started(count, pin, program, arguments) as ranks:
        for number, rank in enumerate(ranks):
            Thread(target=_watch, args=(rank.process.pid, number, ends), daemon=True).start()
        alive = dict(enumerate(ranks))
        while alive:
            number, dumped = ends.get()
            rank = alive.pop(number)
            _repeat(number, _text(rank.stderr), say)
            if rank.process.wait():
                failed, dumped = _end_survivors((number, dumped), ranks, alive, ends, say)
                raise _failure(failed, ranks[failed].process.wait(), dumped)
        return [_text(rank.stdout) for rank in ranks]


def _watch(process: int, number: int, ends: SimpleQueue[tuple[int, bool]]) -> None:
    """Waits for the end of rank `number`, and puts a pair into `ends`.

    The pair is (number, True if the process dumped core).
    """
    dumped = False
    # waitid fails if the caller ignores SIGCHLD, or has already collected the ended process.
    with suppress(ChildProcessError):
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        dumped = ended is not None and ended.si_code == os.CLD_DUMPED
    ends.put((number, dumped))


def _repeat(number: int, text: str, say: Callable[[str], None]) -> None:
    """Passes on lines of rank `number`, each after the rank's name."""
    for line in text.splitlines():
        say(f"rank {number}: {line}")


def _end_survivors(
    first: tuple[int, bool],
    ranks: Sequence[_Rank],
    alive: Mapping[int, _Rank],
    ends: SimpleQueue[tuple[int, bool]],
    say: Callable[[str], None],
) -> tuple[int, bool]:
    """Ends the ranks in `alive`, and returns the rank that failed, with True if it dumped core.

    `say` gets what each of them says, or that it was ended.

    `first` is the rank whose end was seen first. Ranks that wait for a failed rank in a collective
    see its end, and end by themselves. They may do so before this process sees that a signal ended
    the other, so a rank that a signal ended is the one that failed.
    """
    last = time.monotonic() + _LAST_WORDS
    running, ended = set(alive), [first]
    with suppress(Empty):
        while running:
            ended.append(ends.get(timeout=max(0.0, last - time.monotonic())))
            running.remove(ended[-1][0])
    failed = next((end for end in ended if ranks[end[0]].process.wait() < 0), first)
    _end([alive[number].process for number in running], _LAST_GRACE)
    for number, rank in alive.items():
        _repeat(number, _text(rank.stderr), say)
        if number in running:
            _repeat(number, f"ended, because rank {failed[0]} failed", say)
    return failed


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@contextmanager
def _started(
    count: int, pin: bool, program: str, arguments: Sequence[str]
) -> Iterator[list[_Rank]]:
    """Yields the ranks; at the end it ends every rank that still runs."""
    cpus = sorted(os.sched_getaffinity(0))
    job = {"TCC_SIZE": str(count), "TCC_LOCAL_SIZE": str(count)}
    job |= {"TCC_RENDEZVOUS": f"run-{secrets.token_hex(8)}", "TCC_TOKEN": secrets.token_hex(16)}
    job |= {"TCC_NUM_THREADS": str(max(1, len(cpus) // count))}
    ranks: list[_Rank] = []
    # Ranks get the reading end as stdin. Only this process has the writing end, so the pipe closes
    # when this process ends, however it ends.
    pipe = os.pipe()
    with ExitStack() as files:
        for end in pipe:
            files.callback(os.close, end)
        try:
            for rank in range(count):
                words = [word.replace("{rank}", str(rank)) for word in arguments]
                variables = {"TCC_RANK": str(rank), "TCC_LOCAL_RANK": str(rank)}
                if pin:  # a child process gets the CPUs of the thread that starts it
                    share = cpus[rank * len(cpus) // count : (rank + 1) * len(cpus) // count]
                    os.sched_setaffinity(0, share or {cpus[rank % len(cpus)]})
                stdout, stderr = (
                    files.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
                    for _ in range(2)
                )
                words = [sys.executable, "-c", _RANK + program, *words]
                process = _start(rank, words, os.environ | job | variables, pipe[0], stdout, stderr)
                ranks.append(_Rank(process, stdout, stderr))
                os.sched_setaffinity(0, cpus)
            yield ranks
        finally:
            os.sched_setaffinity(0, cpus)
            _end([rank.process for rank in ranks])


def _start(
    rank: int,
    command: Sequence[str],
    variables: dict[str, str],
    stdin: int,
    stdout: IO[str],
    stderr: IO[str],
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=variables, stdin=stdin, stdout=stdout, stderr=stderr)
    except OSError as error:
        raise RankFailedError(f"rank {rank} cannot be started", str(error), 2) from error


def _end(processes: Sequence[subprocess.Popen[bytes]], grace: float = _GRACE) -> None:
    last = time.monotonic() + grace
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _failure(rank: int, code: int, dumped: bool) -> RankFailedError:
    why = ending(code, dumped=dumped)
    what = f"rank {rank} failed, and the others were ended"
    return RankFailedError(what, why, code if code > 0 else 70)
