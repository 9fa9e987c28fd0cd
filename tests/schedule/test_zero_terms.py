"""Terms that are zero because an operand lies beyond a border, compared with a count of single
terms."""

from __future__ import annotations

from itertools import product

import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.index import as_int, const, evaluate, symbol
from tcc.ir.layout import row_major, with_halo
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import F32, tensor
from tcc.passes.fuse.structure import Storage, build_group
from tcc.schedule.zero_terms import needed_terms, terms_share

WINDOW, BEFORE, CHANNELS = 5, 2, 3


def convolution(step: int = 1, size: int = 128) -> TileGroup:
    """Returns a channels-last convolution over a symbolic image of typical `size`, stored with
    zeros around it."""
    h, w = (symbol(name, typical=size) for name in "hw")
    taps = tensor(F32, WINDOW, WINDOW, CHANNELS, 8)
    b = ExprBuilder(tensor(F32, h, w, CHANNELS), taps)
    y, x, k, p, q, c = b.iters((h + step - 1) // step, w, 8, WINDOW, WINDOW, CHANNELS)
    image = b.read(0, step * y + p - BEFORE, x + q - BEFORE, c, fill=0)
    b.stage((y, x, k), apply("mul", image, b.read(1, p, q, c, k)), over=(p, q, c), monoid="sum")
    halos = ((BEFORE, WINDOW), (BEFORE, WINDOW), (0, 0))
    layout = with_halo(row_major((h, w, const(CHANNELS))), halos, 0.0)
    storages = [
        Storage(F32, (h, w, const(CHANNELS)), layout),
        Storage(F32, taps.shape, row_major(taps.shape), constant=True),
    ]
    shape = ((h + step - 1) // step, w, const(8))
    return build_group(b.done(), storages, [Storage(F32, shape, row_major(shape))])


def spans(size: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(size) for b in range(a, size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("loop", ["rows", "columns"])
def test_terms_from_the_first_to_the_last_that_lie_inside(loop: str, size: int) -> None:
    (stage,) = convolution().stages
    rows, columns = stage.reduce  # the channels of a column form one loop with it
    var, at, every = (rows, 0, 1) if loop == "rows" else (columns, 1, CHANNELS)
    for first, last in spans(size):
        ends = {stage.iters[at]: (const(first), const(last))}
        bounds = needed_terms(stage, var, ends)
        values = {"h": size, "w": size}
        start, stop = ([int(evaluate(place, values)) for place in places] for places in bounds)
        inside = [
            p
            for p, y in product(range(WINDOW), range(first, last + 1))
            if 0 <= y + p - BEFORE < size
        ]
        assert max(0, *start) == every * min(inside)
        assert min(WINDOW * every, *stop) == every * (max(inside) + 1)


def test_steps_of_two_rows() -> None:
    (stage,) = convolution(step=2).stages
    rows, _ = stage.reduce
    (start,), (stop,) = needed_terms(stage, rows, {stage.iters[0]: (const(1), const(1))})
    assert (as_int(start), int(evaluate(stop, {"h": 3}))) == (0, 3)


def test_loops_around_that_are_not_known_bound_nothing() -> None:
    (stage,) = convolution().stages
    assert needed_terms(stage, stage.reduce[0], {}) == ([], [])


def test_the_share_of_terms_that_blocks_go_through() -> None:
    """At one row, four of five taps lie outside; at three rows, six of fifteen do."""
    for size, share in ((1, 1 / 5), (3, 9 / 15)):
        (stage,) = convolution(size=size).stages
        assert terms_share(stage, ()) == pytest.approx(share**2)
        block_sizes = (("i1", size),)
        assert terms_share(stage, block_sizes) == pytest.approx(share * (1 / 5 if size == 1 else 1))


def test_a_block_counts_as_many_times_as_it_has_elements() -> None:
    """Columns 0 to 2 together use all five taps, column 3 alone uses three."""
    (stage,) = convolution(size=4).stages
    rows = (3 + 4 + 4 + 3) / 20
    assert terms_share(stage, (("i1", 3),)) == pytest.approx(rows * (3 * 5 + 3) / 20)
