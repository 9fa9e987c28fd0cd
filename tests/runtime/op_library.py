"""The runtime's ops in a separate library, called from Python."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tcc.backends.artifact.toolchain import runtime_folder, runtime_sources
from tcc.runtime import abi

Array = np.ndarray[Any, Any]


class OpTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", abi.CDType),
        ("ndim", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("count", ctypes.c_int64),
    )


class Ending(ctypes.Structure):
    """The struct tcc_ending."""

    _fields_ = (
        ("run", ctypes.c_uint64),
        ("last", ctypes.c_uint64),
        ("poll", abi.POLL),
        ("poll_context", ctypes.c_void_p),
        ("ask_at", ctypes.c_int64),
        ("thread", ctypes.c_size_t),
        ("polled", ctypes.c_bool),
    )


class OpCall(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.POINTER(OpTensor)),
        ("outputs", ctypes.POINTER(OpTensor)),
        ("n_inputs", ctypes.c_int32),
        ("n_outputs", ctypes.c_int32),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("n_ints", ctypes.c_int32),
        ("results", ctypes.POINTER(ctypes.c_int64)),
        ("n_results", ctypes.c_int32),
        ("pool", ctypes.c_void_p),
        ("crew", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("heap", ctypes.c_void_p),
        ("ending", ctypes.POINTER(Ending)),
    )


CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


def op_tensor(array: Array, code: int | None) -> OpTensor:
    dims = (ctypes.c_int64 * array.ndim)(*array.shape)
    dtype_code = CODES[array.dtype.kind] if code is None else code
    dtype = abi.CDType(dtype_code, array.itemsize * 8, 1)
    return OpTensor(array.ctypes.data, dtype, array.ndim, dims, array.size)


def tensors(arrays: Sequence[Array], like: np.dtype[Any] | None, code: int | None) -> Any:
    """Returns descriptors of arrays; arrays of the type `like` get the DLPack code `code`, unless
    None."""
    refs = [op_tensor(a, code if like is not None and a.dtype == like else None) for a in arrays]
    return (OpTensor * max(1, len(refs)))(*refs)


def build_ops(folder: Path) -> None:
    """Builds harness.so, the runtime and its harness, with all warnings as errors."""
    base = runtime_folder()
    flags = ("-std=c11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")
    includes = (f"-I{base / 'include'}", f"-I{base / 'src'}")
    sources = (Path(__file__).with_name("harness.c"), *runtime_sources())
    command = ("cc", *flags, *includes, *map(str, sources), "-o", "harness.so")
    subprocess.run((*command, "-lm", "-lpthread", "-ldl"), cwd=folder, check=True)


class Ops:
    """The runtime's ops in the library that `build_ops` wrote into `folder`."""

    def __init__(self, folder: Path) -> None:
        self.library = ctypes.CDLL(str(folder / "harness.so"))
        self.library.harness_pool.restype = ctypes.c_void_p
        self.library.harness_error.restype = ctypes.c_char_p

    def __call__(
        self,
        name: str,
        inputs: Sequence[Array],
        outputs: Sequence[Array] = (),
        ints: Sequence[int] = (),
        results: int = 0,
        code: int | None = None,
        threads: int = 3,
        ending: Ending | None = None,
    ) -> list[int]:
        """Calls op `name`; raises ValueError with its message if it fails.

        `code` says what u2 arrays hold. With 0 threads, the call has no workers. `ending` is the
        ending of the run, if the run can be ended.
        """
        values = (ctypes.c_int64 * max(1, results))()
        like = inputs[0].dtype if inputs else None
        call = OpCall(
            tensors(inputs, like, code),
            tensors(outputs, like, code),
            len(inputs),
            len(outputs),
            (ctypes.c_int64 * max(1, len(ints)))(*ints),
            len(ints),
            values,
            results,
            None,
            None,
            threads,
            None,
            ctypes.pointer(ending) if ending else None,
        )
        pool = ctypes.c_void_p(self.library.harness_pool())
        if self.library.harness_call(name.encode(), ctypes.byref(call), pool):
            raise ValueError(self.library.harness_error().decode())
        return list(values)[:results]
