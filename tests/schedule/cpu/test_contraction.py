"""Blocks and tiles are right for interleaved results and for symbolic loops."""

from __future__ import annotations

from math import prod

import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.graph import Graph
from tcc.ir.index import IndexLike, symbol
from tcc.ir.layout import row_major
from tcc.ir.tile import Contract, walk_statements
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import F32, tensor
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.tile.cpu.lower import lower
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.nest import contraction_factors

from tests.passes.fuse.models import Model
from tests.schedule.cpu.test_choose import AVX512, MACHINES, only, registers_used


def phases_of(phases: int) -> TileGroup:
    """Returns the phases of a transposed convolution, whose results interleave."""
    channels, width = 48, symbol("w")
    types = [tensor(F32, channels, width), tensor(F32, phases, channels, channels)]
    b = ExprBuilder(*types)
    c, i, p, k = b.iters(channels, width, phases, channels)
    product = apply("mul", b.read(0, k, i), b.read(1, p, c, k))
    b.stage((c, i, p), product, over=(k,), monoid="sum")
    shapes = [t.shape for t in (*types, tensor(F32, channels, width, phases))]
    x, f, y = (Storage(F32, shape, row_major(shape)) for shape in shapes)
    return build_group(b.done(), [x, f], [y])


@MACHINES
@pytest.mark.parametrize("phases", [2, 3, 4])
def test_phases_of_a_transposed_convolution_share_a_block(phases: int, core: CoreModel) -> None:
    """The results of all phases together fill whole vectors of memory."""
    group = phases_of(phases)
    schedule = choose(group, core)
    assert schedule.nests[0].vector == group.stages[0].iters[1].name
    assert schedule.nests[0].block(group.stages[0].iters[2].name) == phases
    assert registers_used(group, schedule, core.lanes) <= core.count
    verify_kernel(lower(group, schedule))


@MACHINES
def test_a_block_of_one_vector_has_as_many_sums_as_a_whole_one(core: CoreModel) -> None:
    """The last columns of a symbolic row fill one vector, so that more channels are needed to keep
    the multipliers busy."""
    group, schedule = only(line(symbol("w"), 48), core)
    number = next(n for n, s in enumerate(group.stages) if contraction_factors(s))
    nest, lanes = schedule.nest(number), core.lanes
    assert nest.vector is not None
    assert nest.vectors is not None
    rows, columns = nest.vectors.rows, nest.block(nest.vector)
    assert rows is not None
    assert nest.order.index(nest.vector) < nest.order.index(rows)
    assert nest.block_beside(rows, columns) == nest.block(rows)
    assert nest.block_beside(rows, lanes) * lanes == nest.block(rows) * columns
    body = walk_statements(lower(group, schedule).body)
    shapes = [s.out.shape for s in body if isinstance(s, Contract)]
    sums = {shape[-1]: max(prod(s) for s in shapes if s[-1] == shape[-1]) for shape in shapes}
    assert sums[lanes] > prod((nest.block(rows), lanes))
    assert sums[lanes] <= sums[columns]


def line(width: IndexLike, channels: int) -> Graph:
    m = Model("line")
    x = m.builder.input("x", tensor(F32, 1, channels, width))
    weight = m.weight(channels, channels)
    return m.finish(m.op("matmul", weight, x))


@pytest.mark.parametrize(("size", "phases"), [(7, (2, 2)), (12, (1, 2)), (3, (2, 2))])
def test_cores_do_not_alternate_stores_to_one_line(size: int, phases: tuple[int, int]) -> None:
    """A tile has all phases whose results lie in one cache line, also for rows shorter than a line;
    several tiles divide rows or channels."""
    b = ExprBuilder(tensor(F32, 64, size, size), tensor(F32, 2, 2, 64, 64))
    c, h, p, w, q, k = b.iters(64, size, 2, size, 2, 64)
    product = apply("mul", b.read(0, k, h, w), b.read(1, p, q, k, c))
    b.stage((c, h, p, w, q), product, over=(k,), monoid="sum")
    shapes = [(64, size, size), (2, 2, 64, 64), (64, size, 2, size, 2)]
    x, f, y = (Storage(F32, shape, row_major(shape)) for shape in shapes)
    group = build_group(b.done(), [x, f], [y])
    schedule = choose(group, AVX512)
    _, _, rows, _, columns = group.stages[0].iters
    units = tuple(
        schedule.tile_size(v.name) if v.name in schedule.parallel else 2 for v in (rows, columns)
    )
    assert units == phases
    verify_kernel(lower(group, schedule))
