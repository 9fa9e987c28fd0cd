"""Manifests have times of kernels with symbolic sizes: at several sizes, for several numbers of
cores, and with the other data of a run."""

from __future__ import annotations

from math import exp

import pytest
from tcc.ir.expr.scalar import read
from tcc.ir.index import as_int, iterator, symbol, var_of
from tcc.ir.tile.group import Access, GroupStage, TileGroup
from tcc.ir.types import F32
from tcc.schedule.cpu.cost import _RESULT_PARTS, Pricer
from tcc.schedule.cpu.work import group_bytes
from tcc.schedule.nest import typical
from tcc.schedule.open_sizes import table_sizes

from tests.schedule.cpu.test_cost import (
    MACHINE,
    ONE_CORE,
    gemm_schedule,
    map_schedule,
    matmul,
    operand,
    pointwise,
    result,
    var,
)

COUNT = 1 << 18  # elements: operand and result take 1 MiB each


def test_the_traffic_of_a_run_leaves_little_in_the_third_cache() -> None:
    """A result's lines are read from memory and written back; the cache keeps a part of the
    operand, which the previous kernel wrote."""
    group, schedule, memory = pointwise(COUNT), map_schedule(COUNT), ONE_CORE.memory
    pricer = Pricer(ONE_CORE)
    assert pricer.price(group, schedule).dram == 0
    assert pricer.price(group, schedule, live=ONE_CORE.l3.size // 4).dram == 0
    price = pricer.price(group, schedule, live=100 * ONE_CORE.l3.size)
    reading, handed = (
        memory.reading(together=False),
        1 - exp(-_RESULT_PARTS * (2 << 20) / ONE_CORE.l3.size),
    )
    stored_seconds = (1 << 20) / memory.write + (1 << 20) / reading
    assert price.dram == pytest.approx(stored_seconds + handed * (1 << 20) / reading)
    assert price.seconds > pricer.price(group, schedule).seconds


def test_constants_count_the_same_beside_the_traffic_of_a_run() -> None:
    group, schedule = matmul(1, 4096, 4096), gemm_schedule(1, 1)
    pricer = Pricer(ONE_CORE, 1 << 30)
    few = pricer.price(group, schedule), pricer.price(group, schedule, live=1 << 40)
    assert few[1].dram == pytest.approx(few[0].dram, rel=1e-2)


def test_a_launch_alone_is_one_on_a_machine_of_one_core() -> None:
    for group, schedule in (
        (pointwise(COUNT), map_schedule(1 << 12)),
        (matmul(96, 64, 128), gemm_schedule(6)),
    ):
        single_price = Pricer(MACHINE).price(group, schedule, single_core=True)
        assert single_price == Pricer(ONE_CORE).price(group, schedule)
        assert single_price.seconds > Pricer(MACHINE).price(group, schedule).seconds


def test_sizes_of_the_table_keep_to_the_range_and_the_divisor_of_a_symbol() -> None:
    plain, even = symbol("n", 0, None), symbol("m", 2, 300, 4, 200)
    n, m, fixed = var_of(plain), var_of(even), var_of(iterator("i", 7))
    assert n is not None
    assert m is not None
    assert fixed is not None
    sets = table_sizes([n, m, fixed])
    assert [typical(sizes[n]) for sizes in sets] == [63, 25, 8, 1, 256, 512]
    assert [typical(sizes.get(m, even)) for sizes in sets] == [200, 200, 200, 200, 300, 300]
    assert all(fixed not in sizes for sizes in sets)


def test_no_access_of_a_symbolic_buffer_exceeds_its_bytes() -> None:
    """Places that are products of loops are unknown, so the bound is the buffer's 50 n elements."""
    i, j, n = iterator("i", 1000), iterator("j", 1000), symbol("n", 0, None)
    x = read(0, (i * j,), F32)
    stage = GroupStage(
        (var(i), var(j)), (), None, (x,), {x: Access(0, i * j)}, ((Access(1, i * 1000 + j),),)
    )
    group = TileGroup((operand(50 * n), result(1000_000)), (stage,), stage.iters, ())
    assert as_int(50 * n) is None
    assert group_bytes(group) == 4 * (50 * 128 + 1000_000)
