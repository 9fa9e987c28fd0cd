"""The scheduler's choices for the kernels of small networks suit the machine, by counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from tcc.ir.expr import ExprBuilder, extent
from tcc.ir.expr.scalar import apply
from tcc.ir.graph import Graph
from tcc.ir.index import IndexLike, as_int, symbol
from tcc.ir.layout import row_major
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import F32, F64, I64, U8, DType, tensor
from tcc.ops.algebra.levels import LevelsAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.tile.cpu.lower import lower
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.nest import anchor, contraction_factors

from tests.passes.fuse.models import MODELS, Model
from tests.passes.placing import place_graph

AVX512, AVX2, SSE = CoreModel(16, 32), CoreModel(8, 16), CoreModel(4, 16)
MACHINES = pytest.mark.parametrize("core", [AVX512, AVX2, SSE], ids=["avx512", "avx2", "sse"])


def planned(graph: Graph, core: CoreModel) -> Iterator[tuple[TileGroup, Schedule]]:
    placed, planner = place_graph(graph), CoreChooser(core)
    for step in placed.steps:
        assert step.kernel is not None
        bound = planner.plan(step.kernel, placed.layouts, graph.constants).bound
        yield bound.group, bound.schedule


def only(graph: Graph, core: CoreModel = AVX512) -> tuple[TileGroup, Schedule]:
    """Returns the kernel with the most work, and its schedule."""
    return max(planned(graph, core), key=lambda pair: _work(pair[0]))


def _work(group: TileGroup) -> int:
    return max(prod(as_int(extent(v)) or 1 for v in (*s.iters, *s.reduce)) for s in group.stages)


def registers_used(group: TileGroup, schedule: Schedule, lanes: int) -> int:
    """Returns the registers of the contraction's innermost block: accumulators, one step of an
    operand, and one register for the other operand."""
    stage = anchor(group)
    lanes_of_type = lanes * 4 // stage.body[0].dtype.bytes
    nest = schedule.nest(group.stages.index(stage))
    blocks = {v: nest.block(v.name) for v in stage.iters}
    (vector,) = (v for v in (*stage.iters, *stage.reduce) if v.name == nest.vector)
    if vector in stage.reduce:  # a vector of partial sums for every pair
        block_sizes = [b for b in blocks.values() if b > 1] or [1]
        return prod(block_sizes) + min(block_sizes) + 1
    vectors = -(-blocks[vector] // lanes_of_type)
    rows = prod(b for v, b in blocks.items() if v is not vector)
    return rows * vectors + vectors + 1


def matmul(
    rows: IndexLike, depth: int, columns: int, dtype: DType = F32, *, constant: bool = True
) -> Graph:
    m = Model("matmul")
    x = m.builder.input("x", tensor(dtype, rows, depth))
    w = (
        m.weight(depth, columns)
        if constant
        else m.builder.input("w", tensor(dtype, depth, columns))
    )
    return m.finish(m.op("matmul", x, w))


def scores(width: int) -> Graph:
    """Returns queries times keys, where both operands run along the reduction."""
    m = Model("scores")
    q, k = m.input("q", 2, 64, width), m.input("k", 2, 64, width)
    return m.finish(m.op("matmul", q, m.transpose(k, 0, 2, 1)))


def conv(channels: int, out: int, size: int, group: int = 1) -> Graph:
    m = Model("conv")
    x = m.input("x", 1, channels, 28, 28)
    first = m.op("relu", m.conv(x, channels, 1))
    return m.finish(m.op("relu", m.conv(first, out, size, pad=size // 2, group=group)))


def gemm(trans_b: bool) -> Graph:
    m = Model("gemm")
    x = m.input("x", 24, 100)
    w = m.transpose(m.weight(70, 100), 1, 0) if trans_b else m.weight(100, 70)
    return m.finish(m.op("gemm", x, w, m.weight(70)))


CONTRACTIONS = {
    "matmul": lambda: matmul(64, 256, 512),
    "narrow": lambda: matmul(64, 256, 24),
    "column": lambda: matmul(64, 256, 1),
    "row": lambda: matmul(1, 256, 512),
    "open": lambda: matmul(symbol("n", 1), 256, 512),
    "inputs": lambda: matmul(64, 256, 512, constant=False),
    "double": lambda: matmul(64, 256, 512, F64, constant=False),
    "gemm": lambda: gemm(False),
    "gemm_transposed": lambda: gemm(True),
    "scores": lambda: scores(64),
    "conv1": lambda: conv(64, 128, 1),
    "conv3": lambda: conv(32, 64, 3),
    "depthwise": lambda: conv(32, 32, 3, group=32),
    "grouped": lambda: conv(32, 32, 3, group=2),
}


@MACHINES
@pytest.mark.parametrize("name", list(CONTRACTIONS))
def test_contraction_blocks_fit_the_register_file(name: str, core: CoreModel) -> None:
    group, schedule = only(CONTRACTIONS[name](), core)
    assert contraction_factors(anchor(group)) is not None
    if schedule.nest(group.stages.index(anchor(group))).vector is not None:
        assert registers_used(group, schedule, core.lanes) <= core.count


@MACHINES
@pytest.mark.parametrize("name", ["matmul", "open", "inputs", "gemm_transposed", "conv3", "scores"])
def test_large_contractions_use_at_least_half_of_the_register_file(
    name: str, core: CoreModel
) -> None:
    """With fewer accumulators, the multipliers would wait."""
    group, schedule = only(CONTRACTIONS[name](), core)
    assert registers_used(group, schedule, core.lanes) >= core.count // 2


@pytest.mark.parametrize("l1", [32 << 10, 48 << 10])
@pytest.mark.parametrize("depth", [512, 768, 3072])
def test_runs_of_a_panel_fit_the_first_level_cache(l1: int, depth: int) -> None:
    group, schedule = only(matmul(64, depth, 512), CoreModel(16, 32, l1=l1))
    nest = schedule.nest(group.stages.index(anchor(group)))
    (run,) = (n for _, n in nest.k_blocks)
    assert l1 // 3 <= run * nest.block(nest.vector or "") * 4 <= l1


def test_short_sums_do_not_wait() -> None:
    group, schedule = only(matmul(64, 256, 512), CoreModel(16, 32))
    assert not schedule.nest(group.stages.index(anchor(group))).k_blocks


# ---- the vector loop ----------------------------------------------------------------------------


def vector_size(group: TileGroup, schedule: Schedule) -> int | None:
    """Returns the extent of the vector loop of the stage with the most work."""
    stage = anchor(group)
    nest = schedule.nest(group.stages.index(stage))
    if nest.along:  # a nest has the names of its reduction
        stage = group.stages[nest.stages[0]]
    (var,) = (v for v in (*stage.iters, *stage.reduce) if v.name == nest.vector)
    return as_int(extent(var))


def pointwise(*names: str, shape: tuple[int, ...] = (6, 10, 50)) -> Graph:
    m = Model("pointwise")
    value = m.input("x", *shape)
    for name in names:
        attrs = AxisAttrs(len(shape) - 1) if name == "softmax" else None
        value = m.op(name, value, attrs=attrs)
    return m.finish(value)


def transposed_copy(perm: tuple[int, ...]) -> Graph:
    m = Model("transposed_copy")
    x = m.input("x", 8, 300, 64)
    return m.finish(m.transpose(x, *perm))


@pytest.mark.parametrize(
    ("graph", "size"),
    [
        (matmul(64, 256, 512), 512),
        (gemm(True), 70),
        (conv(32, 48, 3), 48),
        # The kernel reads and writes the caller's arrays, in which channels lie apart; values
        # between its stages have channels last.
        (conv(32, 32, 3, group=32), 32),
        (scores(80), 80),
        (pointwise("exp", "relu"), 6 * 10 * 50),
        (pointwise("softmax"), 50),
        (transposed_copy((1, 0, 2)), 64),
    ],
    ids=["matmul", "gemm", "conv", "depthwise", "scores", "exp", "softmax", "rows"],
)
def test_vectors_run_where_neighbours_lie_side_by_side(graph: Graph, size: int) -> None:
    assert vector_size(*only(graph)) == size


def test_layer_normalization_reduces_along_its_rows() -> None:
    group, schedule = only(MODELS["norm_residual"](), AVX512)
    for number, stage in enumerate(group.stages):
        vector = schedule.nest(number).vector
        (var,) = (v for v in (*stage.iters, *stage.reduce) if v.name == vector)
        assert as_int(extent(var)) == 10


@MACHINES
def test_blocks_are_at_most_four_vectors(core: CoreModel) -> None:
    _, schedule = only(pointwise("exp"), core)
    (nest,) = schedule.nests
    assert nest.vector is not None
    assert nest.block(nest.vector) == 4 * core.lanes


# ---- loop order ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "columns", "panel"),
    [
        (3136, 256, 64),  # whole panels, many tiles: the widest
        (3136, 144, 48),  # three panels of 48, not 64, 64 and a vector of 16
        (49, 96, 48),  # one panel for each of two cores, not 64 for one core and 32 for the other
        (7, 960, 48),  # seven rows at once fit 48 columns; 64 would fit only four and three rows
        (3136, 24, 24),  # no wider than the result
        (1, 1000, 64),  # for one row, the latency of sums needs many accumulators
    ],
)
def test_panels_divide_the_columns_and_the_work(rows: int, columns: int, panel: int) -> None:
    _, schedule = only(matmul(rows, 64, columns))
    vector = schedule.nests[0].vector
    assert vector is not None
    assert schedule.nests[0].block(vector) == schedule.tile_size(vector) == panel


def test_cores_share_rows_where_the_weights_are_small() -> None:
    """The longer of the loops without vectors is the outer loop."""
    assert outermost(matmul(784, 64, 384)) == 784
    assert outermost(matmul(49, 960, 960)) == 960


def outermost(graph: Graph) -> int | None:
    group, schedule = only(graph)
    loops = {v.name: v for v in group.common}
    return as_int(extent(loops[schedule.parallel[0]]))


def test_the_larger_operand_is_walked_once() -> None:
    """Panels of large weights stay in the cache for all rows; small weights stay for all panels."""
    assert outermost(matmul(128, 768, 3072)) == 3072
    assert outermost(matmul(20000, 256, 512)) == 20000


def test_schedules_name_loops_of_their_group() -> None:
    for make in (*MODELS.values(), *CONTRACTIONS.values()):
        for group, schedule in planned(make(), AVX512):
            common = {v.name for v in group.common}
            assert len(set(schedule.parallel)) == len(schedule.parallel)
            assert set(schedule.parallel) <= common
            order = [n for nest in schedule.nests for n in nest.all_stages]
            assert order == [*range(len(group.stages))]
            for nest in schedule.nests:
                stages = [group.stages[n] for n in nest.stages]
                loops = {v.name for s in stages for v in (*s.iters, *s.reduce)}
                assert {*nest.order, *(n for n, _ in nest.blocks)} <= loops
                assert nest.vector is None or nest.vector in loops


def test_long_reductions_wait_in_scratch_between_runs() -> None:
    """A K-block of a panel (64 f32 wide) takes at most a third of the L2 cache, the K-blocks cover
    the reduction, and enough rows share each K-block."""
    group, schedule = only(matmul(128, 3072, 768))
    nest = schedule.nest(0)
    ((name, run),) = nest.k_blocks
    assert run * 64 * 4 <= AVX512.l2 // 3
    (reduce,) = group.stages[0].reduce
    assert name == reduce.name
    rows = next(v for v in group.common if as_int(extent(v)) == 128)
    assert schedule.tile_size(rows.name) == 128
    assert nest.order.index(name) < nest.order.index(rows.name)
    assert only(matmul(128, 256, 768))[1].nest(0).k_blocks == ()


# ---- every choice lowers ------------------------------------------------------------------------


@MACHINES
@pytest.mark.parametrize("name", list(CONTRACTIONS))
def test_every_choice_lowers(name: str, core: CoreModel) -> None:
    for group, schedule in planned(CONTRACTIONS[name](), core):
        assert choose(group, core) == schedule
        verify_kernel(lower(group, schedule))


@pytest.mark.parametrize(("shape", "blocks"), [((40, 50), (16, 16)), ((3, 50), (3, 16))])
def test_a_transposing_copy_moves_blocks(shape: tuple[int, int], blocks: tuple[int, int]) -> None:
    """Vectors are full where the shape allows it, for either storage order."""
    m = Model("turn")
    graph = m.finish(m.op("neg", m.transpose(m.input("x", *shape), 1, 0)))
    _, schedule = only(graph)
    assert sorted(n for _, n in schedule.nests[0].blocks) == sorted(blocks)


def test_keys_are_transposed_in_square_blocks() -> None:
    """Scores read keys with the vector loop along positions, but memory has them along features."""
    types = [tensor(F32, 64, 4, 32), tensor(F32, 4, 64, 32)]
    b = ExprBuilder(*types)
    h, d, j = b.iters(4, 32, 64)
    keys = b.stage((h, d, j), apply("neg", b.read(0, j, h, d)))
    h, i, j, d = b.iters(4, 64, 64, 32)
    product = apply("mul", b.read(1, h, i, d), b.read(keys, h, d, j))
    scores = b.stage((h, i, j), product, over=(d,), monoid="sum")
    h, i, j = b.iters(4, 64, 64)
    b.stage((h, i), b.read(scores, h, i, j), over=(j,), monoid="max")
    shapes = [t.shape for t in (*types, tensor(F32, 4, 64))]
    k, q, y = (Storage(F32, shape, row_major(shape)) for shape in shapes)
    group = build_group(b.done(), [k, q], [y])
    schedule = choose(group, AVX512)
    assert sorted(n for _, n in schedule.nest(0).blocks) == [16, 16]
    verify_kernel(lower(group, schedule))


@pytest.mark.parametrize(
    ("columns", "constant", "ahead"),
    [(256, True, True), (32, True, False), (256, False, False)],
)
def test_weights_larger_than_the_first_cache_are_prefetched(
    columns: int, constant: bool, ahead: bool
) -> None:
    """128 x 32 weights fit the L1 cache, and 128 x 256 do not. Either matrix fits an L2 cache,
    which holds recently computed values but not weights."""
    _, schedule = only(matmul(128, 128, columns, constant=constant))
    assert any(n.ahead for n in schedule.nests) == ahead


@pytest.mark.parametrize(
    ("rows", "hinted", "ahead"), [(1, True, True), (1, False, False), (64, False, True)]
)
def test_weights_that_are_used_once_are_prefetched_if_faster(
    rows: int, hinted: bool, ahead: bool
) -> None:
    _, schedule = only(matmul(rows, 1024, 1024), replace(AVX512, hinted=hinted))
    assert any(n.ahead for n in schedule.nests) == ahead


@pytest.mark.parametrize(
    ("rows", "l1", "level"), [(1, 48, 2), (4, 48, 2), (6, 48, 1), (1, 256, 1), (96, 48, 1)]
)
def test_panels_come_to_the_cache_that_holds_the_next_one_too(
    rows: int, l1: int, level: int
) -> None:
    """For one block of rows, a K-block takes 64 KiB; many rows use a part of it at a time. At two
    multiplications per cycle, six rows use 21 bytes."""
    _, schedule = only(matmul(rows, 3072, 768), replace(AVX512, l1=l1 << 10))
    assert {n.ahead for n in schedule.nests} == {level}


@pytest.mark.parametrize(
    ("op", "columns", "levels"),
    [
        ("softmax", 64, [0, 0, 0]),  # less than a page of lines
        ("softmax", 512, [1, 0, 0]),
        ("softmax", 2048, [0, 1, 0]),
        ("softmax", 50257, [0, 2, 0]),
        ("softmax", 262144, [0, 0, 0]),  # rows, exponentials and the next rows take 3 MiB
        ("log_softmax", 262144, [0, 2, 0]),  # nothing is stored meanwhile
    ],
)
def test_the_dearest_pass_asks_for_the_next_rows(op: str, columns: int, levels: list[int]) -> None:
    m = Model(op)
    x = m.input("x", 16, columns)
    _, schedule = only(m.finish(m.op(op, x, attrs=AxisAttrs(1))), replace(AVX512, l2=1 << 20))
    assert [n.ahead for n in schedule.nests] == levels


@pytest.mark.parametrize(("stride", "along"), [(1, "w"), (2, "w"), (4, "w"), (5, "q")])
def test_pools_whose_neighbours_are_a_few_columns_apart_run_along_them(
    stride: int, along: str
) -> None:
    """`stride` vectors hold the columns of a vector of results."""
    wide = 64 * stride + 1
    b = ExprBuilder(tensor(F32, 8, 64, wide))
    c, h, w, p, q = b.iters(8, 32, 64, 2, 2)
    b.stage((c, h, w), b.read(0, c, 2 * h + p, stride * w + q), over=(p, q), monoid="max")
    x, y = (Storage(F32, s, row_major(s)) for s in (tensor(F32, 8, 64, wide).shape,
                                                    tensor(F32, 8, 32, 64).shape))  # fmt: skip
    group = build_group(b.done(), [x], [y])
    (nest,) = choose(group, AVX512).nests
    (stage,) = group.stages
    assert nest.vector == (stage.iters if along == "w" else stage.reduce)[-1].name
    verify_kernel(lower(group, choose(group, AVX512)))


def test_a_pool_that_transposes_its_image_writes_whole_vectors() -> None:
    """The pool reads channels last and writes rows of one channel, so it uses square blocks, like a
    transposing copy."""
    b = ExprBuilder(tensor(F32, 30, 34, 64))
    c, h, w, p, q = b.iters(64, 28, 32, 3, 3)
    b.stage((c, h, w), b.read(0, h + p, w + q, c), over=(p, q), monoid="max")
    x, y = (Storage(F32, s, row_major(s)) for s in (tensor(F32, 30, 34, 64).shape,
                                                    tensor(F32, 64, 28, 32).shape))  # fmt: skip
    group = build_group(b.done(), [x], [y])
    (nest,) = choose(group, AVX512).nests
    lanes, _, row = (v.name for v in group.stages[0].iters)
    assert nest.vector == lanes
    assert (nest.block(lanes), nest.block(row)) == (16, 16)


@pytest.mark.parametrize("size", [3, 7])
def test_stages_that_exchange_strips_share_the_channels(size: int) -> None:
    """Either the matmul or the window has more work."""
    m = Model("inverted")
    y = m.op("relu", m.conv(m.input("x", 1, 16, 56, 56), 96, 1))
    group, schedule = only(m.finish(m.op("relu", m.conv(y, 96, size, pad=size // 2, group=96))))
    assert any(s.strip is not None for s in group.stages)
    (channels,) = (v.name for v in group.common if as_int(extent(v)) == 96)
    assert {n.vector for n in schedule.nests} == {channels}


def expanded(batch: int) -> tuple[TileGroup, Schedule]:
    """Returns MobileNetV2's widest expansion with its depthwise window, for images of 7 x 7
    pixels."""
    m = Model("inverted")
    y = m.op("relu", m.conv(m.input("x", batch, 160, 7, 7), 960, 1))
    return only(m.finish(m.op("relu", m.conv(y, 960, 3, pad=1, group=960))))


@pytest.mark.parametrize("batch", [4, 8, 32])
def test_blocks_of_a_strip_run_along_its_rows_and_not_along_images(batch: int) -> None:
    """Neighbours in a row share columns under the window, and lines of the matmul's operand, so
    that tiles and blocks equal those of one image."""
    group, schedule = expanded(batch)
    _, one = expanded(1)
    assert (schedule.tile_sizes, schedule.nests) == (one.tile_sizes, one.nests)
    verify_kernel(lower(group, schedule))


# ---- symbolic sizes ------------------------------------------------------------------------------


def images(batch: IndexLike) -> tuple[TileGroup, Schedule]:
    m = Model("images")
    x = m.builder.input("x", tensor(F32, batch, 32, 28, 28))
    first = m.op("relu", m.conv(x, 32, 1))
    return only(m.finish(m.op("relu", m.conv(first, 64, 3, pad=1))))


def test_blocks_of_a_symbolic_batch_run_along_the_image() -> None:
    """There may be a single image, so blocks and tiles equal those of one image."""
    group, schedule = images(symbol("n", 1))
    fixed, one = images(1)
    nest = schedule.nest(group.stages.index(anchor(group)))
    other = one.nest(fixed.stages.index(anchor(fixed)))
    assert sorted(n for _, n in nest.blocks) == sorted(n for _, n in other.blocks)
    assert sorted(n for _, n in schedule.tile_sizes) == sorted(n for _, n in one.tile_sizes)


@pytest.mark.parametrize(("batch", "unit"), [(1, 99), (8, 197)])
def test_images_are_cut_where_few_of_them_leave_a_core_idle(batch: int, unit: int) -> None:
    """A tile has an image of 197 rows if there are many images, and about half of the rows of a
    single image."""
    open_batch = symbol("n", 1, typical=batch)
    _, schedule = only(matmul(197 * open_batch, 768, 64))
    assert unit in [n for _, n in schedule.tile_sizes]


@pytest.mark.parametrize("depth", [1024, 3072])
def test_open_rows_are_scheduled_like_a_typical_number(depth: int) -> None:
    """Symbolic rows get the tiles, K-blocks and prefetches of known rows."""
    group, schedule = only(matmul(symbol("n", 1), depth, 1024))
    fixed, like = only(matmul(128, depth, 1024))
    number, other = (g.stages.index(anchor(g)) for g in (group, fixed))
    nest, fixed_nest = schedule.nest(number), like.nest(other)
    assert [n for _, n in nest.k_blocks] == [n for _, n in fixed_nest.k_blocks]
    assert [n for _, n in nest.blocks] == [n for _, n in fixed_nest.blocks]
    assert sorted(n for _, n in schedule.tile_sizes) == sorted(n for _, n in like.tile_sizes)
    assert nest.k_blocks
    assert nest.ahead == fixed_nest.ahead


@pytest.mark.parametrize(
    ("rows", "columns", "whole"),
    [
        (128, 3072, True),
        (64, 3072, False),  # the next panel would come too late
        (128, 768, False),  # six panels per core, of which the first is cold
        (14, 3072, False),
    ],
)
def test_sums_stay_whole_where_many_rows_share_many_panels(
    rows: int, columns: int, whole: bool
) -> None:
    group, schedule = only(matmul(rows, 768, columns))
    nest = schedule.nest(group.stages.index(anchor(group)))
    assert (not nest.k_blocks) is whole


def levels(rows: int) -> Graph:
    """Returns a matmul by four-bit levels with a scale for each 32 along the sum."""
    m = Model("levels")
    packed = m.builder.constant(np.zeros((512, 2048), np.int8), "levels")
    operands = [m.input("x", rows, 1024), packed, m.weight(32, 2048)]
    return m.finish(m.op("matmul_levels", *operands, attrs=LevelsAttrs(4, 32)))


@pytest.mark.parametrize(
    ("rows", "blocks", "packed"),
    [(1, {64}, False), (24, {12, 32}, False), (128, {6, 64}, True)],
)
def test_levels_are_made_once_for_many_rows(rows: int, blocks: set[int], packed: bool) -> None:
    """A block of twelve rows by two vectors decodes each vector of levels half as often as a block
    of six rows by four. Many rows read decoded levels from scratch, in blocks for floats."""
    _, schedule = only(levels(rows))
    (nest,) = schedule.nests
    assert nest.packed is packed
    assert {n for _, n in nest.blocks} >= blocks


def bytes_product(rows: int, depth: int, columns: int) -> Graph:
    m = Model("bytes")
    w = m.builder.constant(np.ones((depth, columns), np.int8), "w")
    return m.finish(m.op("matmul_integer", m.input("x", rows, depth, dtype=U8), w))


def test_bytes_are_multiplied_four_steps_at_a_time() -> None:
    """Four neighbours along the sum are one step like a float in a float matmul: blocks are equal,
    and K-blocks are four times as long."""
    group, schedule = only(bytes_product(384, 1200, 768))
    (nest,) = schedule.nests
    stage = anchor(group)
    assert contraction_factors(stage) is not None
    assert nest.block(stage.reduce[-1].name) == 4
    assert sorted(n for _, n in nest.blocks) == [4, 6, 64]
    assert not nest.k_blocks
    assert registers_used(group, schedule, 16) <= AVX512.count


def test_rows_that_data_choose_from_a_constant_are_added_in_vectors() -> None:
    """The rows stay in place: neighbours in a row are lanes, and neighbours of an index lie far
    apart."""
    m = Model("bag")
    rows = m.op("gather", m.weight(999, 67), m.input("at", 9, 100, dtype=I64), attrs=AxisAttrs(0))
    group, schedule = only(m.finish(m.op("reduce_sum", rows, attrs=ReduceAttrs((1,), False))))
    assert schedule.nests[0].vector == anchor(group).iters[-1].name
