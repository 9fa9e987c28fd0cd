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


def test_scratch_stays_in_the_cache_that_holds_the_scratch_of_a_tile() -> None:
    """24 MB pass through 24 KB of scratch."""
    blocks, group = (("i", 6), ("j", 64)), doubled(24_000)
    together, separate = (
        priced(group, Schedule((("i", 24),), ("i",), nests))
        for nests in (
            (Nest((0, 1), ("j", "i"), blocks, "j"),),
            (Nest((0,), ("j", "i"), blocks, "j"), Nest((1,), ("j", "i"), blocks, "j")),
        )
    )
    assert separate.l3 == pytest.approx(together.l3, rel=0.01)
    assert separate.dram == pytest.approx(together.dram, rel=0.01)


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


def test_scratch_has_the_elements_of_each_point_of_a_tile() -> None:
    blocks = (("i", 64),)
    nests = tuple(Nest((n,), (), blocks, "i") for n in range(2))
    price = priced(sums_of_four(1 << 20), Schedule((("i", 1024),), ("i",), nests), machine=ONE_CORE)
    vectors = (1 << 20) / 16
    stores, loaded = 4 / MACHINE.stores, 4 / MACHINE.loads  # of the first stage, of the second
    assert price.ports * HERTZ == pytest.approx(vectors * (stores + loaded), rel=0.01)


def rows_of_sums(count: int, width: int) -> TileGroup:
    """y[i] = sum(n) t[i, n], where t[i, n] = x[i, n] waits in scratch."""
    i, n = iterator("i", count), iterator("n", width)
    x, t = read(0, (i, n), F32), read(StageRef(0), (i, n), F32)
    place = Access(1, n)
    first = GroupStage(
        (var(i), var(n)), (), None, (x,), {x: Access(0, i * width + n)}, ((place,),)
    )  # fmt: skip
    second = GroupStage((var(i),), (var(n),), "sum", (t,), {t: place}, ((Access(2, i),),))
    scratch = GroupBuffer(F32, const(width), MemorySpace.LOCAL)
    buffers = operand(count * width), scratch, result(count)
    return TileGroup(buffers, (first, second), (var(i),), ())


@pytest.mark.parametrize("width", [16, 64])
def test_lanes_that_lie_apart_in_scratch_are_gathered(width: int) -> None:
    """The vector loop of the stage that writes the scratch is innermost there."""
    group = rows_of_sums(1 << 12, width)
    reader = Nest((1,), (), (("i", 64),), "i")
    near_price, far_price = (
        priced(group, Schedule((("i", 64),), ("i",), (writer, reader)), machine=ONE_CORE)
        for writer in (Nest((0,), (), (("i", 64),), "i"), Nest((0,), (), (("n", 16),), "n"))
    )
    loads = (1 << 12) * width / 16
    gathered = loads * MACHINE.functions["gather"]
    copied = loads * (1 / MACHINE.loads + 1 / MACHINE.stores)
    assert far_price.ports * HERTZ == pytest.approx(gathered + copied, rel=0.3)
    # The first writer gathers its operand instead.
    assert near_price.ports * HERTZ == pytest.approx(gathered + loads / MACHINE.loads, rel=0.3)
