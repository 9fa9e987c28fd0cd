"""Prices count work that tiles repeat, and leave out work that a core hides behind other work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcc.backends.artifact.toolchain import runtime_folder
from tcc.ir.expr.scalar import StageRef, apply, read
from tcc.ir.index import iterator
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.ir.types import F32
from tcc.schedule.cpu import cost
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.cpu.shipped_machines import shipped_machine

from tests.schedule.cpu.test_cost import (
    HERTZ,
    MACHINE,
    ONE_CORE,
    gemm_schedule,
    matmul,
    operand,
    priced,
    result,
    rows_summed,
    var,
)

# ---- repeated work, and work done once ----------------------------------------------------------


def scaled_rows() -> TileGroup:
    """Returns y[i, j] = x[i, j] * s[i], where s[i] = sum(k) z[i, k]."""
    i, j, k = iterator("i", 64), iterator("j", 4096), iterator("k", 1024)
    z, x, total = read(0, (i, k), F32), read(1, (i, j), F32), read(StageRef(0), (i,), F32)
    first = GroupStage((var(i),), (var(k),), "sum", (z,), {z: Access(0, i * 1024 + k)}, ((),))
    second = GroupStage(
        (var(i), var(j)), (), None, (apply("mul", x, total),),
        {x: Access(1, i * 4096 + j)}, ((Access(2, i * 4096 + j),),),
    )  # fmt: skip
    buffers = (operand(64 * 1024), operand(64 * 4096), result(64 * 4096))
    return TileGroup(buffers, (first, second), second.iters, ())


def gated_rows() -> TileGroup:
    """Returns y[i, j] = x[i, j] * exp(g[j]) of 64 x 4096 elements."""
    i, j = iterator("i", 64), iterator("j", 4096)
    x, gate = read(0, (i, j), F32), read(1, (j,), F32)
    stage = GroupStage(
        (var(i), var(j)), (), None, (apply("mul", x, apply("exp", gate)),),
        {x: Access(0, i * 4096 + j), gate: Access(1, j)}, ((Access(2, i * 4096 + j),),),
    )  # fmt: skip
    buffers = (operand(64 * 4096), operand(4096), result(64 * 4096))
    return TileGroup(buffers, (stage,), stage.iters, ())


@pytest.mark.parametrize(
    ("rows", "columns", "order", "served"),
    [
        (1, 64, (), 1),  # a tile of one row computes the gates for that row alone
        (8, 64, (), 8),  # the only block of columns stands before the loop over rows
        (8, 4096, ("j", "i"), 8),
        (8, 4096, ("i", "j"), 1),  # each row computes the gates of all columns again
        (64, 4096, ("j", "i"), 64),
    ],
)
def test_a_function_of_the_columns_is_priced_once_for_the_rows_inside_its_loop(
    rows: int, columns: int, order: tuple[str, ...], served: int
) -> None:
    nest = Nest((0,), order, (("j", 64),), "j")
    schedule = Schedule((("i", rows), ("j", columns)), ("i", "j"), (nest,))
    price = Pricer(ONE_CORE).price(gated_rows(), schedule)
    vectors = 64 * 4096 / 16
    gates = price.compute * HERTZ - vectors / ONE_CORE.fmas
    exp = ONE_CORE.functions.get("exp", ONE_CORE.call)
    assert gates == pytest.approx(vectors / served * exp)


def test_a_stage_is_recomputed_by_every_tile_that_its_loops_do_not_distinguish() -> None:
    def compute(rows: int, columns: int, *, cores: int = 1) -> float:
        nests = Nest((0,), (), (("k", 64),), "k"), Nest((1,), (), (("j", 64),), "j")
        schedule = Schedule((("i", rows), ("j", columns)), ("j", "i"), nests)
        price = Pricer(replace(MACHINE, cores=cores)).price(scaled_rows(), schedule)
        return price.compute * HERTZ * cores

    scale = 64 * 4096 / 16 / MACHINE.fmas
    once = compute(16, 4096) - scale
    assert once > 64 * 1024 / 16 * MACHINE.fma_latency / 4
    # Eight tiles along j compute the sums of the same rows.
    assert compute(16, 512) - scale == pytest.approx(8 * once)
    # If no tile divides the rows, each call computes the sums: one call on one thread; on two
    # threads, the calls take 2, 1 and 1 of 4 tiles each.
    assert compute(64, 512) - scale == pytest.approx(once)
    assert compute(64, 512, cores=2) - scale == pytest.approx(6 * once)
    # A range has at most 16 pieces: 8, 4, 2, 1 and 1.
    assert compute(64, 64, cores=2) - scale == pytest.approx(10 * once)


def test_prices_know_the_pieces_that_the_runtime_makes_of_a_range() -> None:
    header = (runtime_folder() / "src" / "workers.h").read_text(encoding="utf-8")
    assert f" PIECES = {cost._PIECES}," in header


def test_values_that_are_constant_along_a_row_are_computed_once_for_it() -> None:
    i, j = iterator("i", 64), iterator("j", 1024)
    x, r = read(0, (i, j), F32), read(1, (i,), F32)
    stage = GroupStage(
        (var(i), var(j)), (), None, (apply("mul", x, apply("sqrt", r)),),
        {x: Access(0, i * 1024 + j), r: Access(1, i)}, ((Access(2, i * 1024 + j),),),
    )  # fmt: skip
    buffers = (operand(64 * 1024), operand(64), result(64 * 1024))
    group = TileGroup(buffers, (stage,), stage.iters, ())
    schedule = Schedule((), ("i",), (Nest((0,), (), (("j", 64),), "j"),))
    price = priced(group, schedule, machine=ONE_CORE)
    vectors = 64 * 1024 / 16 / MACHINE.fmas
    assert price.compute * HERTZ == pytest.approx(vectors + 64 * MACHINE.functions["sqrt"])


# ---- work that a core hides ---------------------------------------------------------------------

ZEN4 = replace(shipped_machine("znver4"), cores=1)


def test_waiting_sums_cost_the_wait_of_the_machine() -> None:
    group, schedule = matmul(96, 1024, 64), gemm_schedule(96, runs=256)
    some, none = (
        Pricer(replace(ZEN4, wait=wait)).price(group, schedule).compute for wait in (5.0, 0.0)
    )
    assert (some - none) * ZEN4.hertz == pytest.approx(5 * 4 * 96 * 64 / 16)


def test_memory_that_arithmetic_does_not_hide_adds_to_it() -> None:
    group, schedule = matmul(96, 1024, 4096), gemm_schedule(96)
    hidden, half = (
        Pricer(replace(ZEN4, memory_exposed=part)).price(group, schedule) for part in (0.0, 0.5)
    )
    assert half.seconds - hidden.seconds == pytest.approx(0.5 * half.dram)
    # Two cores share the memory, but each waits only for its own lines.
    exposed = Pricer(replace(ZEN4, cores=2, memory_exposed=0.5)).price(group, schedule)
    exposed_seconds = 0.5 * half.dram / 2
    assert exposed.seconds == pytest.approx(
        (hidden.seconds - ZEN4.launch) / 2 + exposed_seconds + ZEN4.fork, 0.01
    )


def test_hints_slow_weights_that_are_used_once_where_the_machine_says_so() -> None:
    ahead, in_order = (
        Pricer(ZEN4).price(matmul(1, 768, 49152), gemm_schedule(1, 1, ahead=a)).dram
        for a in (True, False)
    )
    assert not ZEN4.memory.hinted
    assert ahead * ZEN4.memory.ahead == pytest.approx(in_order * ZEN4.memory.in_order, rel=0.01)


# ---- work that is not hidden ---------------------------------------------------------------------


def test_each_sum_along_its_vectors_is_folded() -> None:
    group, _ = rows_summed(64, 4096)
    nest = Nest((0,), (), (("k0", 8), ("k1", 16)), "k1")
    schedule = Schedule((("k0", 8),), ("k0",), (nest,))
    machines = (replace(MACHINE, loop=0.0, fold=n) for n in (0.0, 12.0))
    free, folded = (Pricer(m).price(group, schedule).compute * HERTZ / 32 for m in machines)
    assert folded - free == pytest.approx(12)


@pytest.mark.parametrize("columns", [2048, 1 << 16])  # in the L3 cache, and in memory
def test_blocks_of_rows_that_lie_apart_come_slower_from_afar(columns: int) -> None:
    k, i = iterator("k", 1024), iterator("i", columns)
    x = read(0, (k * columns + i,), F32)
    access = Access(0, k * columns + i)
    stage = GroupStage((var(i),), (var(k),), "sum", (x,), {x: access}, ((Access(1, i),),))
    group = TileGroup((operand(1024 * columns), result(columns)), (stage,), stage.iters, ())
    narrow, wide = (
        priced(group, Schedule((("i", n),), ("i",), (Nest((0,), (), (("i", n),), "i"),)))
        for n in (64, 256)
    )
    assert narrow.l3 > 1.2 * wide.l3
    assert (narrow.dram > 1.2 * wide.dram) == (columns > 2048)
