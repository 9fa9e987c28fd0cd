"""Object code run inside this process: for calibration and tests, never for users' models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from tcc.backends.cpu.codegen import compile_object
from tcc.backends.workers import WorkerFailedError
from tcc.budgets import Budgets
from tcc.target import Target


class LoadedCode:
    """The functions of one LLVM module, callable by address as long as this object lives."""

    def __init__(self, text: str, target: Target) -> None:
        """Raises RuntimeError, with LLVM's message, for text that LLVM does not take."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_triple(target.triple).create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._object = llvm.ObjectFileRef.from_data(compile_object(text, target))
        self._engine.add_object_file(self._object)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """The address of the function `name`."""
        address: int = self._engine.get_function_address(name)
        return address


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
