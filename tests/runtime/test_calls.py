"""Descriptors that are made from what an earlier call knew say the same as new ones."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
from tcc.runtime.arrays import Given, view_of
from tcc.runtime.blocks import ResultPool
from tcc.runtime.calls import Inputs, Outputs, Repeated, Result

F32 = np.dtype(np.float32)


class Viewer:
    """`view_of`, and how often it was needed."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _index: int, value: Any) -> Given:
        self.calls += 1
        return view_of(value, "f32", False)


def told(tensor: Any) -> tuple[int | None, list[int], list[int] | None]:
    sizes = [tensor.shape[i] for i in range(tensor.ndim)]
    steps = [tensor.strides[i] for i in range(tensor.ndim)] if tensor.strides else None
    return tensor.data, sizes, steps


SECOND_CALLS = pytest.mark.parametrize(
    ("second", "known"),
    [
        (np.ones((3, 4), np.float32), True),
        (np.ones((4, 3), np.float32), False),
        (np.ones((3, 4), np.float64), False),
        (np.ones((4, 3), np.float32).T, False),
        (np.ones((6, 4), np.float32)[::2], False),
        (np.broadcast_to(np.float32(1), (3, 4)), False),
        (np.ones((3, 4), np.float32).view(type("Own", (np.ndarray,), {})), False),
        ([[1.0, 2.0]], False),
    ],
)


@SECOND_CALLS
def test_only_an_array_like_the_last_one_is_described_from_memory(second: Any, known: bool) -> None:
    viewer, inputs = Viewer(), Inputs(1)
    first = np.zeros((3, 4), np.float32)
    assert told(inputs.describe([first], viewer).tensors[0]) == (first.ctypes.data, [3, 4], None)
    found = inputs.describe([second], viewer)
    assert viewer.calls == (1 if known else 2)
    wanted = view_of(second, "f32", False).tensor
    if isinstance(second, np.ndarray):
        assert told(found.tensors[0]) == told(wanted)
        assert told(found.tensors[0])[0] == second.ctypes.data
    assert found.plain == (type(second) is np.ndarray)


@SECOND_CALLS
def test_only_a_call_like_the_last_one_fills_its_descriptors(second: Any, known: bool) -> None:
    inputs, outputs = Inputs(1), Outputs([Result("f32", (2, 3), -1)], ResultPool(4))
    array = np.zeros((3, 4), np.float32)
    first, again = (inputs.describe([array], Viewer()) for _ in range(2))
    assert (first.known, again.known) == (False, True)
    call = Repeated([array], again, outputs)
    made = [call.fill([array]), call.fill([second])]
    assert [m is not None for m in made] == [True, known]
    if known:
        (before,), (result,) = made
        assert told(call.inputs[0]) == told(view_of(second, "f32", False).tensor)
        assert told(call.tensors[0]) == (result.ctypes.data, [2, 3], None)
        assert before.ctypes.data != result.ctypes.data


def test_a_read_only_array_is_described_anew() -> None:
    viewer, inputs = Viewer(), Inputs(1)
    array = np.zeros((3, 4), np.float32)
    inputs.describe([array], viewer)
    array.flags.writeable = False
    assert told(inputs.describe([array], viewer).tensors[0])[0] == array.ctypes.data
    assert viewer.calls == 2


def test_an_array_changed_in_place_is_no_longer_known() -> None:
    viewer, inputs = Viewer(), Inputs(1)
    array = np.zeros((3, 4), np.float32)
    inputs.describe([array], viewer)
    array.shape = (4, 3)
    assert told(inputs.describe([array], viewer).tensors[0])[1] == [4, 3]


def test_an_empty_array_has_its_shape() -> None:
    viewer, inputs = Viewer(), Inputs(1)
    for _ in range(2):
        found = inputs.describe([np.zeros((0, 4), np.float32)], viewer)
        assert told(found.tensors[0])[1] == [0, 4]


def test_each_call_has_its_own_results() -> None:
    outputs = Outputs([Result("f32", (2, 3), -1), Result("i64", (), -1)], ResultPool(4))
    calls = [outputs.start(None) for _ in range(2)]
    places = set()
    for call in calls:
        for array, tensor in zip(call.arrays, call.tensors, strict=True):
            assert array is not None
            assert told(tensor) == (array.ctypes.data, list(array.shape), None)
            places.add(tensor.data)
        assert call.allocator is None
    assert len(places) == 4


def test_a_state_is_its_input_without_its_memory() -> None:
    inputs, outputs = Inputs(1), Outputs([Result("f32", (3, 4), 0)], ResultPool(4))
    given = inputs.describe([np.zeros((3, 4), np.float32)], Viewer())
    call = outputs.start(given.tensors)
    assert told(call.tensors[0]) == (None, [3, 4], None)
    assert given.tensors[0].data is not None


def test_a_size_that_the_run_finds_gets_an_array_then() -> None:
    call = Outputs([Result("f32", None, -1)], ResultPool(4)).start(None)
    assert call.arrays == [None]
    wanted = view_of(np.zeros((5, 2), np.float32), "f32", False).tensor
    out = (ctypes.c_void_p * 1)()
    assert call.allocator is not None
    assert call.allocator.allocate(None, 0, ctypes.pointer(wanted), out) == 0
    array = call.arrays[0]
    assert array is not None
    assert (array.shape, array.dtype, array.ctypes.data) == ((5, 2), F32, out[0])
    assert told(call.tensors[0]) == (out[0], [5, 2], None)


def test_what_a_run_asked_for_dies_with_its_last_holder() -> None:
    """And not when garbage is collected next: large results would pile up until then."""
    blocks = ResultPool(4)
    call = Outputs([Result("f32", None, -1)], blocks).start(None)
    wanted = view_of(np.zeros((64, 1024), np.float32), "f32", False).tensor
    out = (ctypes.c_void_p * 1)()
    assert call.allocator is not None
    assert call.allocator.allocate(None, 0, ctypes.pointer(wanted), out) == 0
    gc.disable()
    try:
        del call
        assert blocks.array((64, 1024), F32)[1] == out[0]
    finally:
        gc.enable()
