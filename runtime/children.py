"""Child processes that end with the process that started them, and texts that say how a process
ended."""

from __future__ import annotations

import ctypes
import os
import select
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(pipe_end: int = 0) -> None:
    """Asks the kernel to kill this child process when the thread that started it ends.

    The parent holds the other end of the pipe `pipe_end`. If no process holds that end, the parent
    ended before the request, and this process exits at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    other_end = select.poll()
    other_end.register(pipe_end, 0)  # poll reports POLLHUP for any mask, also 0
    if (pipe_end, select.POLLHUP) in other_end.poll(0):
        os._exit(128 + signal.SIGKILL)


def signal_name(number: int) -> str:
    """Returns a signal's name, as in `SIGSEGV` or `SIGRTMIN+3`, else `signal NUMBER`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        above = number - signal.SIGRTMIN
        return f"SIGRTMIN+{above}" if above > 0 else f"signal {number}"


def ending(code: int, *, dumped: bool = False) -> str:
    """Returns how a process ended, as text.

    `code` is its exit code, or the negative number of a signal.  `dumped`: it left a core dump.
    """
    if code >= 0:
        return f"its exit code is {code}"
    core = " and left a core dump" if dumped else ""
    memory = ", as the kernel does where memory runs out" if code == -signal.SIGKILL else ""
    return f"{signal_name(-code)} ended it{core}{memory}"
