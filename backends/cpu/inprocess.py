"""Object code run inside this process: for calibration and tests, never for users' models."""

from __future__ import annotations

import llvmlite.binding as llvm
from tcc.backends.cpu.codegen import compile_object
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
