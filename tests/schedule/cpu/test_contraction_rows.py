"""A tile of a contraction covers a suitable number of symbolic rows."""

from __future__ import annotations

import pytest
from tcc.ir.expr import ExprBuilder, extent
from tcc.ir.expr.scalar import apply
from tcc.ir.index import symbol
from tcc.ir.types import F32, tensor
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.nest import trips

from tests.passes.tile.cpu import tiles


@pytest.mark.parametrize("width", [4, 8, 10, 14])
def test_tiles_of_symbolic_rows_are_whole_blocks(width: int) -> None:
    """The operand is every other pixel of an image, whose rows do not form one loop. A tile with as
    many rows as a typical image would have smaller blocks at every size."""
    h, w = symbol("h", 1, typical=width), symbol("w", 1, typical=width)
    b = ExprBuilder(tensor(F32, 256, 2 * h, 2 * w), tensor(F32, 256, 64))
    i, j, n, k = b.iters(h, w, 64, 256)
    body = apply("mul", b.read(0, k, 2 * i, 2 * j), b.read(1, k, n))
    b.stage((i, j, n), body, over=(k,), monoid="sum")
    group = tiles.build(b.done()).group
    row = group.common[1]
    assert (extent(row), trips(row)) == (w, width)
    schedule = choose(group, CoreModel(16, 32))
    block = schedule.nests[0].block(row.name)
    assert block > 1
    assert schedule.tile_size(row.name) % block == 0
