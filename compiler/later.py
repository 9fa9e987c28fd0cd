"""Modules that are imported at their first use: a command loads only what it needs.

if TYPE_CHECKING:
    from tcc import driver
else:
    driver = later("tcc.driver")
"""

from importlib import import_module
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, SIGTERM, pthread_sigmask
from typing import Any


class _Later:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """Signals that end a process wait for the import: extensions in C do not expect an
        exception there, and some crash."""
        before = pthread_sigmask(SIG_BLOCK, {SIGINT, SIGTERM})
        try:
            return getattr(import_module(self._name), name)
        finally:
            pthread_sigmask(SIG_SETMASK, before)


def later(name: str) -> Any:
    """Stands for the module `name`, which is imported when one of its attributes is first read."""
    return _Later(name)
