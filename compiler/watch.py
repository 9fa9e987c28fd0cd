"""A thread that watches the work of another thread and can interrupt it anywhere in Python."""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

_SECONDS = 0.1  # the seconds between two calls of `look`
# The seconds until the work is interrupted again, because a finaliser may swallow an interrupt.
_AGAIN = 5.0
_NAME = "tcc watch"
_Result = TypeVar("_Result")


class _EndError(BaseException):
    """The interrupt of watched work; no `except Exception` catches it."""


def watched(look: Callable[[], Exception | None], work: Callable[[], _Result]) -> _Result:
    """Returns the result of `work`, or raises the error that `look` returns.

    Another thread calls `look` ten times a second and interrupts `work` when it returns an error.
    The interrupt comes only when `work` is back in Python code.  This is no context manager,
    because the interrupt may come in the code that leaves one.
    """
    thread, finish = threading.get_ident(), threading.Event()
    errors: list[Exception] = []

    def run() -> None:
        while not finish.wait(_AGAIN if errors else _SECONDS):
            if not errors:
                errors.extend(filter(None, [look()]))
            if errors:
                _raise(thread, _EndError)

    def stop() -> None:
        finish.set()
        if watcher.is_alive():
            watcher.join()
        if errors:
            _absorb(thread)  # an interrupt may still be pending

    watcher = threading.Thread(target=run, name=_NAME, daemon=True)
    try:
        try:
            watcher.start()
            return work()
        finally:
            stop()
    except BaseException as error:
        stop()  # a second call, because an interrupt may have ended the first call
        if not errors or not isinstance(error, (_EndError, Exception)):
            raise
        raise errors[0] from None


def _absorb(thread: int) -> None:
    """Clears an interrupt that may still be pending for this thread.

    It raises a further interrupt, which replaces the pending one, and catches it. Withdrawing the
    pending interrupt does not work: CPython 3.11 keeps the request, and a call under
    `sys.setprofile` then never ends.
    """
    try:
        _raise(thread, _EndError)
        while True:
            pass
    except _EndError:
        pass


def _raise(thread: int, error: type[BaseException]) -> None:
    """Makes the thread raise an error at its next step in Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
