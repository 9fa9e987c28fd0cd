"""Tests of object files from worker processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcc.backends.cpu.compile import compile_kernels, start_processes
from tcc.backends.cpu.detect import detect
from tcc.backends.idle_pool import RESTING
from tcc.backends.workers import WorkerPool
from tcc.budgets import BUDGETS
from tcc.errors import InternalError
from tcc.ir.expr.scalar import apply, argument
from tcc.ir.index import const, iterator, var_of
from tcc.ir.tile import Block, Compute, Load, MemorySpace, Store, TileBuffer, TileKernel, lanes
from tcc.ir.types import F32
from tcc.target import Target, parse_target

TARGETS = [parse_target("cpu", cpu, detect) for cpu in ("x86-64-v3", "x86-64-v4", "host")]


def kernel(function: str, size: int) -> TileKernel:
    unit = var_of(iterator("u", 1))
    assert unit is not None
    shape = (size,)
    x, y = (
        TileBuffer(n, F32, (const(size),), s)
        for n, s in (("x", MemorySpace.INPUT), ("y", MemorySpace.OUTPUT))
    )
    local = TileBuffer("t", F32, (const(size),), MemorySpace.LOCAL)
    a, b, c = (Block(n, F32, shape) for n in "abc")
    body = (
        Load(a, x, lanes(shape)),
        Compute(b, apply(function, argument(0, F32)), (a,)),
        Store(local, lanes(shape), b),
        Load(c, local, lanes(shape)),
        Store(y, lanes(shape), c),
    )
    return TileKernel((x, y), (local,), (), (unit,), body)


FUNCTIONS = ("exp", "log", "sqrt", "neg", "asin")


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.profile.cpu)
def test_bytes_do_not_depend_on_the_number_of_workers(target: Target):
    kernels = [kernel(f, 5 + n) for n, f in enumerate(FUNCTIONS)]
    names = [f"k{n}" for n in range(len(kernels))]
    one = compile_kernels(kernels, names, target, 1)
    three = compile_kernels(kernels, names, target, 3)
    assert one == three
    assert len(set(one.objects)) == len(kernels)
    assert all(code.startswith(b"\x7fELF") for code in one.objects)
    # Both functions of a kernel have separate names, which profilers show.
    for name, code in zip(names, one.objects, strict=True):
        assert {f"{name}".encode(), f"{name}_units".encode()} <= set(code.split(b"\0"))
        assert b"units" not in code.split(b"\0")
    assert one.scratch == 64


def test_no_kernels():
    assert compile_kernels([], [], TARGETS[0], 2).objects == ()


def test_processes_that_were_started_ahead_are_taken(monkeypatch: pytest.MonkeyPatch):
    pools: list[WorkerPool] = []
    monkeypatch.setattr(
        "tcc.backends.cpu.compile.WorkerPool",
        lambda *args, **named: pools.append(WorkerPool(*args, **named)) or pools[-1],
    )
    RESTING.end()
    start_processes(2, 3, BUDGETS)
    assert [len(pool._threads) for pool in pools] == [2]
    compile_kernels([kernel("exp", 8)], ["k"], TARGETS[0], 3)
    assert len(pools) == 1
    RESTING.end()
    assert not any(thread.is_alive() for thread in pools[0]._threads)


def test_a_fatal_error_of_llvm_names_the_kernel(own_tempdir):
    # LLVM ends the process when it generates code for a CPU without 64-bit mode.
    broken = replace(TARGETS[0], profile=replace(TARGETS[0].profile, cpu="i386"))
    with pytest.raises(InternalError) as caught:
        compile_kernels([kernel("exp", 8), kernel("log", 8)], ["first", "second"], broken, 2)
    assert "first" in caught.value.what
    assert "64-bit" in caught.value.why
    with open(caught.value.where) as text:
        assert "@first" in text.read()
    (listing,) = own_tempdir.iterdir()
    assert caught.value.where == str(listing)
    assert listing.name.endswith("-first.ll")
