"""The ranks of a job as processes of this host: `tcc run --nproc`."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread

from tcc.cli.show import say
from tcc.errors import UserError

_GRACE = 5.0  # seconds that a rank has to end when it is asked to


def run_ranks(count: int, pin: bool, arguments: Sequence[str]) -> list[str]:
    """What `count` ranks of `tcc ARGUMENTS` print, in their order; `{rank}` is a rank's number.

    The CPUs of this process are divided between them, with `pin` fixedly.  Lines of stderr appear
    when a rank ends, behind its name.  The first rank that fails ends the others: raises UserError
    with its exit code.
    """
    ends: SimpleQueue[tuple[int, str, str]] = SimpleQueue()
    printed = [""] * count
    with _started(count, pin, arguments) as ranks:
        for number in range(count):
            Thread(target=_watch, args=(ranks[number], number, ends), daemon=True).start()
        for _ in ranks:
            rank, printed[rank], errors = ends.get()
            for line in errors.splitlines():
                say(f"rank {rank}: {line}", err=True)
            if ranks[rank].returncode:
                raise _failure(rank, ranks[rank].returncode)
    return printed


def _watch(
    process: subprocess.Popen[str], rank: int, ends: SimpleQueue[tuple[int, str, str]]
) -> None:
    ends.put((rank, *process.communicate()))


@contextmanager
def _started(
    count: int, pin: bool, arguments: Sequence[str]
) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes; those that still run at the end are ended."""
    own = sorted(os.sched_getaffinity(0))
    job = {"TCC_SIZE": str(count), "TCC_LOCAL_SIZE": str(count)}
    job |= {"TCC_RENDEZVOUS": f"run-{secrets.token_hex(8)}", "TCC_TOKEN": secrets.token_hex(16)}
    job |= {"TCC_NUM_THREADS": str(max(1, len(own) // count))}
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank in range(count):
            words = [word.replace("{rank}", str(rank)) for word in arguments]
            mine = {"TCC_RANK": str(rank), "TCC_LOCAL_RANK": str(rank)}
            if pin:  # a child has the CPUs of the thread that starts it
                share = own[rank * len(own) // count : (rank + 1) * len(own) // count]
                os.sched_setaffinity(0, share or {own[rank % len(own)]})
            made = subprocess.Popen(
                [sys.executable, "-m", "tcc", *words], env=os.environ | job | mine, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            ranks.append(made)
            os.sched_setaffinity(0, own)
        yield ranks
    finally:
        os.sched_setaffinity(0, own)
        for process in ranks:
            process.terminate()
        for process in ranks:
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()


def _failure(rank: int, code: int) -> UserError:
    why = f"its exit code is {code}" if code > 0 else f"{signal.Signals(-code).name} ended it"
    error = UserError(f"rank {rank} failed, and the others were ended", why=why)
    error.exit_code = code if code > 0 else 70
    return error
