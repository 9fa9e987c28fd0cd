"""A thread that looks after the work of another and ends it, wherever that is."""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

_SECONDS = 0.1  # between two looks
_AGAIN = 5.0  # seconds until the work is ended once more: a finaliser may have swallowed the end
_NAME = "tcc watch"
_Result = TypeVar("_Result")


class _EndError(BaseException):
    """No `except Exception` on its way takes it for a fault of what it ends."""


def watched(look: Callable[[], Exception | None], work: Callable[[], _Result]) -> _Result:
    """The result of `work`; raises the error that `look` returns, which another thread calls ten
    times a second.

    What the work waits for outside of Python is waited for first.  This is no context, since an end
    may come in the code that leaves one.
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
            _absorb(thread)  # it may have come too late

    watcher = threading.Thread(target=run, name=_NAME, daemon=True)
    try:
        try:
            watcher.start()
            return work()
        finally:
            stop()
    except BaseException as error:
        stop()  # the end may have come inside of the other call
        if not errors or not isinstance(error, (_EndError, Exception)):
            raise
        raise errors[0] from None


def _absorb(thread: int) -> None:
    """Takes an end that may still come to this thread, by having one come now.

    CPython 3.11 never stops asking for an error that was taken back, and a call under
    `sys.setprofile` then does not end.
    """
    try:
        _raise(thread, _EndError)
        while True:
            pass
    except _EndError:
        pass


def _raise(thread: int, error: type[BaseException]) -> None:
    """Has the thread raise an error at its next step in Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
