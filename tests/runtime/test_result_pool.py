"""The memory of a result is reused after the last array in it is freed, and never before."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from tcc.runtime import Module, abi

torch = pytest.importorskip("torch")

F32 = np.dtype(np.float32)
SHAPE = (64, 1024)
Memory: TypeAlias = Callable[[int], Any]


@pytest.fixture
def memory(mlp: Module) -> Memory:
    return mlp._results.memory


def committed(module: Module) -> int:
    """Returns the bytes that all pools and instances of the process hold."""
    numbers = abi.CMemory(ctypes.sizeof(abi.CMemory))
    assert module._api.memory(None, ctypes.byref(numbers)) == 0
    return int(numbers.process_used)


def lent(
    memory: Memory, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[np.ndarray[Any, Any], int]:
    """Returns a new array, and its address."""
    array = np.ndarray(shape, dtype, memory(prod(shape) * dtype.itemsize))
    return array, array.ctypes.data


def test_memory_is_used_again_once_the_array_is_gone(memory: Memory) -> None:
    first, address = lent(memory, SHAPE, F32)
    assert first.ctypes.data == address
    assert (first.shape, first.dtype, first.flags.c_contiguous) == (SHAPE, F32, True)
    first[:] = 1
    second, elsewhere = lent(memory, SHAPE, F32)
    assert elsewhere != address
    second[:] = 2
    assert np.all(first == 1)
    del first
    assert lent(memory, SHAPE, F32)[1] == address
    assert np.all(second == 2)


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a[3:5].T,
        lambda a: a.reshape(-1).view(np.uint8),
        lambda a: memoryview(a),
        lambda a: torch.from_numpy(a)[2:],
        lambda a: torch.from_dlpack(a),
        lambda a: np.asarray(torch.from_numpy(a)),
    ],
)
def test_whatever_looks_at_an_array_keeps_its_memory(memory: Memory, hold: Any) -> None:
    array, address = lent(memory, SHAPE, F32)
    array[:] = 7
    view = hold(array)
    before = bytes(np.asarray(view))
    del array
    gc.collect(0)
    other, elsewhere = lent(memory, SHAPE, F32)
    other[:] = 9
    assert elsewhere != address
    assert bytes(np.asarray(view)) == before
    del view
    gc.collect(0)
    assert lent(memory, SHAPE, F32)[1] == address


@pytest.mark.parametrize("shape", [(), (0,), (5, 0, 3), (7,), (1 << 15,), (3, 12347), (1 << 20,)])
@pytest.mark.parametrize("name", ["float32", "int64", "bool", "uint16", "float16"])
def test_arrays_have_their_shape_and_large_ones_begin_a_cache_line(
    memory: Memory, shape: tuple[int, ...], name: str
) -> None:
    array, address = lent(memory, shape, np.dtype(name))
    assert (array.shape, array.dtype.name, array.ctypes.data) == (shape, name, address)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.nbytes < 1 << 16 or address % 64 == 0
    array[...] = 1
    assert np.all(array == 1)


def test_memory_serves_results_that_grow_a_little(memory: Memory) -> None:
    address = lent(memory, (100_000,), F32)[1]
    assert lent(memory, (101_000,), F32)[1] == address


def test_trim_releases_unused_memory(mlp: Module, memory: Memory) -> None:
    blocks = [lent(memory, SHAPE, F32)[0] for _ in range(8)]
    before = committed(mlp)
    assert before >= 8 * blocks[0].nbytes
    del blocks[2:]
    mlp._api.model_trim(mlp._handle)
    assert committed(mlp) <= before - 5 * blocks[0].nbytes
    blocks[0][:], blocks[1][:] = 1, 2
    again = [lent(memory, SHAPE, F32)[0] for _ in range(8)]
    for array in again:
        array[:] = 3
    assert np.all(blocks[0] == 1)
    assert np.all(blocks[1] == 2)


def test_the_limit_of_the_process_holds_for_results(mlp: Module, memory: Memory) -> None:
    array = lent(memory, SHAPE, F32)[0]
    mlp._api.process_set_memory_limit(committed(mlp))
    try:
        with pytest.raises(MemoryError, match="the process holds"):
            lent(memory, (1 << 27,), F32)
    finally:
        mlp._api.process_set_memory_limit(0)
    assert array.base is not None


def test_threads_never_share_a_block(memory: Memory) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        blocks: list[tuple[np.ndarray[Any, Any], int]] = []
        for step in range(400):
            array, _ = lent(memory, (16, 1024 + 512 * (step % 3)), F32)
            mark = number * 1000 + step
            array[:] = mark
            blocks.append((array, mark))
            if len(blocks) > 3:
                old, expected = blocks.pop(0)
                if not np.all(old == expected):
                    wrong.append(expected)
            del array

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_arrays_outlive_their_blocks(memory: Memory) -> None:
    array, _ = lent(memory, SHAPE, F32)
    array[:] = 3
    gc.collect(0)
    assert np.all(array == 3)


_WRITABLE = """
import sys
from pathlib import Path
import numpy as np
import tcc

def writable():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split()[0])

module = tcc.load(sys.argv[1])
before = writable()
array = module._results.memory(1 << 18)
print(writable() - before)
"""


def test_a_pool_may_write_to_little_more_than_it_has_in_use(mlp_path: Path) -> None:
    """Writable memory of a process counts against its data limit (`ulimit -d`)."""
    command = [sys.executable, "-c", _WRITABLE, str(mlp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(said) < 64 << 10
