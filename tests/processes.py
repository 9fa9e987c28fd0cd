"""Starts programs for tests; processes that a program starts end with it.

A stopped rank, or a forked child that waits forever, would hold the pipes of a killed program, and
the test would wait for their end. Programs also end with tests that are killed.
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
    """Runs a program, and returns its exit code and output; raises TimeoutError with the output if
    it is late."""
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
    """Starts a program in a new process group with default signals, and kills the group at the end.

    `env`, not this process, resets ignored signals: threads start programs too, and Python changes
    signals of a process in its main thread only.
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
    """Returns the words before a command that make its program end with the thread that starts it;
    empty if the machine lacks the tool."""
    program = shutil.which("setpriv")
    return (program, "--pdeathsig", "KILL") if program else ()


def ignored_signals() -> list[signal.Signals | int]:
    """Returns the signals that this process ignores, except those that Python itself always ignores
    and resets in the programs that it starts.

    A shell without job control starts background jobs with SIGINT and SIGQUIT ignored, and nohup
    ignores SIGHUP. Child programs inherit the ignored signals, and a test that sends such a signal
    would wait forever for an answer.
    """
    python_ignores = {signal.SIGPIPE, signal.SIGXFSZ}
    return [
        number
        for number in signal.valid_signals() - python_ignores
        if signal.getsignal(number) is signal.SIG_IGN
    ]


def end_after(seconds: int) -> None:
    """Ends this process, a forked child, by SIGALRM after `seconds`."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
