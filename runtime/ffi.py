"""The face of a module to tvm-ffi, through which TVM and other libraries call an artifact."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tcc.runtime.images import Image


class FfiModule:
    """The part of a module that hands its artifact to tvm-ffi."""

    _image: Image
    _error: Callable[..., Exception]

    @property
    def ffi(self) -> Any:
        """Returns the artifact as a `tvm_ffi.Module`, which takes DLPack arrays without a copy.

        Its function `main` takes the inputs and returns the outputs. `run_into` takes the inputs,
        then an array for each output, and fills those. Both run on the process's threads, and have
        memory and states of their own. Raises the module's error if apache-tvm-ffi is not installed
        or if the file is no longer the one that was loaded.
        """
        path = self._image.path
        try:
            tvm_ffi = importlib.import_module("tvm_ffi")
        except ImportError as error:
            hint = "pip install apache-tvm-ffi"
            raise self._error("apache-tvm-ffi is not installed", where="ffi", hint=hint) from error
        if not self._image.is_at_path():
            raise self._error("another file has taken the artifact's place", where=path)
        return tvm_ffi.load_module(str(path))
