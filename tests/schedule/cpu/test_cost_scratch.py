"""Prices of values that wait in a tile's scratch, which lies at the same place for all tiles."""

from __future__ import annotations

import pytest
from tcc.ir.expr.scalar import StageRef, apply, read
from tcc.ir.index import const, iterator
from tcc.ir.tile import MemorySpace
from tcc.ir.tile.group import Access, GroupBuffer, GroupStage, TileGroup
from tcc.ir.types import F32
from tcc.schedule.cpu.schedule import Nest, Schedule

from tests.schedule.cpu.test_cost import (
    HERTZ,
    MACHINE,
    ONE_CORE,
    doubled,
    operand,
    priced,
    result,
    var,
)


def test_scratch_stays_in_the_cache_that_holds_a_units() -> None:
    """24 MB pass through 24 KB of scratch."""
    blocks, group = (("i", 6), ("j", 64)), doubled(24_000)
    joined, apart = (
        priced(group, Schedule((("i", 24),), ("i",), nests))
        for nests in (
            (Nest((0, 1), ("j", "i"), blocks, "j"),),
            (Nest((0,), ("j", "i"), blocks, "j"), Nest((1,), ("j", "i"), blocks, "j")),
        )
    )
    assert apart.l3 == pytest.approx(joined.l3, rel=0.01)
    assert apart.dram == pytest.approx(joined.dram, rel=0.01)


def sums_of_four(count: int) -> TileGroup:
    """Returns y[i] = t[i, 0] + ... + t[i, 3], where t[i, n] = x[i] * x[i] waits in scratch."""
    i = iterator("i", count)
    x = read(0, (i,), F32)
    product, places = apply("mul", x, x), [Access(1, const(n)) for n in range(4)]
    first = GroupStage(
        (var(i),), (), None, (product,) * 4, {x: Access(0, i)}, tuple((p,) for p in places)
    )  # fmt: skip
    parts = [read(StageRef(0, n), (i,), F32) for n in range(4)]
    total = apply("add", apply("add", *parts[:2]), apply("add", *parts[2:]))
    second = GroupStage(
        (var(i),), (), None, (total,), dict(zip(parts, places, strict=True)), ((Access(2, i),),)
    )  # fmt: skip
    scratch = GroupBuffer(F32, const(4), MemorySpace.LOCAL)
    buffers = operand(count), scratch, result(count)
    return TileGroup(buffers, (first, second), first.iters, ())


def test_scratch_has_the_elements_of_each_point_of_a_unit() -> None:
    blocks = (("i", 64),)
    nests = tuple(Nest((n,), (), blocks, "i") for n in range(2))
    price = priced(sums_of_four(1 << 20), Schedule((("i", 1024),), ("i",), nests), machine=ONE_CORE)
    vectors = (1 << 20) / 16
    stored, loaded = 4 / MACHINE.stores, 4 / MACHINE.loads  # of the first stage, of the second
    assert price.ports * HERTZ == pytest.approx(vectors * (stored + loaded), rel=0.01)
