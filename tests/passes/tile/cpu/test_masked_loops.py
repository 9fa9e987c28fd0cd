"""Streaming loops on cores skip blocks that masks hide, with right results, trips and prices.

NumPy in f64 is the oracle of results, and the mask itself of trips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tcc.ir.expr import Expr, extent
from tcc.ir.expr.scalar import Scalar, apply, index_value, literal
from tcc.ir.index import Index, evaluate, symbol
from tcc.ir.op import Array
from tcc.ir.tile import If, Stmt, TileKernel, TileLoop
from tcc.ir.tile.group import TileGroup
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import F32, I64
from tcc.passes.fuse.structure import build_group, row_major_storage
from tcc.passes.tile.cpu.lower import lower
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.shipped_machines import shipped_machine
from tcc.schedule.limits import TYPICAL_LIMITS
from tcc.schedule.masked_terms import covered

from tests.passes.tile.cpu.tiles import run_kernel
from tests.passes.tile.gpu.test_skip import LOWEST, Mask, arrays, attention, expected

# With four lanes, tiles have 16 rows.
CORE = CoreModel(4, 16, limits=replace(TYPICAL_LIMITS, streams=True))
ROWS, BLOCK = 16, 16
MASKS = {
    "causal": Mask(high=0),
    "negated": Mask(high=0, negated=True),
    "added": Mask(high=0, added=True),
    "past": Mask(high=20),
    "future": Mask(low=0),
    "window": Mask(low=-20, high=0),
    "window_negated": Mask(low=-20, high=9, negated=True),
    "nothing_first": Mask(high=-20),
    "lowest": Mask(high=3, hidden=LOWEST),
    "lowest_added": Mask(low=-20, high=0, negated=True, added=True, hidden=LOWEST),
}


def group_of(expr: Expr) -> TileGroup:
    storage = row_major_storage(expr, [False] * len(expr.params))
    return build_group(expr, *storage, limits=CORE.limits)


def kernel_of(expr: Expr, skips: bool = True, block: int = BLOCK) -> TileKernel:
    group = group_of(expr)
    schedule = replace(choose(group, replace(CORE, skips=skips)), stream_block=block)
    kernel = lower(group, schedule)
    assert verify_kernel(kernel) == ()
    return kernel


def run(
    expr: Expr, q: Array, k: Array, v: Array, sizes: Mapping[str, int], skips: bool = True
) -> Array:
    (output,) = run_kernel(kernel_of(expr, skips), expr.types, [q, k, v], sizes)
    return output


close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", list(MASKS))
def test_masked_attention_of_part_of_the_keys(name: str) -> None:
    mask = MASKS[name]
    q, k, v = arrays(1, 24, 40)
    output = run(attention(mask, 1, 24, 40), q, k, v, {})
    close(output, expected(mask, q, k, v))


def test_skipped_blocks_change_no_bit() -> None:
    expr = attention(MASKS["window"], 1, 32, 40)
    q, k, v = arrays(1, 32, 40)
    on, off = (run(expr, q, k, v, {}, skips) for skips in (True, False))
    np.testing.assert_array_equal(on, off)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 40), (17, 17), (35, 23)])
def test_open_rows_and_keys(rows: int, keys: int) -> None:
    for name in ("window", "nothing_first"):
        q, k, v = arrays(1, rows, keys)
        expr = attention(MASKS[name], 1, symbol("n", 1), symbol("m", 1))
        output = run(expr, q, k, v, {"n": rows, "m": keys})
        close(output, expected(MASKS[name], q, k, v))


def blocks_run(kernel: TileKernel, block: int, keys: int) -> dict[tuple[int, ...], set[int]]:
    """Returns, for each tile, the blocks of the streaming loop that run by its bounds and
    conditions."""

    def visit(body: tuple[Stmt, ...], at: Mapping[str, int], blocks: set[int]) -> None:
        for node in body:
            if isinstance(node, If):
                is_taken = evaluate(node.lhs, at) < evaluate(node.rhs, at)
                inner = node.then if is_taken else node.otherwise
                # The remainder of the loop has no counter: it is the body of its conditions.
                if is_taken and any(isinstance(n, TileLoop) for n in inner) and node is not body[0]:
                    blocks.add(keys // block)
                visit(inner, at, blocks)
            elif (
                isinstance(node, TileLoop) and node.step == block and extent(node.var).const == keys
            ):
                start, stop = (int(evaluate(i, at)) for i in (node.start, node.stop))
                blocks.update(range(start // block, stop // block))

    counts = [int(evaluate(extent(a), {})) for a in kernel.axes]
    every: dict[tuple[int, ...], set[int]] = {}
    for unit in np.ndindex(*counts):
        names = {a.name: int(n) for a, n in zip(kernel.axes, unit, strict=True)}
        visit(kernel.body, names, every.setdefault(unit, set()))
    return every


@pytest.mark.parametrize("keys", [512, 250])
@pytest.mark.parametrize("name", list(MASKS))
def test_tiles_take_the_blocks_that_they_need(name: str, keys: int) -> None:
    mask, rows = MASKS[name], 128
    mask_values = mask.seen(rows, keys)
    for unit, blocks in blocks_run(kernel_of(attention(mask, 2, rows, keys)), BLOCK, keys).items():
        (visible,) = np.nonzero(mask_values[unit[-1] * ROWS : (unit[-1] + 1) * ROWS].any(axis=0))
        assert blocks == {int(n) // BLOCK for n in visible}


def test_keys_masked_for_all_rows_of_a_tile_are_not_read() -> None:
    expr = attention(MASKS["causal"], 1, 16, 64)
    q, k, v = arrays(1, 16, 64)
    k[:, 16:], v[:, 16:] = np.nan, np.inf
    reference = expected(MASKS["causal"], q, k[:, :16], v[:, :16])
    close(run(expr, q, k, v, {}), reference)
    assert np.isnan(run(expr, q, k, v, {}, skips=False)).all()


def test_finite_masks_hide_nothing() -> None:
    for mask in (Mask(high=0, hidden=-1e9), Mask(high=-1, hidden=LOWEST)):
        group = group_of(attention(mask, 2, 128, 256))
        assert not choose(group, CORE).skips


class Blocks(Mask):
    """A mask in which rows see the columns of their own block of 8, and of earlier blocks if
    `past`."""

    past = False

    def scalar(self, score: Scalar, row: Index, column: Index) -> Scalar:
        at = index_value(column, I64)
        tests = [apply("lt", at, index_value(row // 8 * 8 + 8, I64))]
        if not self.past:
            tests.append(apply("ge", at, index_value(row // 8 * 8, I64)))
        test = tests[0] if self.past else apply("and", *tests)
        return apply("select", test, score, literal(float("-inf"), F32))

    def seen(self, rows: int, columns: int) -> Array:
        row, column = np.arange(rows)[:, None] // 8, np.arange(columns) // 8
        return column <= row if self.past else column == row


class Past(Blocks):
    past = True


class Dilated(Mask):
    """A mask in which rows see the columns up to half of their row number."""

    def scalar(self, score: Scalar, row: Index, column: Index) -> Scalar:
        test = apply("gt", index_value(2 * column, I64), index_value(row, I64))
        return apply("select", test, literal(float("-inf"), F32), score)

    def seen(self, rows: int, columns: int) -> Array:
        return 2 * np.arange(columns) <= np.arange(rows)[:, None]


@pytest.mark.parametrize("kind", [Blocks, Past, Dilated])
def test_masks_of_other_comparisons_agree(kind: type[Mask]) -> None:
    mask, rows, keys = kind(), 48, 48
    expr = attention(mask, 1, rows, keys)
    q, k, v = arrays(1, rows, keys)
    close(run(expr, q, k, v, {}), expected(mask, q, k, v))
    mask_values = mask.seen(rows, keys)
    for unit, blocks in blocks_run(kernel_of(expr), BLOCK, keys).items():
        (visible,) = np.nonzero(mask_values[unit[-1] * ROWS : (unit[-1] + 1) * ROWS].any(axis=0))
        assert blocks == {int(n) // BLOCK for n in visible}


# ---- prices -------------------------------------------------------------------------------------


def test_prices_count_the_blocks_that_tiles_execute() -> None:
    for name, mask in MASKS.items():
        group = group_of(attention(mask, 2, 128, 250))
        schedule = replace(choose(group, CORE), stream_block=BLOCK)
        if not schedule.skips:
            continue
        named = {v.name: v for v in group.common}
        units = tuple((named[n], schedule.tile_size(n)) for n in schedule.parallel)
        key_counts = covered(group, units, BLOCK)
        for unit, blocks in blocks_run(lower(group, schedule), BLOCK, 250).items():
            keys = sum(min(BLOCK, 250 - BLOCK * n) for n in blocks)
            assert key_counts[unit] == keys / 250, name


def test_skipping_is_priced() -> None:
    machine = replace(shipped_machine("icelake-server"), cores=1)
    for name, least, most in (("causal", 0.5, 0.75), ("window", 0.1, 0.3)):
        group = group_of(attention(MASKS[name], 8, 512, 512))
        schedule = replace(choose(group, CORE), stream_block=BLOCK)
        on, off = (
            Pricer(machine).price(group, variant).seconds
            for variant in (schedule, replace(schedule, skips=False))
        )
        assert least < on / off < most


def test_uneven_tiles_are_priced() -> None:
    """The second of two tiles does nearly all work."""
    machine = replace(shipped_machine("icelake-server"), cores=2)
    group = group_of(attention(Mask(high=-16), 1, 32, 512))
    schedule = replace(choose(group, CORE), stream_block=BLOCK)
    on, off = (
        Pricer(machine).price(group, variant).imbalance
        for variant in (schedule, replace(schedule, skips=False))
    )
    assert off == 1
    assert on == 2
