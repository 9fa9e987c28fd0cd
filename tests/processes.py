"""Programs that tests start: whatever they start in turn ends with them.

A rank that is stopped, or a forked child that waits for ever, would hold the pipes of a program
that was killed, and the test would wait for their end.  Programs also end with tests that are
killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def finished(
    *command: str | Path | int, seconds: float = 120, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A program's exit code and what it printed; raises TimeoutError, with that, if it is late."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        with started(words, stdout=out, stderr=errors, env=env) as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            late = process.poll() is None
        out.seek(0), errors.seek(0)
        printed, said = out.read(), errors.read()
    if late:
        raise TimeoutError(f"{words} took more than {seconds:g} s: {printed[-3000:]}{said[-3000:]}")
    return subprocess.CompletedProcess(words, process.returncode, printed, said)


@contextmanager
def started(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program in a group of its own, which minds signals; at the end the group is killed.

    `env` and not this process resets signals that are ignored: threads start programs too, and
    Python changes a process's signals in its main thread alone.
    """
    resets = ("/usr/bin/env", "--default-signal") if ignored_signals() else ()
    process = subprocess.Popen(
        (*tethered(), *resets, *words), text=True, start_new_session=True, **options
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tethered() -> tuple[str, ...]:
    """The words before a command that has its program end with the thread that starts it, however
    that ends; none where the machine lacks them."""
    found = shutil.which("setpriv")
    return (found, "--pdeathsig", "KILL") if found else ()


def ignored_signals() -> list[signal.Signals | int]:
    """The signals that this process ignores, beside those that Python itself always ignores and
    resets in the programs that it starts.

    A shell without job control starts a job in the background with SIGINT and SIGQUIT ignored, and
    nohup ignores SIGHUP.  Whatever the job starts ignores them too, and a test that sends one would
    wait for an answer that never comes.
    """
    python_ignores = {signal.SIGPIPE, signal.SIGXFSZ}
    return [
        each
        for each in signal.valid_signals() - python_ignores
        if signal.getsignal(each) is signal.SIG_IGN
    ]


def end_after(seconds: int) -> None:
    """Ends this process, a forked child, by SIGALRM if it takes longer."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
