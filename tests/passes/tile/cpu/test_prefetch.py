"""Prefetch hints cover every part of the next K-block once, at several places in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import pytest
from tcc.ir.graph import GraphBuilder
from tcc.ir.index import as_int, const, evaluate, free_vars, iterator
from tcc.ir.tile import MemorySpace, Prefetch, Stmt, Store, TileKernel, TileLoop
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.ops.shapes import AxisAttrs
from tcc.passes.derive.bilinear.tiled_conv import Conv, ConvAxis, output_transform, points
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.quantize.precision import Precision
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.cpu.prefetch import _position, _streams, _turns
from tcc.passes.tile.cpu.ranges import BlockRange, TileRange
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.nest import trips

from tests.passes.derive.bilinear.products import F4
from tests.passes.fuse.models import Model
from tests.passes.layout.test_choose import planner
from tests.passes.placing import place_graph

LINE = 64
NOTHING = ((const(0), const(0)), (const(0), const(0)))


@pytest.mark.parametrize("steps", [128, 96])
@pytest.mark.parametrize("lines", [1, 2, 4, 6, 8, 16, 48])
def test_every_line_is_prefetched_once(lines: int, steps: int) -> None:
    streams = _streams(lines, 1 << 16)
    number = iterator("k", steps)
    turns = _turns(number, steps, lines, streams)
    lines_prefetched = [evaluate(turn, {"k": k}) for k in range(steps) for turn in turns]
    assert len(turns) == lines
    assert sorted(lines_prefetched) == list(range(steps * lines))
    assert streams >= 12
    length = steps * lines // streams
    assert len({at // length for at in lines_prefetched[:streams]}) == streams


def test_streams_are_no_shorter_than_a_page() -> None:
    assert [_streams(8, pages * 4096) for pages in (0, 1, 2, 5, 8, 15, 16, 99)] == [
        1, 1, 2, 4, 8, 8, 16, 16,
    ]  # fmt: skip


def test_an_uneven_part_is_prefetched_except_for_its_end() -> None:
    turns = _turns(iterator("k", 125), 125, 8, 16)
    lines_prefetched = {evaluate(turn, {"k": k}) for k in range(125) for turn in turns}
    assert len(lines_prefetched) == 125 * 8
    assert max(lines_prefetched) < 126 * 8


def hints(stmts: Iterable[Stmt], env: dict[str, int]) -> Iterator[Prefetch | int]:
    """Yields a tile's hints in order: each hint, then the element that it names."""
    for stmt in stmts:
        match stmt:
            case TileLoop(var, start, stop, step):
                for at in range(evaluate(start, env), evaluate(stop, env), step):
                    yield from hints(stmt.body, {**env, var.name: at})
            case Prefetch():
                yield stmt
                yield evaluate(stmt.indices[0], env)


def weighted(bits: int, depth: int) -> TileKernel:
    """Returns the kernel of one row times a weight that exceeds the L2 cache."""
    m = Model("weighted")
    graph = m.finish(m.op("matmul", m.input("x", 1, depth), m.weight(depth, 256)))
    precision, core = Precision(bits=bits), CoreModel(16, 32, l2=1 << 16)
    placed = place_graph(graph, precision, model=CoreChooser(core))
    _, table, _ = lower_program(placed, CoreChooser(core), lower_node, precision)
    (bound,) = table.bounds
    return bound.kernel


