"""Tests of calibration: its timed loops do their work, and its constants are plausible."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from tcc.backends.cpu import calibrate as measuring
from tcc.backends.cpu.calibrate import LoadedCode
from tcc.backends.cpu.calibrate_kernels import (
    BLOCKS,
    LIBRARY,
    VECTORS,
    function_kernel,
    gather_kernel,
)
from tcc.backends.cpu.calibrate_text import loops_text
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.math.table import MATH
from tcc.runtime import loop_times
from tcc.runtime.loop_times import BLOCK, UNROLL
from tcc.schedule.cpu.machine_file import machine_text, read_machine
from tcc.target import Target, parse_target

from tests.processors import distinct

_VOID_PTR, _I64 = ctypes.c_void_p, ctypes.c_int64


@pytest.fixture(scope="module", params=distinct("host", "x86-64-v3", "x86-64-v2"))
def target(request: pytest.FixtureRequest) -> Target:
    return parse_target("cpu", request.param, detect)


@pytest.fixture(scope="module")
def loops(target: Target) -> LoadedCode:
    return LoadedCode(loops_text(target), target)


def floats(count: int) -> np.ndarray:
    raw = np.zeros(count * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * 4].view(np.float32)


def test_each_round_multiplies_and_adds(loops: LoadedCode, target: Target) -> None:
    lanes = target.profile.lanes(32)
    for name, rounds in (("multiply", 5), ("chain", 5)):
        data = floats(lanes)
        data[:] = 0.5
        ctypes.CFUNCTYPE(None, _VOID_PTR, _I64)(loops.address(name))(data.ctypes.data, rounds)
        if target.profile.fma:
            steps = rounds if name == "multiply" else rounds * UNROLL
            expected = 0.25 * steps  # c = a * b + c
        else:
            expected, steps = 0.0, rounds if name == "multiply" else rounds * UNROLL
            for _ in range(steps):
                expected = 0.5 * expected + 0.5  # c = a * c + b
        np.testing.assert_allclose(data, expected, rtol=1e-6, atol=1e-6 * abs(expected))


def test_writing_touches_all_vectors_and_no_more(loops: LoadedCode, target: Target) -> None:
    lanes, vectors = target.profile.lanes(32), 4 * UNROLL
    data = floats(lanes * (vectors + 1))
    data[:] = 1
    write = ctypes.CFUNCTYPE(None, _VOID_PTR, _I64, _I64)(loops.address("write"))
    write(data.ctypes.data, vectors, 2)
    assert not data[: lanes * vectors].any()
    assert data[lanes * vectors :].all()


@pytest.mark.parametrize("blocks", [1, 2])
def test_reading_ahead_touches_the_vectors_and_no_more(
    loops: LoadedCode, target: Target, blocks: int
) -> None:
    """Reading ahead touches the pages of its vectors only; the system gives pages at the first
    access."""
    mapping = mmap.mmap(-1, 3 * BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    data = np.frombuffer(mapping, np.uint8).ctypes.data
    ahead = ctypes.CFUNCTYPE(None, _VOID_PTR, _I64, _I64)(loops.address("ahead"))
    ahead(data, blocks * BLOCK * 8 // target.profile.vector_bits, 2)
    pages = 3 * BLOCK // mmap.PAGESIZE
    residency = (ctypes.c_ubyte * pages)()
    mincore = ctypes.CDLL(None).mincore
    assert mincore(ctypes.c_void_p(data), ctypes.c_size_t(3 * BLOCK), residency) == 0
    assert list(residency) == [page < pages * blocks // 3 for page in range(pages)]


def test_vectors_may_be_read_from_anywhere(loops: LoadedCode, target: Target) -> None:
    """Vectors may be read from any address; an instruction for aligned vectors would end the
    process."""
    data = floats(target.profile.lanes(32) * (UNROLL + 1))
    read = ctypes.CFUNCTYPE(None, _VOID_PTR, _I64, _I64)(loops.address("read"))
    read(data.ctypes.data + target.profile.vector_bits // 16, UNROLL, 2)


def test_chasing_follows_the_pointers(loops: LoadedCode) -> None:
    ring = np.zeros(3, np.uint64)
    at = ring.ctypes.data
    ring[:] = [at + 16, at, at + 8]  # 0 -> 2 -> 1 -> 0
    chase = ctypes.CFUNCTYPE(_VOID_PTR, _VOID_PTR, _I64)(loops.address("chase"))
    assert [chase(at, n) for n in (1, 2, 3, 4)] == [at + 16, at + 8, at, at + 16]


def test_kernels_compute_their_function_again_and_again(target: Target) -> None:
    lanes = target.profile.lanes(32)
    count = VECTORS * BLOCKS * lanes
    x, y, at = floats(count), floats(count), floats(count)
    x[:] = np.linspace(0.5, 1.5, count)
    at.view(np.int32)[:] = np.arange(count)[::-1]
    places = (ctypes.c_void_p * 3)(x.ctypes.data, y.ctypes.data, at.ctypes.data)
    entry = ctypes.CFUNCTYPE(None, _VOID_PTR, _VOID_PTR, _I64, _I64, _VOID_PTR)
    for text, reference in (
        (function_kernel("exp", 1, lanes, target), np.exp(x)),
        (function_kernel("div", 2, lanes, target), np.ones(count)),
        (gather_kernel(lanes, target), x[::-1]),
    ):
        y[:] = 0
        code = LoadedCode(text.llvm, target)
        entry(code.address(text.name))(ctypes.addressof(places), None, 0, 3 * BLOCKS, None)
        np.testing.assert_allclose(y, reference, rtol=1e-6, atol=1e-6)


def test_the_calibrated_library_function_is_called_from_the_library(target: Target) -> None:
    assert LIBRARY not in MATH
    text = function_kernel(LIBRARY, 2, target.profile.lanes(32), target)
    assert f"@{LIBRARY}f(" in text.llvm


def test_the_constants_are_those_of_a_machine(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_times, "_RUN", 0.0005)
    monkeypatch.setattr(loop_times, "_REPEATS", 2)
    monkeypatch.setattr(measuring, "_LAUNCHES", 2000)
    host = parse_target("cpu", "host", detect)
    machine = measuring.calibrate(host)
    assert (machine.lanes, machine.registers) == (
        host.profile.lanes(32),
        host.profile.vector_registers,
    )
    # A busy host makes everything slower, so the test rejects only what no load can explain.
    assert 0 < machine.ghz < 8
    assert machine.fmas in (0.5, 1.0, 2.0)
    assert machine.functions["exp"] < machine.call
    assert machine.memory.read < 1e12
    assert 0 < min(machine.memory.in_order, machine.memory.ahead) <= 1
    assert max(machine.memory.in_order, machine.memory.ahead) <= 1
    path = tmp_path / "machine.json"
    path.write_text(machine_text(machine))
    assert read_machine(path) == machine
