"""Symbolic loops are divided so that each element is covered once, by few kinds of blocks at
provable places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tcc.ir.index import as_int, evaluate, iterator, symbol, var_of
from tcc.ir.tile import If, Prefetch, Stmt, TileLoop
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.text import kernel_text
from tcc.ir.tile.verify import verify_kernel
from tcc.passes.tile.cpu.lower import lower
from tcc.passes.tile.cpu.ranges import Rung, ladder, last_part
from tcc.schedule.cpu.schedule import Nest, Schedule, TailVectors, even

from tests.passes.fuse.models import Model
from tests.schedule.cpu.test_choose import only

BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 32, 48, 64)


@pytest.mark.parametrize("block", BLOCKS)
def test_rungs_cover_each_element_once(block: int) -> None:
    size = symbol("n", 0)
    rungs = ladder(size, block)
    assert len(rungs) <= 3
    for count in range(2 * block + 2):
        assert _covered(rungs, count) == list(range(count))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("block", "lanes"), [(64, 16), (48, 16), (16, 16), (256, 16), (8, 4)])
def test_vectors_cover_each_element_once(block: int, lanes: int, masked: bool) -> None:
    """Less than a vector lies beyond the end, and there are no more vectors than needed."""
    rungs = ladder(symbol("n", 0), block, TailVectors(lanes, masked))
    for count in range(2 * block + 2):
        covered = _covered(rungs, count)
        end = -(-count // lanes) * lanes if masked else count
        assert covered[:count] == list(range(count))
        assert len(covered) == (count if count % block == 0 else end)


def _covered(rungs: Sequence[Rung], count: int) -> list[int]:
    covered: list[int] = []
    for rung in rungs:
        ends = (evaluate(end, {"n": count}) for end in (rung.start, rung.stop))
        for at in range(*ends, rung.step):
            covered += range(at, at + rung.step)
    return covered


@pytest.mark.parametrize("block", BLOCKS)
def test_rests_take_few_trips(block: int) -> None:
    """The remainder takes at most about twice the root of a block, for parts and single elements
    together."""
    for count in range(block):
        trips = 0
        for rung in ladder(symbol("n", 0), block):
            ends = (evaluate(end, {"n": count}) for end in (rung.start, rung.stop))
            trips -= (next(ends) - next(ends)) // rung.step
        assert trips <= max(block - 1 if _prime(block) else 0, 2 * block**0.5 + 1)


def _prime(n: int) -> bool:
    return all(n % k for k in range(2, n))


def test_the_last_part_is_less_than_a_tile() -> None:
    loop = iterator("i", symbol("n", 0))
    var = var_of(loop)
    assert var is not None
    for count in range(40):
        part = last_part(var, 16)
        base, size = (evaluate(e, {"n": count}) for e in (part.base, part.size))
        assert (base, size) == (count // 16 * 16, count % 16)


@pytest.mark.parametrize("block", BLOCKS)
def test_known_sizes_are_cut_into_blocks_none_of_which_is_empty(block: int) -> None:
    for size in range(1, 6 * block):
        for is_whole in (False, True):
            cuts = even(size, block, is_whole)
            assert all(count > 0 and 0 < elements <= block for elements, count in cuts)
            assert sum(count * elements for elements, count in cuts) == size


def open_product(rows: int = 1) -> tuple[TileGroup, Schedule]:
    """Returns the group and schedule of a matmul of symbolic rows with delayed sums; `rows`
    multiplies the symbolic size."""
    m = Model("open")
    x = m.input("x", symbol("n", 1) * rows, 1536)
    return only(m.finish(m.op("matmul", x, m.weight(1536, 256))))


def branches(body: tuple[Stmt, ...]) -> int:
    """Returns the number of choices between parts that compute; prefetch hints do not count."""
    return sum(
        any(not isinstance(inner, Prefetch) for inner in s.then)
        + branches(s.then)
        + branches(s.otherwise)
        if isinstance(s, If)
        else branches(s.body)
        if isinstance(s, TileLoop)
        else 0
        for s in body
    )


def test_scratch_of_a_symbolic_tile_has_a_size_and_accesses_are_proved() -> None:
    group, schedule = open_product()
    kernel = lower(group, schedule)
    assert kernel.locals
    assert all(as_int(b.sizes[0]) is not None for b in kernel.locals)
    assert branches(kernel.body) == 1
    verify_kernel(kernel)


def test_tiles_that_divide_a_symbolic_size_leave_nothing() -> None:
    group, schedule = open_product(rows=256)
    kernel = lower(group, schedule)
    assert branches(kernel.body) == 0
    verify_kernel(kernel)


def test_equal_tiles_are_of_one_kind() -> None:
    """34 rows in tiles of at most 20 are two tiles of 17."""
    m = Model("rows")
    group, schedule = only(m.finish(m.op("matmul", m.input("x", 34, 64), m.weight(64, 32))))
    rows = group.common[0].name
    kernel = lower(group, replace(schedule, tile_sizes=((rows, 20),), parallel=(rows,)))
    assert branches(kernel.body) == 0
    verify_kernel(kernel)


def test_a_single_tile_behind_the_others_has_a_known_place() -> None:
    """The last tile has 41 of 1,001 columns; an offset by the tile's number would divide by a
    panel's width."""
    m = Model("columns")
    group, _ = only(m.finish(m.op("matmul", m.input("x", 1, 64), m.weight(64, 1001))))
    columns = group.common[-1].name
    nest = Nest((0,), (), ((columns, 64),), columns)
    kernel = lower(group, Schedule(((columns, 64),), (columns,), (nest,)))
    whole_tile, _, last = kernel_text(kernel).partition("} else {")
    assert whole_tile.count(f"p.{columns}") > 2
    assert "f32[41]" in last
    assert f"p.{columns}" not in last
    verify_kernel(kernel)
