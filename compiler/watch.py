"""A thread that looks after the work of another and ends it, wherever that is."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_SECONDS = 0.1  # between two looks
_AGAIN = 50  # looks until the work is ended once more: a finaliser may have swallowed the first end

Result = TypeVar("Result")
Look = Callable[[], Exception | None]


class _EndError(BaseException):
    """No `except Exception` on its way takes it for a fault of what it ends."""


class _Watch:
    """Asks `look` until it gives an error, which from then on ends the work of the thread that
    made this."""

    def __init__(self, look: Look) -> None:
        self._look, self._thread = look, threading.get_ident()
        self.error: Exception | None = None
        self._done = threading.Event()
        self._watcher: threading.Thread | None = None

    def begin(self) -> None:
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._run, args=(self._done,), daemon=True)
        self._watcher.start()

    def rest(self) -> None:
        self._done.set()
        if self._watcher is not None and self._watcher.is_alive():
            self._watcher.join()

    def stop(self) -> None:
        self.rest()
        _raise(self._thread, None)  # it may have come too late
        _WATCHES.pop(self._thread, None)

    def _run(self, done: threading.Event) -> None:
        number = 0
        while not done.wait(_SECONDS):
            self.error = self.error or self._look()
            if self.error is not None:
                if number % _AGAIN == 0:
                    _raise(self._thread, _EndError)
                number += 1


_WATCHES: dict[int, _Watch] = {}


def watched(look: Look, work: Callable[[], Result]) -> Result:
    """What `work` gives, or raises the error that `look` gives, which another thread asks ten times
    a second.

    What the work waits for outside of Python is waited for first.  This is no context, since an end
    may come in the code that leaves one.
    """
    watch = _WATCHES[threading.get_ident()] = _Watch(look)
    try:
        try:
            watch.begin()
            return work()
        finally:
            watch.stop()
    except BaseException as error:
        watch.stop()  # the end may have come inside of the other call
        if watch.error is None or not isinstance(error, (_EndError, Exception)):
            raise
        raise watch.error from None


@contextmanager
def unwatched() -> Iterator[None]:
    """Inside, no thread looks after this one: a fork would have its locks and not it."""
    watch = _WATCHES.get(threading.get_ident())
    if watch is None:
        yield
        return
    watch.rest()
    try:
        yield
    finally:
        watch.begin()


def _raise(thread: int, error: type[BaseException] | None) -> None:
    """Has the thread raise an error at its next step in Python; None: not raise one that waits."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
