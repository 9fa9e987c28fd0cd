"""Prices know which lines of an operand another core wrote."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil, prod

import numpy as np
import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import F32, tensor
from tcc.passes.fuse.structure import build_group, row_major_storage
from tcc.schedule.alternatives import number
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.owners import ThreadTiles, other_grids
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.cpu.shipped_machines import shipped_machine
from tcc.schedule.limits import TYPICAL_LIMITS

ROWS, COLUMNS = 96, 768
MACHINE = shipped_machine("znver5")
PRICER = Pricer(MACHINE)


def scaled(rows: int) -> TileGroup:
    """Returns the group of y[i, j] = x[i, j] * b[j], whose loops stay apart."""
    b = ExprBuilder(tensor(F32, rows, COLUMNS), tensor(F32, COLUMNS))
    i, j = b.iters(rows, COLUMNS)
    b.stage((i, j), apply("mul", b.read(0, i, j), b.read(1, j)))
    expr = b.done()
    return build_group(expr, *row_major_storage(expr, (False, True)))


GROUP = scaled(ROWS)
RULE = choose(GROUP, CoreModel(16, 32))
GRIDS = {s.parallel: s for s in (RULE, *other_grids(GROUP, RULE))}
ALONG_ROWS, ALONG_COLUMNS = (v.name for v in GROUP.common)


def owners(schedule: Schedule) -> np.ndarray:
    """Returns the thread of each element of x, by the division of units in runtime/src/threads.c:
    thread t of n runs the units from t * units / n on."""
    sizes = {ALONG_ROWS: ROWS, ALONG_COLUMNS: COLUMNS}
    tiles = {n: schedule.tile_size(n) if n in schedule.parallel else sizes[n] for n in sizes}
    counts = {n: ceil(sizes[n] / tiles[n]) for n in schedule.parallel}
    threads = min(MACHINE.cores, prod(counts.values()))
    units = [*product(*(range(counts[n]) for n in schedule.parallel))]
    thread = np.empty((ROWS, COLUMNS), np.int64)
    for unit_number, unit in enumerate(units):
        place = dict(zip(schedule.parallel, unit, strict=True))
        where = [
            slice(place[n] * tiles[n], (place[n] + 1) * tiles[n]) if n in place else slice(None)
            for n in (ALONG_ROWS, ALONG_COLUMNS)
        ]
        thread[tuple(where)] = unit_number * threads // len(units)
    return thread


@pytest.mark.parametrize("writer", [(ALONG_ROWS,), (ALONG_COLUMNS,), ()])
@pytest.mark.parametrize("reader", [(ALONG_ROWS,), (ALONG_COLUMNS,), ()])
def test_the_price_counts_the_lines_of_other_cores(
    writer: tuple[str, ...], reader: tuple[str, ...]
) -> None:
    wrote, reads = (ThreadTiles(GROUP, GRIDS[n], PRICER, TYPICAL_LIMITS) for n in (writer, reader))
    (period,) = wrote.result_periods().values()
    extra = number(reads.seconds({0: period})) - number(reads.seconds({}))
    foreign = owners(GRIDS[writer]) != owners(GRIDS[reader])
    # one thread waits for all its lines; two threads wait at once, each for its own
    mean_bytes = foreign.sum() * 4 / reads.threads
    assert extra * MACHINE.foreign * MACHINE.hertz == pytest.approx(mean_bytes, rel=0.05)


def test_an_unknown_writer_costs_nothing() -> None:
    reads = ThreadTiles(GROUP, RULE, PRICER, TYPICAL_LIMITS)
    assert reads.seconds({0: None}) == reads.seconds({})


def test_lines_that_have_left_the_caches_cost_nothing() -> None:
    """16 MiB go through the two second-level caches of 1 MiB, and come from the third."""
    group = scaled(5461)
    reads = ThreadTiles(group, choose(group, CoreModel(16, 32)), PRICER, TYPICAL_LIMITS)
    assert reads.seconds({0: 4.0 * COLUMNS}) == reads.seconds({})


def test_little_work_is_done_by_one_thread() -> None:
    """The runtime gives a launch no thread for less than a microsecond of work."""
    b = ExprBuilder(tensor(F32, 4, 64))
    i, j = b.iters(4, 64)
    b.stage((i, j), apply("exp", b.read(0, i, j)))
    expr = b.done()
    group = build_group(expr, *row_major_storage(expr, (False,)), collapsed=False)
    division = ThreadTiles(group, choose(group, CoreModel(16, 32)), PRICER, TYPICAL_LIMITS)
    assert (division.threads, division.result_periods()) == (1, {1: 0.0})


def test_one_core_owns_all_lines() -> None:
    pricer = Pricer(replace(MACHINE, cores=1))
    division = ThreadTiles(GROUP, RULE, pricer, TYPICAL_LIMITS)
    assert division.seconds({0: 4.0 * COLUMNS}) == division.seconds({})
