"""Calls with plain NumPy arrays take a fast path, and all other calls do not."""

from __future__ import annotations

import ctypes
import gc
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from programs import Builder, expected_mlp
from tcc.ir.program import Copy, Input, IntOp
from tcc.runtime import Module, abi, load
from tcc.runtime.arrays import view_of
from tcc.runtime.calls import Outputs, Result

F32 = np.dtype(np.float32)
X = np.arange(-6, 6, dtype=np.float32)


def outputs_of(module: Module, *ports: Result) -> Outputs:
    return Outputs(ports, module._results.memory)


def told(tensor: Any) -> tuple[int | None, list[int], list[int] | None]:
    sizes = [tensor.shape[i] for i in range(tensor.ndim)]
    steps = [tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else None
    return tensor.data, sizes, steps


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns a list that collects the values of calls which do not take the fast path."""
    descriptions: list[Any] = []
    run = Module._run_described

    def note(module: Module, values: tuple[Any, ...], seed: Any, limit: Any) -> Any:
        descriptions.append(values)
        return run(module, values, seed, limit)

    monkeypatch.setattr(Module, "_run_described", note)
    return descriptions


@pytest.mark.parametrize(
    ("array", "short"),
    [
        (X, True),
        (X[:5], True),
        (X[3:], True),
        (X[:0], True),
        (read_only(X.copy()), True),
        (np.arange(24, dtype=np.uint8).view(np.float32), True),
        (pickle.loads(pickle.dumps(X)), True),  # its element type is a distinct object
        (np.frombuffer(bytes(13), np.uint8)[1:].view(np.float32), False),  # not aligned
        (X[::2], False),
        (X[::-1], False),
        (np.broadcast_to(np.float32(1), (3,)), False),
        (X.view(type("Own", (np.ndarray,), {})), False),
        (X.tolist(), False),
    ],
)
def test_both_ways_give_the_same(
    mlp: Module, array: Any, short: bool, described: list[Any]
) -> None:
    expected = expected_mlp(np.array(array, np.float32))
    assert np.array_equal(mlp(array), expected)
    assert np.array_equal(mlp(x=array), expected)
    assert len(described) == (0 if short else 2)


@pytest.mark.parametrize(
    ("array", "pattern"),
    [
        (X.astype(">f4"), "expected element type f32, got >f4"),
        (X.astype(np.float64), "expected element type f32, got f64"),
        (X.astype(np.longdouble), "expected element type f32"),
        (X.astype(np.complex64), "expected element type f32, got"),
        (X.astype("M8[s]"), "expected element type f32, got datetime64"),
        (np.zeros(3, [("a", "f4")]), "expected element type f32, got"),
        (X.reshape(3, 4), r"expected shape \[n\], got \[3,4\]"),
        (np.float32(1).reshape(()), r"expected shape \[n\], got \[\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(mlp: Module, array: Any, pattern: str) -> None:
    with pytest.raises(RuntimeError, match=pattern):
        mlp(array)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64"],
)
def test_every_plain_type_goes_the_short_way(
    linked: Callable[..., Module], described: list[Any], dtype: str
) -> None:
    """The fast path also covers types for which NumPy has two numbers, like the 64-bit C types."""
    module, element = linked(copy_of(dtype)), np.dtype(abi_name(dtype))
    aliases = {np.dtype(letter) for letter in np.typecodes["AllInteger"] if element == letter}
    for array in (np.arange(3).astype(kind) for kind in (*aliases, element)):
        output = module(array)
        assert output.dtype == element
        assert output.dtype.num == element.num
        assert np.array_equal(output, array)
        assert not np.shares_memory(output, array)
    assert described == []
    wrong = np.zeros(3, np.complex128)
    with pytest.raises(RuntimeError, match=f"expected element type {dtype}"):
        module(wrong)


def abi_name(dtype: str) -> str:
    if dtype == "bool":
        return "?"
    return f"{dtype[0]}{int(dtype[1:]) // 8}"


def copy_of(dtype: str, count: int = 3) -> Builder:
    """Returns y = x."""
    b = Builder()
    n = b.const(count)
    size = b.let(IntOp.CONST, count * (1 if dtype == "bool" else int(dtype[1:]) // 8))
    b.input("x", dtype, [n], f"[{count}]")
    y = b.output("y", dtype, [n], f"[{count}]")
    x = b.buffer(Input(0))
    b.allocate(y, size)
    b.body.append(Copy(y, x, size))
    return b


def growing_copy() -> Builder:
    """Returns y = x, of any number of elements."""
    b = Builder()
    n, four = b.let(IntOp.DIM, 0, 0), b.const(4)
    size = b.let(IntOp.MUL, n, four)
    b.input("x", "f32", [n], "[n]")
    y, x = b.output("y", "f32", [n], "[n]"), b.buffer(Input(0))
    b.allocate(y, size)
    b.body.append(Copy(y, x, size))
    return b


def test_a_call_takes_few_steps_of_python(linked: Callable[..., Module]) -> None:
    module = linked(copy_of("f32"))
    array, steps = np.ones(3, np.float32), 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    module(array)
    sys.setprofile(count)
    try:
        module(array)
    finally:
        sys.setprofile(None)
    assert steps <= 8


def test_a_result_without_memory_is_an_error(linked: Callable[..., Module]) -> None:
    """One size is known, and the input decides another; later calls work."""
    with_size, decided = linked(copy_of("f32", 1 << 20)), linked(growing_copy())
    array = np.ones(1 << 20, np.float32)
    usage = abi.CMemory(ctypes.sizeof(abi.CMemory))
    for module in (with_size, decided):
        results = [module(array) for _ in range(2)]
        assert module._api.memory(None, ctypes.byref(usage)) == 0
        module._api.process_set_memory_limit(usage.process_used)
        try:
            with pytest.raises(RuntimeError, match=r"memory for the arrays(.|\n)*process holds"):
                results += [module(array) for _ in range(40)]
        finally:
            module._api.process_set_memory_limit(0)
        assert np.array_equal(module(array), results[0])


def test_an_unknown_numpy_is_refused(mlp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(lambda: 0x03000000)
    table = (ctypes.c_void_p * 400)(ctypes.cast(version, ctypes.c_void_p))
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    capsule = make(ctypes.addressof(table), None, None)
    monkeypatch.setattr(abi, "import_module", lambda _: SimpleNamespace(_ARRAY_API=capsule))
    with pytest.raises(RuntimeError, match="cannot be called from this Python"):
        load(mlp_path)


def test_arrays_are_given_back_after_the_call(mlp: Module) -> None:
    array = X.copy()
    for argument in (array, array[::2], array.astype(np.float64)):
        before = sys.getrefcount(argument)
        for _ in range(3):
            try:
                mlp(argument)
            except RuntimeError:
                assert argument.dtype == np.float64
        assert sys.getrefcount(argument) == before
    array.resize(20, refcheck=False)  # NumPy refuses if a buffer is held
    mlp(array)


def test_outputs_of_all_kinds_go_together(
    linked: Callable[..., Module], described: list[Any]
) -> None:
    """The outputs have a known size, a size that the input decides, and the memory of an updated
    input."""
    b = Builder()
    n, one, four = b.let(IntOp.DIM, 0, 0), b.const(1), b.const(4)
    size = b.let(IntOp.MUL, n, four)
    b.input("x", "f32", [n], "[n]")
    b.input("total", "f32", [one], "[1]")
    x, total = b.buffer(Input(0)), b.buffer(Input(1))
    b.output("total'", "f32", [one], "[1]", state=1)
    copied, last = b.output("copied", "f32", [n], "[n]"), b.output("last", "f32", [one], "[1]")
    b.allocate(copied, size)
    b.body.append(Copy(copied, x, size))
    b.allocate(last, four)
    b.launch("accumulate", one, [x, total, last])
    module = linked(b)
    first_array, running = np.array([3, 4, 5], np.float32), np.ones(1, np.float32)
    for expected in (4, 7):
        updated, copied_array, last_array = module(first_array, running)
        assert updated is running
        assert running.tolist() == last_array.tolist() == [expected]
        assert copied_array.tolist() == first_array.tolist()
    assert described == []
    running.flags.writeable = False
    with pytest.raises(RuntimeError, match="read-only"):
        module(first_array, running)
    assert running.tolist() == [7]


def test_results_die_with_their_last_holder(linked: Callable[..., Module]) -> None:
    module, array = linked(growing_copy()), np.ones(1 << 16, np.float32)
    gc.disable()
    try:
        for argument in (array, array[::2], array.tolist()):
            assert len({module(argument).ctypes.data for _ in range(4)}) == 1
    finally:
        gc.enable()


def test_each_call_has_its_own_results(linked: Callable[..., Module]) -> None:
    module, array = linked(copy_of("f32")), np.ones(3, np.float32)
    assert len({result.ctypes.data for result in [module(array) for _ in range(4)]}) == 4


def test_descriptors_of_results_say_where_they_are(mlp: Module) -> None:
    call = outputs_of(mlp, Result("f32", (2, 3), -1), Result("i64", (), -1)).start(None)
    for array, tensor in zip(call.arrays, call.tensors, strict=True):
        assert told(tensor) == (array.ctypes.data, list(array.shape), None)


def test_a_state_is_its_input_without_its_memory(mlp: Module) -> None:
    outputs = outputs_of(mlp, Result("f32", (3, 4), 0))
    state = view_of(np.zeros((3, 4), np.float32), "f32", False).tensor
    call = outputs.start([state])
    assert told(call.tensors[0]) == (None, [3, 4], None)


def test_a_size_that_the_run_finds_gets_an_array_then(mlp: Module) -> None:
    call = outputs_of(mlp, Result("f32", None, -1)).start(None)
    assert call.arrays == [None]
    result_view = view_of(np.zeros((5, 2), np.float32), "f32", False).tensor
    out = (ctypes.c_void_p * 1)()
    assert call.allocator().allocate(None, 0, ctypes.pointer(result_view), out) == 0
    array = call.arrays[0]
    assert array is not None
    assert (array.shape, array.dtype, array.ctypes.data) == ((5, 2), F32, out[0])
    assert told(call.tensors[0]) == (out[0], [5, 2], None)
