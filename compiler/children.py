"""Child processes: they end with the process that started them, and words for how one ended."""

import ctypes
import os
import select
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(pipe_end: int = 0) -> None:
    """In a child: has the kernel end it when the thread that started it ends, by SIGKILL too.

    That thread's process holds the other end of the pipe `held`.  Where nobody holds it any more,
    the process has ended before the kernel was asked: so does this one.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    other_end = select.poll()
    other_end.register(pipe_end, 0)  # the end of a pipe is reported, whatever is asked for
    if (pipe_end, select.POLLHUP) in other_end.poll(0):
        os._exit(128 + signal.SIGKILL)


def signal_name(number: int) -> str:
    """`SIGSEGV`, `SIGRTMIN+3`; by its number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        above = number - signal.SIGRTMIN
        return f"SIGRTMIN+{above}" if above > 0 else f"signal {number}"


def ending(code: int, *, dumped: bool = False) -> str:
    """How a process ended: `code` is its exit code, below zero a signal's number; `dumped` whether
    it left a core dump."""
    if code >= 0:
        return f"its exit code is {code}"
    core = " and left a core dump" if dumped else ""
    memory = ", as the kernel does where memory runs out" if code == -signal.SIGKILL else ""
    return f"{signal_name(-code)} ended it{core}{memory}"
