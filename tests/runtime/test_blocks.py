"""Memory of results comes back when nobody holds an array in it, and never before."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from tcc.runtime.blocks import ResultPool

torch = pytest.importorskip("torch")

F32 = np.dtype(np.float32)
SHAPE = (64, 1024)


def lent(
    blocks: ResultPool, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[np.ndarray[Any, Any], int]:
    """A new array, and its address."""
    array = blocks.maker(shape, dtype)()
    return array, array.ctypes.data


def test_memory_is_used_again_once_the_array_is_gone() -> None:
    blocks = ResultPool(4)
    first, address = lent(blocks, SHAPE, F32)
    assert first.ctypes.data == address
    assert (first.shape, first.dtype, first.flags.c_contiguous) == (SHAPE, F32, True)
    first[:] = 1
    second, elsewhere = lent(blocks, SHAPE, F32)
    assert elsewhere != address
    second[:] = 2
    assert np.all(first == 1)
    del first
    assert lent(blocks, SHAPE, F32)[1] == address
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
def test_whatever_looks_at_an_array_keeps_its_memory(hold: Any) -> None:
    blocks = ResultPool(4)
    array, address = lent(blocks, SHAPE, F32)
    array[:] = 7
    held = hold(array)
    before = bytes(np.asarray(held))
    del array
    gc.collect(0)
    other, elsewhere = lent(blocks, SHAPE, F32)
    other[:] = 9
    assert elsewhere != address
    assert bytes(np.asarray(held)) == before
    del held
    gc.collect(0)
    assert lent(blocks, SHAPE, F32)[1] == address


@pytest.mark.parametrize("shape", [(), (0,), (5, 0, 3), (7,), (1 << 15,), (3, 12347), (1 << 20,)])
@pytest.mark.parametrize("name", ["float32", "int64", "bool", "uint16", "float16"])
def test_arrays_have_their_shape_and_large_ones_begin_a_cache_line(
    shape: tuple[int, ...], name: str
) -> None:
    array, address = lent(ResultPool(1), shape, np.dtype(name))
    assert (array.shape, array.dtype.name, array.ctypes.data) == (shape, name, address)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.nbytes < 1 << 16 or address % 64 == 0
    array[...] = 1
    assert np.all(array == 1)


def test_a_block_serves_results_that_grow_a_little_but_no_small_ones() -> None:
    blocks = ResultPool(4)
    address = lent(blocks, (100_000,), F32)[1]
    assert lent(blocks, (101_000,), F32)[1] == address
    kept = lent(blocks, (50_000,), F32)
    assert kept[1] != address


def test_no_more_lie_free_than_agreed() -> None:
    blocks = ResultPool(3)
    held = [lent(blocks, SHAPE, F32) for _ in range(8)]
    last = {address for _, address in held[-3:]}
    while held:
        del held[0]
    assert len(blocks._free) == 3
    again = [lent(blocks, SHAPE, F32) for _ in range(3)]
    assert {address for _, address in again} == last


def test_threads_never_share_a_block() -> None:
    blocks = ResultPool(4)
    wrong: list[int] = []

    def work(number: int) -> None:
        held: list[tuple[np.ndarray[Any, Any], int]] = []
        for step in range(400):
            array, _ = lent(blocks, (16, 1024 + 512 * (step % 3)), F32)
            mark = number * 1000 + step
            array[:] = mark
            held.append((array, mark))
            if len(held) > 3:
                old, expected = held.pop(0)
                if not np.all(old == expected):
                    wrong.append(expected)
            del array

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(blocks._free) <= 4


def test_arrays_outlive_their_blocks() -> None:
    array, _ = lent(ResultPool(2), SHAPE, F32)
    array[:] = 3
    gc.collect(0)
    assert np.all(array == 3)
