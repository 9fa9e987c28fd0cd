"""Prices of hand-written groups equal the answers that follow from the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from math import inf

import pytest
from tcc.ir.expr.scalar import Read, Scalar, StageRef, apply, cast, read
from tcc.ir.graph import Graph
from tcc.ir.index import Index, IndexLike, Var, const, iterator, var_of
from tcc.ir.tile import MemorySpace
from tcc.ir.tile.group import Access, GroupBuffer, GroupStage, TileGroup
from tcc.ir.types import BF16, F32
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Price, Pricer
from tcc.schedule.cpu.schedule import Nest, Schedule
from tcc.schedule.cpu.shipped_machines import shipped_machine
from tcc.schedule.cpu.work import contraction_flops, group_bytes, group_flops
from tcc.schedule.footprint import Stride, touch
from tcc.schedule.nest import contraction_factors, work

from tests.passes.fuse.models import MODELS
from tests.schedule.cpu.test_choose import planned

MACHINE = shipped_machine("icelake-server")
ONE_CORE = replace(MACHINE, cores=1)
HERTZ = MACHINE.ghz * 1e9


def var(index: Index) -> Var:
    variable = var_of(index)
    assert variable is not None
    return variable


def operand(size: IndexLike, *, constant: bool = False) -> GroupBuffer:
    return GroupBuffer(
        F32, const(size) if isinstance(size, int) else size, MemorySpace.INPUT, constant
    )


def result(size: int) -> GroupBuffer:
    return GroupBuffer(F32, const(size), MemorySpace.OUTPUT)


def matmul(m: int, k: int, n: int) -> TileGroup:
    """Returns y[i, j] = sum(k) x[i, k] * w[k, j], with w in panels of 64 columns."""
    i, j, d = iterator("i", m), iterator("j", n), iterator("k", k)
    x, w = read(0, (i, d), F32), read(1, (d, j), F32)
    panel = j // 64 * (64 * k) + d * 64 + j % 64
    stage = GroupStage(
        (var(i), var(j)), (var(d),), "sum", (apply("mul", x, w),),
        {x: Access(0, i * k + d), w: Access(1, panel)}, ((Access(2, i * n + j),),),
    )  # fmt: skip
    buffers = (operand(m * k), operand(k * n, constant=True), result(m * n))
    return TileGroup(buffers, (stage,), stage.iters, ())


def gemm_schedule(
    rows: int, block: int = 6, *, ahead: bool = True, runs: int = 0, vector: str | None = "j"
) -> Schedule:
    """Returns a schedule with tiles of `rows` rows and a panel, in which blocks of rows are
    multiplied by the panel."""
    named = (("k", runs),) if runs else ()
    order = ("j", "k", "i") if runs else ("j", "i")
    nest = Nest((0,), order, (("i", block), ("j", 64), ("k", 4)), vector, named, ahead)
    return Schedule((("i", rows), ("j", 64)), ("j", "i"), (nest,))


def pointwise(count: int, function: str | None = None) -> TileGroup:
    """Returns y[i] = x[i] + x[i], or a function of x[i]."""
    i = iterator("i", count)
    x = read(0, (i,), F32)
    body: Scalar = apply("add", x, x) if function is None else apply(function, x)
    stage = GroupStage(
        (var(i),), (), None, (body,), {x: Access(0, i)}, ((Access(1, i),),)
    )  # fmt: skip
    return TileGroup((operand(count), result(count)), (stage,), stage.iters, ())


def map_schedule(unit: int) -> Schedule:
    return Schedule((("i", unit),), ("i",), (Nest((0,), ("i",), (("i", 64),), "i"),))


def priced(group: TileGroup, schedule: Schedule, *, machine: object = MACHINE) -> Price:
    assert machine is MACHINE or machine is ONE_CORE
    return Pricer(MACHINE if machine is MACHINE else ONE_CORE).price(group, schedule)


# ---- counts -------------------------------------------------------------------------------------


def test_operations_and_bytes_are_exact() -> None:
    group = matmul(128, 768, 3072)
    assert group_flops(group) == contraction_flops(group) == 2 * 128 * 768 * 3072
    assert group_bytes(group) == 4 * (128 * 768 + 768 * 3072 + 128 * 3072)


def test_windows_that_overlap_count_their_bytes_once() -> None:
    i, t = iterator("i", 100), iterator("t", 5)
    x = read(0, (i + t,), F32)
    stage = GroupStage((var(i),), (var(t),), "sum", (x,), {x: Access(0, i + t)}, ((Access(1, i),),))
    group = TileGroup((operand(1000), result(100)), (stage,), stage.iters, ())
    assert group_bytes(group) == 4 * (104 + 100)
    assert group_flops(group) == 500
    assert contraction_flops(group) == 0


def test_a_gather_reads_as_many_rows_as_it_has_indices() -> None:
    i, j = iterator("i", 7), iterator("j", 64)
    row = iterator("row", 50_000)
    at = read(0, (i,), F32)
    x = read(1, (row, j), F32, indirect=((var(row), at),))
    stage = GroupStage(
        (var(i), var(j)), (), None, (x,),
        {at: Access(0, i), x: Access(1, row * 64 + j)}, ((Access(2, i * 64 + j),),),
    )  # fmt: skip
    buffers = (operand(7), operand(50_000 * 64, constant=True), result(7 * 64))
    group = TileGroup(buffers, (stage,), stage.iters, ())
    assert group_bytes(group) == 4 * (7 + 7 * 64 + 7 * 64)


# ---- contractions -------------------------------------------------------------------------------


def bf16_matmul(m: int, k: int, n: int) -> TileGroup:
    """Returns `matmul` in bf16, where pairs of panel rows are interleaved."""
    i, j, d = iterator("i", m), iterator("j", n), iterator("k", k)
    x, w = read(0, (i, d), BF16), read(1, (d, j), BF16)
    panel = j // 64 * (64 * k) + d // 2 * 128 + j % 64 * 2 + d % 2
    stage = GroupStage(
        (var(i), var(j)), (var(d),), "sum", (apply("mul", cast(x, F32), cast(w, F32)),),
        {x: Access(0, i * k + d), w: Access(1, panel)}, ((Access(2, i * n + j),),),
    )  # fmt: skip
    buffers = matmul(m, k, n).buffers
    narrow = (*(replace(b, dtype=BF16) for b in buffers[:2]), buffers[2])
    return TileGroup(narrow, (stage,), stage.iters, ())


def test_pairs_of_bf16_are_multiplied_in_half_the_time() -> None:
    schedule = gemm_schedule(128)
    one = priced(matmul(128, 768, 3072), schedule)
    group = bf16_matmul(128, 768, 3072)
    two = Pricer(MACHINE, pairs=True).price(group, schedule)
    assert two.compute == pytest.approx(one.compute / 2, rel=0.05)
    # Words that hold both rows are loaded as vectors, so that there are half as many loads.
    assert two.ports == pytest.approx(one.ports / 2, rel=0.05)
    assert two.dram == pytest.approx(one.dram / 2, rel=0.1)
    # Without the instruction, each row is widened and multiplied like f32.
    unpaired = Pricer(MACHINE).price(group, schedule)
    assert unpaired.compute == pytest.approx(one.compute, rel=0.01)
    assert unpaired.ports == pytest.approx(one.ports, rel=0.01)


def test_a_large_product_runs_at_the_peak() -> None:
    # A strip of rows stays in the L2 cache, beside the current panel and the next panel, while all
    # panels stream through.
    strips = replace(gemm_schedule(128), parallel=("i", "j"))
    group = matmul(768, 768, 2048)
    price = priced(group, strips)
    assert price.seconds == pytest.approx(group_flops(group) / MACHINE.peak, rel=0.2)
    assert price.seconds == pytest.approx(price.compute + price.l3, rel=0.01)


def test_one_row_of_weights_from_memory_goes_at_memorys_pace() -> None:
    price = priced(matmul(1, 768, 49152), gemm_schedule(1, 1))
    weights = 4 * 768 * 49152
    assert price.dram == pytest.approx(weights / MACHINE.memory.read_all, rel=0.01)
    assert price.seconds == pytest.approx(price.dram, rel=0.01)
    in_order = priced(matmul(1, 768, 49152), gemm_schedule(1, 1, ahead=False))
    assert in_order.dram * MACHINE.memory.in_order == pytest.approx(price.dram, rel=0.01)


def test_weights_that_stay_in_the_last_cache_are_not_read_from_memory() -> None:
    group = matmul(1, 768, 768)
    cold = Pricer(MACHINE).price(group, gemm_schedule(1, 1))
    warm = Pricer(MACHINE, constants=4 * 768 * 768).price(group, gemm_schedule(1, 1))
    assert cold.dram > 0
    assert warm.dram == 0
    assert warm.seconds < cold.seconds


def test_two_rows_in_a_block_are_bound_by_loads() -> None:
    # Each step loads four vectors and two broadcasts for eight multiply-adds.
    group = matmul(240, 256, 64)
    two, six = (priced(group, gemm_schedule(120, rows)) for rows in (2, 6))
    assert two.ports * HERTZ >= 60 * 256 * 6 / MACHINE.loads
    assert two.ports > two.compute
    assert six.ports < six.compute


def test_few_sums_wait_for_the_latency_of_the_unit() -> None:
    # Without a vector, one multiply-add is in flight at a time.
    nest = Nest((0,), (), (), None)
    price = priced(matmul(1, 4096, 1), Schedule((), (), (nest,)), machine=ONE_CORE)
    assert price.compute * HERTZ == pytest.approx(4096 * MACHINE.fma_latency, rel=0.01)


def test_rows_that_do_not_divide_cost_as_many_blocks_as_they_need() -> None:
    # 49 rows are nine blocks of 5 or 6 rows, so that nothing is computed twice.
    uneven = priced(matmul(49, 512, 2048), gemm_schedule(49))
    even = priced(matmul(48, 512, 2048), gemm_schedule(48))
    assert uneven.compute / even.compute == pytest.approx(49 / 48, rel=0.02)


def test_columns_beyond_a_vector_cost_a_whole_one() -> None:
    odd, full = (priced(matmul(120, 256, n), gemm_schedule(60)).compute for n in (65, 80))
    assert odd == pytest.approx(full, rel=1e-6)


def test_a_panel_that_the_first_cache_cannot_hold_streams_from_the_second() -> None:
    # 256 x 64 f32 take 64 KiB: every block of six rows reads the panel again.
    price = priced(matmul(768, 256, 64), gemm_schedule(384))
    blocks = 768 // 6 / 2
    panel = 256 * 64 * 4
    assert price.l2 * MACHINE.l2.read * HERTZ >= blocks * panel
    small = priced(matmul(768, 64, 64), gemm_schedule(384))
    assert small.l2 * 4 < price.l2


def test_more_rows_in_a_tile_read_the_weights_less_often() -> None:
    # 6 MiB of weights stream through the L2 cache once for each strip of rows.
    group = matmul(512, 512, 3072)
    by_rows = [
        Schedule((("i", rows), ("j", 3072)), ("i",), gemm_schedule(rows).nests)
        for rows in (16, 32, 64)
    ]
    traffic = [priced(group, schedule).l3 for schedule in by_rows]
    assert traffic[0] > 1.8 * traffic[1] > 3.2 * traffic[2]


def test_long_reductions_fit_by_runs() -> None:
    # A panel of 8192 steps takes 2 MiB; all rows of a tile use a K-block of 256 steps.
    group = matmul(252, 8192, 128)
    undivided, runs = (priced(group, gemm_schedule(252, runs=r)) for r in (0, 256))
    assert runs.l3 < undivided.l3 / 5
    assert runs.ports > undivided.ports


def test_constants_come_from_the_first_cache_that_keeps_all_of_them() -> None:
    """Each tile of rows reads 2.4 MB of weights again if the L2 cache does not keep them; data that
    cycle through a cache have a share of it."""
    group, schedule, weight_bytes = matmul(96, 768, 768), gemm_schedule(24), 4 * 768 * 768
    totals = (MACHINE.l2.size // 2, MACHINE.l3.size // 2, MACHINE.l3.size, None)
    small, medium, most, large = (Pricer(MACHINE, n).price(group, schedule) for n in totals)
    rate = MACHINE.l3.read * HERTZ * MACHINE.cores
    assert medium.l3 - small.l3 >= weight_bytes / rate
    assert medium.l3 == most.l3 == large.l3
    assert small.dram == medium.dram
    # With as many bytes as the last cache, about half of them come from memory.
    assert most.dram - medium.dram == pytest.approx((large.dram - medium.dram) / 2, rel=0.2)
    assert small.seconds < medium.seconds <= most.seconds <= large.seconds


def test_a_cold_panel_that_nobody_fetches_ahead_keeps_the_first_rows_waiting() -> None:
    group = matmul(48, 1024, 4096)
    ahead, late = (priced(group, gemm_schedule(48, ahead=a)) for a in (True, False))
    busy = ahead.compute + ahead.l3
    assert max(ahead.compute, ahead.dram) <= ahead.seconds <= 1.05 * max(busy, ahead.dram)
    assert late.seconds > ahead.seconds
    assert late.seconds <= 1.05 * busy + late.dram + 1e-6


def test_the_next_panel_takes_room_beside_the_one_in_use() -> None:
    # A panel of 2560 steps takes 640 KiB: one panel fits the L2 cache, but two do not.
    group = matmul(96, 2560, 2048)
    ahead, late = (priced(group, gemm_schedule(96, ahead=a)) for a in (True, False))
    assert ahead.l3 > 1.5 * late.l3


def test_ports_that_suffice_slow_arithmetic_where_they_are_as_busy() -> None:
    # 12 rows x 2 vectors need 14 loads; there are ports for them in 11 of 12 cycles of arithmetic.
    price = priced(matmul(768, 256, 2048), _resized(gemm_schedule(96, 12), 32), machine=ONE_CORE)
    assert 0.8 * price.compute < price.ports < price.compute
    assert price.seconds - price.l3 > 1.08 * price.compute


def _resized(schedule: Schedule, panel: int) -> Schedule:
    (nest,) = schedule.nests
    blocks = tuple((n, panel if n == "j" else size) for n, size in nest.blocks)
    sizes = ("i", 96), ("j", panel)
    return replace(schedule, tile_sizes=sizes, nests=(replace(nest, blocks=blocks),))


# ---- everything else ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "rate"),
    [
        (1 << 15, MACHINE.l2),  # 256 KiB, which the previous kernel left in the L2 caches
        (1 << 20, MACHINE.l3),  # 8 MiB
    ],
)
def test_a_map_goes_at_the_pace_of_the_cache_its_operands_lie_in(count: int, rate: object) -> None:
    price = priced(pointwise(count), map_schedule(4096))
    assert rate in (MACHINE.l2, MACHINE.l3)
    cache = MACHINE.l2 if rate is MACHINE.l2 else MACHINE.l3
    bytes_ = 4 * count / 2  # for one of two cores, read and written
    least = (bytes_ / cache.read + bytes_ / cache.write) / HERTZ
    assert 0.9 * least < price.seconds < 1.5 * least + MACHINE.fork


def test_a_cache_loses_more_the_more_streams_through_it() -> None:
    # A stream evicts the content of an L2 cache gradually, not at once when it exceeds the size.
    pace = [priced(pointwise(1 << n), map_schedule(4096)).l3 / (1 << n) for n in range(14, 21)]
    assert all(0 < a < b < 2.1 * a for a, b in pairwise(pace))


def test_a_map_larger_than_the_caches_goes_at_memorys_pace() -> None:
    count = 1 << 23
    price = priced(pointwise(count), map_schedule(65536))
    memory = MACHINE.memory
    read = memory.read_all * memory.in_order
    map_seconds = 4 * count * (1 / read + 1 / memory.write_all)
    assert price.dram == pytest.approx(map_seconds * (1 - MACHINE.l3.size / (8 * count)))
    assert price.seconds == pytest.approx(price.dram, rel=0.01)


def planes(count: int, size: int, apart: int, *, stores: bool) -> TileGroup:
    """Returns y[k, i] = k + x[i], or y[i] = sum(k) x[k, i], with k unrolled and planes `apart`
    elements apart."""
    i = iterator("i", size)
    one, many = Access(0 if stores else 1, i), [i + k * apart for k in range(count)]
    if stores:
        x = read(0, (i,), F32)
        body = tuple(apply("add", x, apply("neg", x)) for _ in many)
        accesses, to = {x: one}, tuple((Access(1, at),) for at in many)
    else:
        reads = [read(0, (at,), F32) for at in many]
        body = (reduce(lambda a, b: apply("add", a, b), reads),)
        accesses = {r: Access(0, at) for r, at in zip(reads, many, strict=True)}
        to = ((one,),)
    stage = GroupStage((var(i),), (), None, body, accesses, to)
    plane, line = count * apart + size, size
    buffers = (operand(line if stores else plane), result(plane if stores else line))
    return TileGroup(buffers, (stage,), stage.iters, ())


@pytest.mark.parametrize("stores", [False, True])
def test_planes_that_a_point_touches_all_move(stores: bool) -> None:
    group = planes(36, 8192, 8192 + 16, stores=stores)
    assert group_bytes(group) == 4 * 37 * 8192
    price = priced(group, map_schedule(64), machine=ONE_CORE)
    # Each vector of points takes a vector of each plane.
    port = MACHINE.stores if stores else MACHINE.loads
    assert price.ports * HERTZ == pytest.approx(36 * 8192 / 16 / port)


def test_neighbours_that_a_point_reads_move_once() -> None:
    assert group_bytes(planes(9, 8192, 1, stores=False)) == 4 * (2 * 8192 + 8)


def test_places_in_two_directions_are_lines_of_lines() -> None:
    loop = var(iterator("i", 4))
    image = [100 * y + x for y in range(6) for x in range(6)]
    steps = (Stride(loop, 4),)  # tiles of 6 x 6, at a distance of 4
    lines = touch(0, steps, store=False, size=4, buffer_bytes=inf, bases=image)
    assert (lines.times, lines.bytes_in({loop: 4}, 1)) == (36, 4 * 6 * 18)
    odd = touch(0, steps, store=False, size=4, buffer_bytes=inf, bases=[0, 1, 50])
    assert odd.bytes_in({loop: 1}, 1) == 4 * 3


def test_functions_cost_their_row_of_the_table() -> None:
    count = 1 << 12
    price = priced(pointwise(count, "tanh"), map_schedule(count), machine=ONE_CORE)
    assert price.compute * HERTZ == pytest.approx(count / 16 * MACHINE.functions["tanh"])


def test_library_functions_cost_a_call() -> None:
    count = 1 << 12
    price = priced(pointwise(count, "acosh"), map_schedule(count), machine=ONE_CORE)
    assert price.compute * HERTZ == pytest.approx(count / 16 * MACHINE.call)


def test_a_transposed_operand_costs_a_gather() -> None:
    i, j = iterator("i", 64), iterator("j", 64)
    x = read(0, (j, i), F32)

    def group(offset: Index) -> TileGroup:
        stage = GroupStage(
            (var(i), var(j)), (), None, (x,), {x: Access(0, offset)}, ((Access(1, i * 64 + j),),)
        )
        return TileGroup((operand(4096), result(4096)), (stage,), stage.iters, ())

    schedule = Schedule((), (), (Nest((0,), ("i", "j"), (("j", 64),), "j"),))
    straight, across = (priced(group(o), schedule).ports for o in (i * 64 + j, j * 64 + i))
    assert across > 5 * straight


def test_three_tiles_on_two_threads_take_as_long_as_four() -> None:
    three, four = (priced(matmul(128 * n, 512, 64), gemm_schedule(128)) for n in (3, 4))
    assert three.imbalance == pytest.approx(4 / 3)
    assert four.imbalance == 1
    assert three.compute == pytest.approx(four.compute)


def test_a_thread_with_the_wide_tile_ends_last() -> None:
    # 96 columns are a tile of 64 and a tile of 32.
    price = priced(matmul(120, 256, 96), gemm_schedule(120))
    assert price.imbalance == pytest.approx(64 / 48)


def test_one_tile_runs_on_one_thread_and_needs_no_fork() -> None:
    price = priced(pointwise(16), map_schedule(16))
    assert price.seconds < MACHINE.fork
    assert price.seconds >= MACHINE.launch


def doubled(rows: int) -> TileGroup:
    """Returns a stage that reads the results of a matmul with `rows` rows."""
    base = matmul(rows, 64, 256)
    (first,) = base.stages
    i, j = (iterator(v.name, rows if v.name == "i" else 256) for v in first.iters)
    inner = read(StageRef(0), (i, j), F32)
    second = GroupStage(first.iters, (), None, (apply("max", inner, inner),), {}, first.stores)
    return replace(base, stages=(replace(first, stores=((),)), second))


def test_stages_in_one_nest_exchange_blocks_in_registers() -> None:
    def pair(nests: tuple[Nest, ...]) -> Price:
        return priced(doubled(240), Schedule((("i", 120),), ("i",), nests))

    blocks = (("i", 6), ("j", 64))
    together = pair((Nest((0, 1), ("j", "i"), blocks, "j"),))
    separate = pair((Nest((0,), ("j", "i"), blocks, "j"), Nest((1,), ("j", "i"), blocks, "j")))
    assert separate.ports >= together.ports
    assert separate.l2 > together.l2


def test_prices_are_a_function_of_their_arguments() -> None:
    group, schedule = matmul(128, 768, 768), gemm_schedule(128)
    pricer = Pricer(MACHINE)
    assert pricer.price(group, schedule) == pricer.price(group, schedule)
    assert Pricer(MACHINE).price(group, schedule) == pricer.price(group, schedule)


@pytest.mark.parametrize("runs", [0, 8])
def test_a_sum_of_nothing_has_a_price(runs: int) -> None:
    group = matmul(4, 0, 64)
    price = priced(group, gemm_schedule(4, runs=runs))
    assert group_flops(group) == 0
    assert 0 < price.seconds < priced(matmul(4, 4096, 64), gemm_schedule(4, runs=8)).seconds


@pytest.mark.parametrize(("m", "n"), [(0, 64), (4, 0), (0, 0)])
def test_no_results_have_a_price(m: int, n: int) -> None:
    group = matmul(m, 16, n)
    price = priced(group, gemm_schedule(max(1, m)))
    assert group_flops(group) == 0
    assert 0 < price.seconds <= priced(matmul(4, 16, 64), gemm_schedule(4)).seconds


def test_reads_of_symbolic_sizes_have_a_price() -> None:
    group = matmul(64, 64, 64)
    (stage,) = group.stages
    (x, *_) = stage.accesses
    assert isinstance(x, Read)
    length = iterator("length", 4096)
    open_row = replace(stage, accesses={**stage.accesses, x: Access(0, length * iterator("i", 64))})
    assert priced(replace(group, stages=(open_row,)), gemm_schedule(32)).seconds > 0


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_no_price_is_below_the_peak_of_the_core(
    build: Callable[[], Graph],
) -> None:
    pricer = Pricer(MACHINE)
    for group, schedule in planned(build(), CoreModel(MACHINE.lanes, MACHINE.registers)):
        price = pricer.price(group, schedule)
        sums = [2 * work(s) for s in group.stages if contraction_factors(s) is not None]
        assert price.seconds >= sum(sums) / MACHINE.peak
        assert price.seconds >= MACHINE.launch
        assert price.imbalance >= 1
        assert min(price.compute, price.ports, price.l2, price.l3, price.dram) >= 0
        assert price.seconds < 1


# ---- alignment of vectors -----------------------------------------------------------------------


def window(row: int, *, along: int = 1) -> tuple[TileGroup, Schedule]:
    """Returns y[i, j] = x[i, j] + x[i, j], with rows of x `row` apart and neighbours of y `along`
    apart."""
    i, j = iterator("i", 64), iterator("j", 64)
    x = read(0, (i, j), F32)
    stage = GroupStage(
        (var(i), var(j)), (), None, (apply("add", x, x),),
        {x: Access(0, i * row + j)}, ((Access(1, i * 64 + j if along == 1 else i + j * along),),),
    )  # fmt: skip
    group = TileGroup((operand(64 * row), result(64 * along)), (stage,), stage.iters, ())
    return group, Schedule((("j", 64),), ("i", "j"), (Nest((0,), (), (("j", 64),), "j"),))


def test_vectors_across_lines_take_two_loads() -> None:
    aligned, odd, half = (priced(*window(row)).ports for row in (64, 65, 72))
    # Aligned stores bound the first case: one per cycle; loads take a little more than one cycle.
    assert aligned * HERTZ == pytest.approx(64 * 4 / 2 / MACHINE.stores, rel=0.01)
    assert odd * HERTZ == pytest.approx(64 * 4 / 2 * (2 - 1 / 16) / MACHINE.loads, rel=0.01)
    assert half * HERTZ == pytest.approx(64 * 4 / 2 * 1.5 / MACHINE.loads, rel=0.01)


def test_vectors_across_lines_come_slower_from_the_second_cache() -> None:
    """In rows of 72 elements, half of the vectors lie in two lines."""
    slow = replace(MACHINE, crossing=3.0)
    for row, times in ((64, 1.0), (72, 2.0)):
        group, schedule = window(row)
        usual, slower = (
            Pricer(replace(machine, l2=replace(machine.l2, write=1e9))).price(group, schedule).l2
            for machine in (replace(MACHINE, crossing=1.0), slow)
        )
        assert slower == pytest.approx(usual * times, rel=0.01)


def test_a_lane_with_a_line_of_its_own_is_stored_alone() -> None:
    aligned, apart_ports = (priced(*window(64, along=n)).ports for n in (1, 64))
    assert apart_ports == pytest.approx(aligned * 16 * 2, rel=0.01)


def rows_summed(count: int, *lengths: int) -> tuple[TileGroup, Schedule]:
    """Returns y[i] = sum x[i, ...], with lanes along the last loop."""
    i, *inner = (iterator(f"k{n}", size) for n, size in enumerate((count, *lengths)))
    offset: Index = i
    for k, size in zip(inner, lengths, strict=True):
        offset = offset * size + k
    x = read(0, (offset,), F32)
    loops = tuple(map(var, inner))
    stage = GroupStage((var(i),), loops, "sum", (x,), {x: Access(0, offset)}, ((Access(1, i),),))
    size = count * reduce(lambda a, b: a * b, lengths)
    group = TileGroup((operand(size), result(count)), (stage,), stage.iters, ())
    last = loops[-1].name
    return group, Schedule((), ("k0",), (Nest((0,), (), ((last, 64),), last),))


def test_short_sums_along_vectors_overlap() -> None:
    short, long = (priced(*rows_summed(64, n)).compute * HERTZ / 32 for n in (32, 4096))
    assert short < 5 * MACHINE.fma_latency  # latency, drain, and 70 for a mispredicted end
    assert long >= 64 * MACHINE.fma_latency


def test_vectors_of_a_sum_along_them_do_not_wait_for_one_another() -> None:
    group, schedule = rows_summed(64, 4096)
    one = replace(schedule, nests=(Nest((0,), (), (("k1", 16),), "k1"),))
    waits, four = (priced(group, s).compute * HERTZ / 32 for s in (one, schedule))
    assert waits - four == pytest.approx(256 * MACHINE.fma_latency * 3 / 4, rel=0.01)


def test_short_windows_do_not_wait_for_their_last_value() -> None:
    def cycles(taps: int) -> float:
        """Returns the cycles of each vector of y[i] = max x[i, k]."""
        i, k = iterator("i", 1024), iterator("k", taps)
        x = read(0, (k, i), F32)
        stage = GroupStage(
            (var(i),), (var(k),), "max", (x,), {x: Access(0, k * 1024 + i)}, ((Access(1, i),),)
        )
        group = TileGroup((operand(taps * 1024), result(1024)), (stage,), stage.iters, ())
        schedule = Schedule((), (), (Nest((0,), (), (("i", 16),), "i"),))
        return priced(group, schedule, machine=ONE_CORE).compute * HERTZ / 64 - MACHINE.loop

    # A NaN test and the maximum: two instructions per cycle.
    assert cycles(25) == pytest.approx(25 * 2 / MACHINE.fmas)
    assert cycles(64) == pytest.approx(64 * MACHINE.fma_latency)


def test_short_sums_of_single_elements_overlap() -> None:
    def cycles(count: int) -> float:
        group, schedule = rows_summed(64, count)
        single = replace(schedule, nests=(Nest((0,), (), ()),))
        return priced(group, single).compute * HERTZ / 32

    assert cycles(4) < MACHINE.fma_latency  # no accumulator waits for another
    assert cycles(4096) >= 4096 * MACHINE.fma_latency


def test_every_entry_of_an_inner_loop_costs() -> None:
    flat, nested = (priced(*rows_summed(64, *n)).compute * HERTZ / 32 for n in ((256,), (8, 32)))
    assert nested - flat == pytest.approx(7 * 10, rel=0.01)


def turned(rows: int, apart: int) -> tuple[TileGroup, Schedule]:
    """Returns y[j, i] = x[i, j] of 64 columns, in blocks of all rows; neighbours along j lie
    `apart` elements apart in y."""
    i, j = iterator("i", rows), iterator("j", 64)
    x = read(0, (i, j), F32)
    stage = GroupStage(
        (var(i), var(j)), (), None, (x,), {x: Access(0, i * 64 + j)}, ((Access(1, j * apart + i),),)
    )  # fmt: skip
    group = TileGroup((operand(rows * 64), result(apart * 64)), (stage,), stage.iters, ())
    return group, Schedule((), (), (Nest((0,), (), (("i", rows), ("j", 64)), "j"),))


def test_rows_that_lie_side_by_side_are_stored_as_vectors() -> None:
    dense, gaps = (priced(*turned(4, gap), machine=ONE_CORE) for gap in (4, 6))
    assert dense.ports * HERTZ == pytest.approx(4 * 64 / 16 / MACHINE.stores)
    assert gaps.ports * HERTZ == pytest.approx(64 / MACHINE.stores)  # four elements per lane
    assert dense.compute * HERTZ == pytest.approx(4 * 64 / 16 * 2)  # two exchanges of 4 rows
