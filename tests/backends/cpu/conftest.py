"""Runs tile kernels as machine code and compares them with the evaluator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from tcc.backends.cpu.calibrate import LoadedCode
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.llvm.emit import emit_kernel
from tcc.ir.expr import extent
from tcc.ir.index import evaluate
from tcc.ir.narrow import decode, encode
from tcc.ir.tile import MemorySpace, TileKernel
from tcc.ir.types import BF16, DType
from tcc.target import Target, parse_target

from tests.lib.oracle.tile.evaluate import evaluate_kernel
from tests.processors import distinct

_ENTRY = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Returns an array of zeros at a 64-byte boundary."""
    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def to_bytes(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns `array` in its memory format, at a 64-byte boundary."""
    if dtype.is_narrow:
        array = encode(array, dtype)
    if dtype is BF16:
        array = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    octets = aligned(array.shape, array.dtype)
    octets[...] = array
    return octets


def from_bytes(stored: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype.is_narrow:
        return decode(stored, dtype)
    if dtype is BF16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored


class Compiled:
    """A kernel's machine code in this process."""

    def __init__(self, kernel: TileKernel, target: Target) -> None:
        text = emit_kernel(kernel, "kernel_under_test", target)
        self.kernel, self.scratch, self.llvm = kernel, text.scratch, text.llvm
        self._code = LoadedCode(text.llvm, target)
        self._entry = _ENTRY(self._code.address(text.name))

    def run(self, arrays: Sequence[np.ndarray], sizes: dict[str, int]) -> list[np.ndarray]:
        """Runs all units in two launches, and returns all buffers."""
        octets = [to_bytes(a, b.dtype) for a, b in zip(arrays, self.kernel.buffers, strict=True)]
        pointers = (ctypes.c_void_p * (len(octets) + 1))(*(s.ctypes.data for s in octets))
        ints = (ctypes.c_int64 * (len(self.kernel.sizes) + 1))(
            *(sizes[v.name] for v in self.kernel.sizes)
        )
        units = prod(int(evaluate(extent(v), sizes)) for v in self.kernel.axes)
        scratch = aligned((self.scratch + 64,), np.uint8)
        scratch[:] = 0xFF
        for begin, end in ((units // 2, units), (0, units // 2)):
            self._entry(pointers, ints, begin, end, scratch.ctypes.data)
        return [from_bytes(s, b.dtype) for s, b in zip(octets, self.kernel.buffers, strict=True)]


Check = Callable[..., list[np.ndarray]]


@pytest.fixture(params=distinct("host", "x86-64-v3"))
def target(request: pytest.FixtureRequest) -> Target:
    return parse_target("cpu", request.param, detect)


@pytest.fixture
def run(target: Target) -> Callable[..., list[np.ndarray]]:
    """Returns a function that compiles a kernel, runs it, and returns all its buffers."""

    def execute(kernel: TileKernel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return Compiled(kernel, target).run(arrays, {})

    return execute


@pytest.fixture
def check(target: Target) -> Check:
    """Returns a function that compiles and runs a kernel and compares its outputs with the
    evaluator."""

    def run(
        kernel: TileKernel,
        arrays: Sequence[np.ndarray],
        sizes: dict[str, int] | None = None,
        rtol: float = 0.0,
        atol: float = 0.0,
    ) -> list[np.ndarray]:
        assert atol or not rtol
        values = sizes or {}
        results = Compiled(kernel, target).run(arrays, values)
        reference = [a.copy() for a in arrays]
        evaluate_kernel(kernel, reference, values, np.random.default_rng(1))
        outputs = []
        for buffer, g, w in zip(kernel.buffers, results, reference, strict=True):
            if atol:  # A relative tolerance alone is no tolerance near zero.
                np.testing.assert_allclose(g, w, rtol=rtol, atol=atol, err_msg=buffer.name)
            else:
                np.testing.assert_array_equal(g, w, err_msg=buffer.name)
            if buffer.scope is MemorySpace.OUTPUT:
                outputs.append(g)
        return outputs

    return run
