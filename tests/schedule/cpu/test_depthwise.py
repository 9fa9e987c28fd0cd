"""Tiles and blocks are right for windows that slide over each channel alone."""

from __future__ import annotations

from math import prod

import pytest
from tcc.ir.expr import ExprBuilder, extent
from tcc.ir.expr.scalar import apply
from tcc.ir.index import IndexLike, as_index, as_int, symbol
from tcc.ir.layout import row_major
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import F32, tensor
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.tile.cpu.lower import lower
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel

AVX512 = CoreModel(16, 32)


def depthwise(size: IndexLike, channels: int, window: int = 3) -> TileGroup:
    """Returns square windows over a padded image with channels last."""
    padded = as_index(size) + (window - 1)
    types = [tensor(F32, padded, padded, channels), tensor(F32, window, window, channels)]
    b = ExprBuilder(*types)
    h, w, c, p, q = b.iters(size, size, channels, window, window)
    product = apply("mul", b.read(0, h + p, w + q, c), b.read(1, p, q, c))
    b.stage((h, w, c), product, over=(p, q), monoid="sum")
    shapes = [t.shape for t in (*types, tensor(F32, size, size, channels))]
    x, f, y = (Storage(F32, shape, row_major(shape)) for shape in shapes)
    return build_group(b.done(), [x, f], [y])


@pytest.mark.parametrize("size", [14, 56, 112])
def test_the_rows_under_a_depthwise_window_stay_near(size: int) -> None:
    """Three rows of a tile fit an L1 cache of 32 KiB, and both cores have several tiles."""
    group = depthwise(size, 96)
    schedule = choose(group, AVX512)
    vector = schedule.nests[0].vector
    (lanes,) = (n for v, n in schedule.tile_sizes if v == vector)
    rows, columns = (schedule.tile_size(v.name) for v in group.common if v.name != vector)
    assert rows > 1
    assert 3 * (columns + 2) * lanes * 4 <= 32 << 10
    trips = {v.name: as_int(extent(v)) or 1 for v in group.common}
    assert prod(-(-trips[v] // schedule.tile_size(v)) for v in schedule.parallel) >= 8
    assert schedule.nests[0].block(group.stages[0].reduce[-1].name) == 3
    verify_kernel(lower(group, schedule))


@pytest.mark.parametrize(("channels", "lanes"), [(32, 32), (128, 128), (256, 128), (2048, 192)])
def test_the_rows_under_a_window_of_a_symbolic_image_stay_near(channels: int, lanes: int) -> None:
    """Tiles have several rows, and as many adjacent channels as leave two blocks of columns."""
    group = depthwise(symbol("n"), channels)
    schedule = choose(group, AVX512)
    (nest,) = schedule.nests
    rows, columns = (v.name for v in group.common if v.name != nest.vector)
    assert schedule.tile_size(nest.vector or "") == lanes
    assert schedule.tile_size(rows) > 1
    assert 3 * (schedule.tile_size(columns) + 2) * lanes * 4 <= 32 << 10
    assert schedule.tile_size(columns) >= 2 * nest.block(columns) > 2
    verify_kernel(lower(group, schedule))


@pytest.mark.parametrize("window", [5, 7])
def test_wide_windows_load_each_column_once(window: int) -> None:
    """Sixteen accumulators, the columns under them and a row of the window fit 32 vectors, so that
    a multiplication needs less than half a load."""
    group = depthwise(28, 96, window)
    schedule = choose(group, AVX512)
    (nest,) = schedule.nests
    blocks = dict(nest.blocks)
    columns = blocks.pop(group.stages[0].reduce[-1].name)
    assert columns == window
    assert nest.vector is not None
    assert blocks.pop(nest.vector) == 16
    (results,) = blocks.values()
    assert results + columns <= 32
    assert (results + columns - 1 + columns) / (results * columns) < 0.5
    verify_kernel(lower(group, schedule))
