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
        """Imports the module and returns its attribute.

        Signals that end a process are blocked meanwhile, because some C extensions crash if an
        exception interrupts their import.
        """
        old_mask = pthread_sigmask(SIG_BLOCK, {SIGINT, SIGTERM})
        try:
            return getattr(import_module(self._name), name)
        finally:
            pthread_sigmask(SIG_SETMASK, old_mask)


def later(name: str) -> Any:
    """Returns a stand-in for the module `name` that imports it when an attribute is first read."""
    return _Later(name)
