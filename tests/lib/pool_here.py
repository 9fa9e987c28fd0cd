"""A pool of code generators inside this process, for tests that compile many small models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tcc.backends.cpu.codegen import compile_object
from tcc.backends.workers import WorkerFailedError
from tcc.budgets import Budgets


class PoolHere:
    """A replacement for a pool of code generators, where a crash may end this process.

    To start other processes takes as long as to compile a small model.
    """

    def __init__(self, module: str, jobs: int, budgets: Budgets | None = None) -> None:
        self._objects: list[bytes] = []

    def wake(self, jobs: int) -> None:
        """Does nothing, because there is no process to start."""

    def submit(self, request: Any) -> int:
        """Compiles at once; raises WorkerFailedError, which a pool raises in `answers`."""
        text, target, _ = request
        try:
            self._objects.append(compile_object(text, target))
        except RuntimeError as error:
            raise WorkerFailedError(len(self._objects), str(error)) from error
        return len(self._objects) - 1

    def answers(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the objects of these numbers."""
        return [self._objects[n] for n in numbers]

    def forget(self) -> bool:
        """Returns false: the pool serves one compile, so no process would be kept."""
        return False

    def abandon(self) -> None:
        """Does nothing, because no process is left behind."""
