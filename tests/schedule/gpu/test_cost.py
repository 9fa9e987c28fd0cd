"""Prices of block schedules have the order that is known for devices, and never exceed peaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import apply, cast
from tcc.ir.index import IndexLike
from tcc.ir.layout import row_major
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import BF16, F32, DType, tensor
from tcc.passes.fuse.structure import Storage, build_group
from tcc.schedule.gpu.choose import choose_blocks, ranked
from tcc.schedule.gpu.cost import LAUNCH, BlockPrice, BlockPricer, Usage, streamed
from tcc.schedule.gpu.schedule import BlockProfile, BlockSchedule

H200 = BlockProfile()


def group_of(expr: Expr) -> TileGroup:
    def plain(dtype: DType, shape: tuple[IndexLike, ...]) -> Storage:
        type_ = tensor(dtype, *shape)
        return Storage(dtype, type_.shape, row_major(type_.shape))

    operands = [plain(t.dtype, t.shape) for t in expr.params if t is not None]
    return build_group(expr, operands, [plain(t.dtype, t.shape) for t in expr.types])


def product(m: int, n: int, k: int, dtype: DType = BF16) -> TileGroup:
    b = ExprBuilder(tensor(dtype, m, k), tensor(dtype, k, n))
    i, j = b.iters(m, n)
    (c,) = b.iters(k)
    x, y = cast(b.read(0, i, c), F32), cast(b.read(1, c, j), F32)
    b.stage((i, j), apply("mul", x, y), over=(c,), monoid="sum")
    return group_of(b.done())


def total(m: int, n: int, *, columns: bool = False) -> TileGroup:
    b = ExprBuilder(tensor(F32, n, m) if columns else tensor(F32, m, n))
    (i,) = b.iters(m)
    (j,) = b.iters(n)
    b.stage((i,), b.read(0, *((j, i) if columns else (i, j))), over=(j,), monoid="sum")
    return group_of(b.done())


def copy(m: int, n: int, *, turned: bool = False) -> TileGroup:
    b = ExprBuilder(tensor(F32, n, m) if turned else tensor(F32, m, n))
    i, j = b.iters(m, n)
    b.stage((i, j), apply("neg", b.read(0, *((j, i) if turned else (i, j)))))
    return group_of(b.done())


def tiles(group: TileGroup, *sides: int, warps: int = 8, stages: int = 3) -> BlockSchedule:
    """Returns a block schedule with these rows, columns and depth of a matmul."""
    (stage,) = group.stages
    names = [v.name for v in (*stage.iters, *stage.reduce)]
    return BlockSchedule(
        tuple(zip(names, sides, strict=True)), tuple(names[:2]), warps, stages
    )  # fmt: skip


def price(
    group: TileGroup,
    schedule: BlockSchedule,
    built: Usage | None = None,
    device: BlockProfile = H200,
) -> BlockPrice:
    return BlockPricer(group, device).price(schedule, built)


# ---- matmuls ------------------------------------------------------------------------------------


def test_large_products_want_large_blocks_and_multiply_most_of_the_time() -> None:
    """H200s reach 770 to 800 Tflop/s with large blocks, and 600 to 700 in Triton (cuBLAS and
    Triton's own tutorials). Blocks of 64 x 64 need four times the traffic, which exceeds the
    cache's bandwidth."""
    group = product(8192, 8192, 8192)
    large = price(group, tiles(group, 128, 256, 64))
    square = price(group, tiles(group, 128, 128, 64, warps=4))
    small = price(group, tiles(group, 64, 64, 64, warps=4))
    assert large.seconds < square.seconds < small.seconds
    assert 2 * 8192**3 / 800e12 < large.seconds < 2 * 8192**3 / 550e12
    assert small.limit == "l2"
    blocks = sorted(n for _, n in choose_blocks(group, H200).blocks)
    assert blocks == [64, 128, 256]


def test_a_wave_of_tiles_counts_as_a_full_wave() -> None:
    """133 tiles on 132 processors take twice as long as 132 tiles."""
    one, two = (product(64 * n, 256, 4096) for n in (132, 133))
    device = replace(H200, shared_all=H200.shared)
    wide = {"warps": 8, "stages": 3}
    full = price(one, tiles(one, 64, 256, 128, **wide), device=device)
    over = price(two, tiles(two, 64, 256, 128, **wide), device=device)
    assert (full.units, over.units) == (132, 133)
    assert over.compute == pytest.approx(2 * full.compute)


def test_images_of_49_positions_want_small_blocks() -> None:
    group = product(49, 512, 4608)
    blocks = dict(choose_blocks(group, H200).blocks)
    rows, columns = (blocks[v.name] for v in group.stages[0].iters)
    assert rows * columns <= 1024
    large = price(group, tiles(group, 64, 128, 64))
    assert ranked(group, H200)[0].price.seconds < 0.5 * large.seconds


def test_products_of_f32_without_matrix_units_are_slower() -> None:
    exact, halves = product(2048, 2048, 2048, F32), product(2048, 2048, 2048)
    schedule = tiles(exact, 128, 128, 32)
    assert price(exact, schedule).compute > 8 * price(halves, schedule).compute
    tf32 = replace(H200, matrix=(("f32", 494.5e12),))
    assert price(exact, schedule, device=tf32).compute < price(exact, schedule).compute / 4
    assert price(exact, schedule).seconds > 2 * 2048**3 / H200.flops


def test_a_block_that_does_not_fit_is_never_chosen() -> None:
    group = product(8192, 8192, 8192)
    deep = price(group, tiles(group, 128, 256, 128, stages=4))
    assert deep.seconds == float("inf")
    assert deep.usage.shared > H200.shared
    few = price(group, tiles(group, 256, 256, 32, warps=4))
    assert few.seconds == float("inf")
    assert few.usage.registers > H200.lane_registers
    small = replace(H200, shared=64 << 10, shared_all=64 << 10)
    assert ranked(group, small)[0].price.usage.shared <= small.shared


def test_spills_and_registers_of_the_compiler_count() -> None:
    group = product(4096, 4096, 4096)
    schedule = tiles(group, 128, 128, 64, warps=4)
    free = price(group, schedule, Usage(128, 0, 98304))
    spilling = price(group, schedule, Usage(128, 512, 98304))
    heavy = price(group, schedule, Usage(255, 0, 98304))
    assert spilling.seconds > 1.2 * free.seconds
    assert (free.resident, heavy.resident) == (2, 2)
    assert price(group, schedule, Usage(255, 0, 120000)).resident == 1


# ---- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [copy(16384, 16384), total(200000, 1000)])
def test_long_streams_run_at_the_speed_of_memory(group: TileGroup) -> None:
    best = ranked(group, H200)[0].price
    assert best.limit == "dram"
    assert best.bytes / best.seconds > 0.8 * H200.bandwidth
    assert best.bytes / best.seconds < H200.bandwidth


def test_reads_across_rows_move_whole_sectors() -> None:
    group = copy(4096, 4096, turned=True)
    (stage,) = group.stages
    names = [v.name for v in stage.iters]
    line = BlockSchedule(((names[1], 256),), tuple(names), 4, 2)
    square = BlockSchedule(tuple((n, 32) for n in names), tuple(names), 4, 2)
    assert price(group, line).l2 > 3 * price(group, square).l2


def test_few_rows_wait_and_many_do_not() -> None:
    few, many = total(16, 1 << 20), total(1 << 14, 1 << 10)
    waiting, streaming = (ranked(g, H200)[0].price for g in (few, many))
    assert waiting.limit == "latency"
    assert waiting.seconds > 2 * streaming.seconds


def test_small_kernels_cost_a_launch() -> None:
    best = ranked(copy(64, 64), H200)[0].price
    assert best.limit == "launch"
    assert LAUNCH < best.seconds < 2 * LAUNCH
    assert LAUNCH < streamed(H200, 4096) < streamed(H200, 1 << 30)
    assert streamed(H200, 1 << 30) > (1 << 30) / H200.bandwidth


def test_tiles_of_a_wave_share_their_reads() -> None:
    """Every round of blocks reads the whole right operand again, unless a large cache keeps it."""
    group = product(8192, 8192, 8192)
    schedule = tiles(group, 128, 128, 64, warps=4)
    once = (2 + 2 + 4) * 8192**2
    rounds = 64 * 64 / (132 * 2)
    bytes_read = price(group, schedule).bytes
    assert 2 * once < bytes_read < (rounds + 1) * once
    assert price(group, schedule, device=replace(H200, cache=1 << 30)).bytes <= once
