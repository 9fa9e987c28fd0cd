"""A pool of code generators inside this process, for what compiles many small models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tcc.backends.cpu.codegen import compile_object
from tcc.backends.workers import WorkerFailedError
from tcc.budgets import Budgets


class PoolHere:
    """Stands for a pool of code generators where this process may die of one: starting others
    takes as long as a small model."""

    def __init__(self, module: str, jobs: int, budgets: Budgets | None = None) -> None:
        self._objects: list[bytes] = []

    def wake(self, jobs: int) -> None:
        """There is nothing to start."""

    def submit(self, request: Any) -> int:
        """Compiles at once; raises WorkerFailedError as `answers` of a pool does."""
        text, target, _ = request
        try:
            self._objects.append(compile_object(text, target))
        except RuntimeError as error:
            raise WorkerFailedError(len(self._objects), str(error)) from error
        return len(self._objects) - 1

    def answers(self, numbers: Sequence[int]) -> list[bytes]:
        """The objects of these numbers."""
        return [self._objects[n] for n in numbers]

    def forget(self) -> bool:
        """It serves one compile: no process would be spared."""
        return False

    def abandon(self) -> None:
        """No process is left behind."""
