"""Block schedules are the known choices for the device and the shapes."""

from __future__ import annotations

from math import prod

import pytest
from tcc.ir.expr import Expr, ExprBuilder, extent
from tcc.ir.expr.scalar import apply
from tcc.ir.index import IndexLike, as_int, symbol
from tcc.ir.layout import row_major
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import F32, tensor
from tcc.passes.fuse.structure import Storage, build_group
from tcc.schedule.gpu.choose import choose_blocks
from tcc.schedule.gpu.schedule import BlockProfile, BlockSchedule, NotBlocks

DEVICE = BlockProfile(processors=100)


def group_of(expr: Expr) -> TileGroup:
    def plain(shape: tuple[IndexLike, ...]) -> Storage:
        type_ = tensor(F32, *shape)
        return Storage(F32, type_.shape, row_major(type_.shape))

    operands = [plain(t.shape) for t in expr.params if t is not None]
    return build_group(expr, operands, [plain(t.shape) for t in expr.types])


def product(m: IndexLike, n: IndexLike, k: IndexLike) -> TileGroup:
    b = ExprBuilder(tensor(F32, m, k), tensor(F32, k, n))
    i, j = b.iters(m, n)
    (c,) = b.iters(k)
    b.stage((i, j), apply("mul", b.read(0, i, c), b.read(1, c, j)), over=(c,), monoid="sum")
    return group_of(b.done())


def total(m: IndexLike, n: IndexLike, *, columns: bool = False) -> TileGroup:
    b = ExprBuilder(tensor(F32, n, m) if columns else tensor(F32, m, n))
    (i,) = b.iters(m)
    (j,) = b.iters(n)
    b.stage((i,), b.read(0, *((j, i) if columns else (i, j))), over=(j,), monoid="sum")
    return group_of(b.done())


def pointwise(m: IndexLike, n: IndexLike, *, turned: bool = False) -> TileGroup:
    b = ExprBuilder(tensor(F32, n, m) if turned else tensor(F32, m, n))
    i, j = b.iters(m, n)
    b.stage((i, j), apply("exp", b.read(0, *((j, i) if turned else (i, j)))))
    return group_of(b.done())


def sides(schedule: BlockSchedule) -> list[int]:
    return [n for _, n in schedule.blocks]


GROUPS = (
    *(product(m, n, k) for m in (1, 3, 100, symbol("m")) for n in (7, 300) for k in (5, 1000)),
    *(total(m, n, columns=c) for m in (1, 500) for n in (9, 40000, symbol("n")) for c in (0, 1)),
    *(pointwise(m, n, turned=t) for m in (3, 500) for n in (100, symbol("n")) for t in (0, 1)),
)


@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_blocks_are_powers_of_two_and_the_grid_has_all_shared_loops(number: int) -> None:
    group = GROUPS[number]
    schedule = choose_blocks(group, DEVICE)
    assert all(n > 1 and n & (n - 1) == 0 for n in sides(schedule))
    names = [n for axis in schedule.parallel for n in axis.split("+")]
    assert sorted(names) == sorted(v.name for v in group.common)
    assert schedule.warps in (4, 8, 16)
    assert schedule == choose_blocks(group, DEVICE)


def test_a_large_product_takes_large_squares() -> None:
    schedule = choose_blocks(product(4096, 4096, 4096), DEVICE)
    rows, columns, _ = sides(schedule)
    assert min(rows, columns) >= 64
    assert rows * columns == 64 * 32 * schedule.warps  # 64 accumulators per lane


def test_a_small_product_keeps_the_processors_busy() -> None:
    group = product(128, 768, 768)
    schedule = choose_blocks(group, DEVICE)
    blocks = dict(schedule.blocks)
    units = prod(-(-(as_int(extent(v)) or 0) // blocks[v.name]) for v in group.common)
    assert units >= 50


def test_short_rows_share_a_block_and_a_long_one_fills_it() -> None:
    assert sides(choose_blocks(total(100000, 64), DEVICE))[-1] == 64
    assert 1024 <= prod(sides(choose_blocks(total(100000, 64), DEVICE))) <= 8192
    assert sides(choose_blocks(total(100000, 5000), DEVICE)) == [8192]
    assert 1024 <= max(sides(choose_blocks(total(100, 50000), DEVICE))) <= 8192


def test_columns_lie_side_by_side() -> None:
    schedule = choose_blocks(total(5000, 300, columns=True), DEVICE)
    assert dict(schedule.blocks)[schedule.parallel[-1]] >= 16


def test_a_transposition_has_two_long_sides() -> None:
    assert min(sides(choose_blocks(pointwise(500, 300, turned=True), DEVICE))) >= 16
    assert len(sides(choose_blocks(pointwise(500, 300), DEVICE))) == 1


def test_rows_too_long_for_a_tile_are_refused() -> None:
    """The expression is x[m, k] w[k, n], with each row divided by its sum."""
    b = ExprBuilder(tensor(F32, 512, 64), tensor(F32, 64, 2048))
    i, j = b.iters(512, 2048)
    (c,) = b.iters(64)
    product_stage = b.stage(
        (i, j), apply("mul", b.read(0, i, c), b.read(1, c, j)), over=(c,), monoid="sum"
    )
    (r,) = b.iters(512)
    (s,) = b.iters(2048)
    rows = b.stage((r,), b.read(product_stage, r, s), over=(s,), monoid="sum")
    u, v = b.iters(512, 2048)
    b.stage((u, v), apply("div", b.read(product_stage, u, v), b.read(rows, u)))
    with pytest.raises(NotBlocks, match="longer than a block"):
        choose_blocks(group_of(b.done()), DEVICE)