@pytest.mark.parametrize("columns", [512, 2000, 50256])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_a_tile_prefetches_every_line_of_the_next_row_once(op: str, columns: int) -> None:
    """The hints stand in the pass of the maximum or in that of exponentials, stored or not."""
    m = Model(op)
    graph = m.finish(m.op(op, m.input("x", 16, columns), attrs=AxisAttrs(1)))
    core = CoreModel(16, 32, l2=1 << 20)
    placed = place_graph(graph, model=CoreChooser(core))
    _, table, _ = lower_program(placed, CoreChooser(core), lower_node)
    (bound,) = table.bounds
    prefetches = list(hints(bound.kernel.body, {bound.kernel.axes[0].name: 3}))
    addresses = sorted(at for at in prefetches[1::2] if isinstance(at, int))
    assert addresses == list(range(4 * columns, 5 * columns, LINE // F32.bytes))


@pytest.mark.parametrize(("bits", "bytes_"), [(0, 4.0), (8, 1.0), (4, 0.5)])
@pytest.mark.parametrize("depth", [1024, 2048])
def test_a_tile_prefetches_every_line_behind_its_k_blocks_once(
    bits: int, bytes_: float, depth: int
) -> None:
    """For levels and scales, only the levels have hints; four-bit levels lie two to a byte."""
    kernel = weighted(bits, depth)
    prefetches = list(hints(kernel.body, {kernel.axes[0].name: 0}))
    buffers = {hint.buffer for hint in prefetches[::2] if isinstance(hint, Prefetch)}
    (buffer,) = buffers
    (size,) = buffer.sizes
    assert as_int(size) == depth * 256 * bytes_ / buffer.dtype.bytes
    lines = [at * buffer.dtype.bytes // LINE for at in prefetches[1::2] if isinstance(at, int)]
    first, count = min(lines), int(depth * 64 * bytes_ / LINE)
    assert sorted(lines) == list(range(first, first + count))
    assert first * LINE == min(64 << 10, depth * 64 * bytes_)
    assert len({line * LINE // 4096 for line in lines[:16]}) == min(16, first * LINE // 4096)


@pytest.mark.parametrize(("outer", "inner"), [(4, 1), (1, 2), (4, 3), (3, 1)])
def test_blocks_of_rows_in_two_loops_come_one_after_the_other(outer: int, inner: int) -> None:
    loops = [(free_vars(iterator("a", 8))[0], 8, outer), (free_vars(iterator("b", 6))[0], 6, inner)]
    regions = [TileRange(var, const(0), const(size)) for var, size, _ in loops]
    position = 0
    for at in range(0, 8, outer):
        size = min(outer, 8 - at)
        for next_ in range(0, 6, inner):
            places = (at, size), (next_, inner)
            spans = [
                BlockRange(var, const(base), count, True)
                for (var, *_), (base, count) in zip(loops, places, strict=True)
            ]
            assert as_int(_position(spans, regions)) == position
            position += size * inner


def gathered(channels: int) -> TileKernel:
    """Returns a kernel of 3 x 5 tiles of 4 x 4 results from their 36 products, for `channels`
    channels."""
    b = GraphBuilder("gathered")
    axes = tuple(ConvAxis(3, const(n), const(1), 1, 1, 1, None) for n in (12, 20))
    m = b.input("m", tensor(F32, points(F4), 1, 1, 1, 3, 5, channels))
    expr = output_transform(Conv(const(1), channels, channels, 1, axes), F4, m.type, None)
    (y,) = b.add(OPS["expression"], [m, None], OPS["expression"].attrs(expr))
    (z,) = b.add(OPS["max_pool"], [y], OPS["max_pool"].attrs((1, 1), *NOTHING, (1, 1), (3, 3)))
    placed = place_graph(b.finish([z]), model=planner())
    _, table, _ = lower_program(placed, planner(), lower_node)
    return table.bounds[0].kernel


def written(stmts: Iterable[Stmt], env: dict[str, int]) -> Iterator[tuple[bool, int]]:
    """Yields (True, line) for each line that a tile prefetches to write, and (False, line) for each
    line that it writes, in order."""
    for stmt in stmts:
        match stmt:
            case TileLoop(var, start, stop, step):
                for at in range(evaluate(start, env), evaluate(stop, env), step):
                    yield from written(stmt.body, {**env, var.name: at})
            case Prefetch():
                assert stmt.write
                yield True, evaluate(stmt.indices[0], env) // 16
            case Store(buffer) if buffer.scope is not MemorySpace.LOCAL:
                yield False, evaluate(stmt.indices[0], {**env, "l0": 0}) // 16
            case _:
                pass


@pytest.mark.parametrize("channels", [32, 128, 256])
def test_results_that_lie_apart_are_prefetched_before_their_stores(channels: int) -> None:
    """The lines of the first tiles, or of the first blocks of many channels, have no hints."""
    kernel = gathered(channels)
    lines_prefetched: set[int] = set()
    missed = stores = 0
    names = [axis.name for axis in kernel.axes]
    for unit in product(*(range(trips(axis)) for axis in kernel.axes)):
        for hint, line in written(kernel.body, dict(zip(names, unit, strict=True))):
            if hint:
                lines_prefetched.add(line)
            else:
                stores += 1
                missed += line not in lines_prefetched
    assert stores == 12 * 20 * channels // 16
    assert missed <= 0.3 * stores
