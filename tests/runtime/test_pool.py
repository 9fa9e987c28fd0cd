"""The pool agrees with a shadow under sanitizers, on traces, and as the memory of instances."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from pool_traces import TRACES
from programs import Builder
from sanitized import Sanitized, run_sanitized
from tcc.ir.program import Alias, Copy, Dynamic, Input, IntOp, Launch, Let, Loop, ReadInt, View
from tcc.ir.types import DTYPES
from tcc.runtime import Module, abi
from trials import HERE, RUNTIME, SYSTEM, WORKERS, compile_c, includes

MIB = 1 << 20


@pytest.fixture(scope="module")
def binary(sanitized: Sanitized) -> Path:
    return sanitized.program("exercise_pool", HERE / "pool.c")


@pytest.mark.parametrize(
    "mode",
    ["fuzz", "failures", "limits", "pages", "caches", "alone", "emptied", "threads", "forks"],
)
def test_pools_keep_their_promises(binary: Path, mode: str) -> None:
    run_sanitized(binary, mode, *(("700",) if mode == "fuzz" else ()))


def test_shared_pools_have_no_data_race(tmp_path: Path) -> None:
    names = (*WORKERS, *SYSTEM, "budget.c", "arena.c", "sized.c")
    sources = [RUNTIME / "src" / name for name in names]
    sources += sorted((RUNTIME / "src" / "pool").glob("*.c"))
    flags = ("-O1", "-fsanitize=thread", *includes(RUNTIME), "-lpthread")
    compile_c("cc", flags, [HERE / "pool.c", *sources, Path("-ldl")], tmp_path / "pool")
    for mode in (("threads",), ("caches",), ("emptied", "2000")):
        subprocess.run((tmp_path / "pool", *mode), check=True, timeout=120)


# ---- traces ------------------------------------------------------------------------------------


def test_large_blocks_come_and_go_in_memory_that_is_there(sanitized: Sanitized) -> None:
    binary = sanitized.program("time_pool", HERE / "pool_times.c")
    result = subprocess.run((binary, "calls"), capture_output=True, text=True, check=True)
    pairs, calls = map(int, result.stdout.split())
    assert calls * 25 <= pairs


@pytest.mark.parametrize("name", TRACES)
def test_a_pool_holds_little_more_than_its_live_bytes(sanitized: Sanitized, name: str) -> None:
    binary = sanitized.program("time_pool", HERE / "pool_times.c")
    text = "\n".join(TRACES[name]) + "\n"
    result = subprocess.run(
        (binary, "trace"), input=text, capture_output=True, text=True, check=True, timeout=120
    )
    committed, live = map(int, result.stdout.split())
    assert live > 8 * MIB
    assert committed <= 1.15 * live


# ---- instances ---------------------------------------------------------------------------------


def counting() -> Builder:
    """Returns y = [0, 1, ..., trips-1], in a buffer that grows by one element per trip."""
    b = Builder()
    one, four, zero = b.const(1), b.const(4), b.const(0)
    trips, counter, count, size, offset = (b.register() for _ in range(5))
    b.input("trips", "i64", [], "[]")
    source, grown, tip = b.buffer(Input(0)), b.buffer(Dynamic()), b.buffer(Alias())
    y = b.output("y", "f32", [count], "[k]")
    b.body.append(ReadInt(trips, source, DTYPES["i64"]))
    b.allocate(grown, zero)
    step = (
        Let(count, IntOp.ADD, counter, one),
        Let(size, IntOp.MUL, count, four),
        Let(offset, IntOp.MUL, counter, four),
        programs.Allocate(grown, size, True),
        View(tip, grown, offset),
        Launch(programs.KERNEL_NAMES.index("fill"), one, (tip,), (counter,)),
    )
    b.body += [Loop(trips, -1, counter, step), Let(count, IntOp.ADD, counter, zero)]
    b.body.append(Let(size, IntOp.MUL, count, four))
    b.allocate(y, size)
    b.body.append(Copy(y, grown, size))
    return b


def test_runs_ask_the_system_for_nothing(kernels: bytes, tmp_path: Path) -> None:
    programs.link(counting().program(), kernels, tmp_path / "m.so")
    flags = ("-O1", "-rdynamic", "-Wno-pedantic", *includes(RUNTIME))
    program = tmp_path / "interposed"
    compile_c("cc", flags, [HERE / "interposed.c", Path("-ldl")], program)
    command = (program, tmp_path / "m.so", "100000", "5")
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0\n"


Linker = Callable[..., Module]


def numbers(module: Module) -> abi.CMemory:
    usage = abi.CMemory(ctypes.sizeof(abi.CMemory))
    assert module._api.memory(module._idle[0], ctypes.byref(usage)) == 0
    return usage


def test_an_instances_memory_counts_together(linked: Linker) -> None:
    module = linked(counting(), threads=1)
    instance, api = module._idle[0], module._api
    assert module(np.int64(50_000)).shape == (50_000,)
    usage = numbers(module)
    assert 200_000 <= usage.pool_committed <= usage.used
    assert usage.used == usage.arena + usage.scratch + usage.state + usage.pool_committed
    assert usage.process_used >= usage.used
    assert (usage.pool_live, usage.process_limit) == (0, 0)
    assert api.instance_set_memory_limit(instance, usage.used) == 0
    assert module(np.int64(50_000)).shape == (50_000,)
    with pytest.raises(
        RuntimeError, match=r"the instance holds .* instance_set_memory_limit allows"
    ):
        module(np.int64(500_000))
    assert module(np.int64(50_000)).shape == (50_000,)
    assert api.instance_set_memory_limit(instance, 0) == 0
    assert module(np.int64(500_000)).shape == (500_000,)


def test_a_limit_of_the_process_is_for_all_instances(linked: Linker) -> None:
    first, second = (linked(counting(), threads=1) for _ in range(2))
    for _ in range(3):
        first(np.int64(100_000))
    first._api.process_set_memory_limit(numbers(first).process_used)
    try:
        assert first(np.int64(100_000))[-1] == 99_999
        with pytest.raises(RuntimeError, match="the process holds"):
            second(np.int64(100_000))
    finally:
        second._api.process_set_memory_limit(0)
    assert second(np.int64(100_000))[-1] == 99_999


def test_arenas_of_threads_and_pools_share_a_limit(
    linked: Linker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCC_MEMORY", "2M")
    b = counting()
    b.scratch = 600_000
    module = linked(b, threads=1)
    assert module(np.int64(10_000)).shape == (10_000,)
    with pytest.raises(RuntimeError, match="TCC_MEMORY allows it 2097152"):
        module(np.int64(400_000))
    with pytest.raises(RuntimeError, match="TCC_MEMORY allows it 2097152"):
        linked(b, threads=4)(np.int64(5))


def test_an_allocator_of_the_caller_serves_an_instance(linked: Linker) -> None:
    module = linked(counting(), threads=1, poison=True)
    blocks: dict[int, Any] = {}
    sizes: list[int] = []

    def allocate(_context: Any, size: int) -> int | None:
        if size > 1 << 16:
            return None
        room = ctypes.create_string_buffer(size + 64)
        address = ctypes.addressof(room) + -ctypes.addressof(room) % 64
        blocks[address] = room
        sizes.append(size)
        return address

    def release(_context: Any, address: int, _size: int) -> None:
        del blocks[address]

    kinds = [field[1] for field in abi.PoolAllocator._fields_]
    allocator = abi.PoolAllocator(None, kinds[1](allocate), kinds[2](release))
    config = abi.PoolConfig(struct_size=ctypes.sizeof(abi.PoolConfig))
    config.allocator = ctypes.pointer(allocator)
    assert module._api.instance_set_pool(module._idle[0], ctypes.byref(config)) == 0
    assert module(np.int64(1000)).tolist() == list(range(1000))
    assert blocks == {}
    assert len(sizes) > 5
    with pytest.raises(RuntimeError, match="out of memory"):
        module(np.int64(20_000))
    assert blocks == {}
    assert numbers(module).used == numbers(module).scratch
    plain = abi.PoolConfig(struct_size=ctypes.sizeof(abi.PoolConfig))
    assert module._api.instance_set_pool(module._idle[0], ctypes.byref(plain)) == 0
    count = len(sizes)
    assert module(np.int64(1000)).tolist() == list(range(1000))
    assert len(sizes) == count
    plain.struct_size = 8
    assert module._api.instance_set_pool(module._idle[0], ctypes.byref(plain)) == 1


def test_trimming_frees_idle_instances(linked: Linker) -> None:
    module = linked(counting(), threads=1)
    api, before = module._api, numbers(module).process_used
    trips = ctypes.c_int64(50_000)
    room = np.zeros(50_000, np.float32)
    shape = (ctypes.c_int64 * 1)(50_000)
    x = abi.CTensor(ctypes.addressof(trips), abi.Device(1, 0), 0, abi.CDType(0, 64, 1))
    y = abi.CTensor(room.ctypes.data, abi.Device(1, 0), 1, abi.CDType(2, 32, 1), shape)
    for _ in range(2):
        status = api.call(module._handle, ctypes.byref(x), 1, ctypes.byref(y), 1, None, None)
        assert status == 0
        assert room[-1] == 49_999
        assert numbers(module).process_used >= before + 200_000
        api.model_trim(module._handle)
        assert numbers(module).process_used <= before
