"""Streaming loops skip hidden blocks: they take few steps and do not touch hidden elements."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder, extent
from tcc.ir.expr.scalar import Scalar, apply, index_value, literal
from tcc.ir.index import Index, IndexLike, evaluate, symbol
from tcc.ir.op import Array
from tcc.ir.tile import TileKernel, TileLoop
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.tile.verify_gpu import verify_blocks
from tcc.ir.types import F32, I64, tensor
from tcc.ops.formula import choose, fn
from tcc.passes.tile.gpu.lower import lower_blocks
from tcc.schedule.gpu.choose import choose_blocks
from tcc.schedule.gpu.schedule import BlockSchedule

from . import tiles

DEPTH = 16
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Mask:
    """A mask by which row `i` sees columns `i + low .. i + high` (None: no bound).

    `negated` tests for hidden columns instead. `added` adds `hidden` to hidden scores instead of
    selecting it.
    """

    low: int | None = None
    high: int | None = None
    negated: bool = False
    added: bool = False
    hidden: float = float("-inf")

    def scalar(self, score: Scalar, row: Index, column: Index) -> Scalar:
        tests = []
        at = index_value(column, I64)
        if self.low is not None:
            edge = index_value(row + self.low, I64)
            tests.append(apply("lt", at, edge) if self.negated else apply("ge", at, edge))
        if self.high is not None:
            edge = index_value(row + self.high, I64)
            tests.append(apply("gt", at, edge) if self.negated else apply("le", at, edge))
        join = "or" if self.negated else "and"
        test = tests[0] if len(tests) == 1 else apply(join, *tests)
        visible: Scalar = literal(0.0, F32) if self.added else score
        hidden: Scalar = literal(self.hidden, F32)
        selected = choose(test, *((hidden, visible) if self.negated else (visible, hidden)))
        return fn("add", score, selected) if self.added else selected

    def seen(self, rows: int, columns: int) -> Array:
        distance = np.arange(columns) - np.arange(rows)[:, None]
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        return (distance >= low) & (distance <= high)


def attention(mask: Mask, heads: int, rows: IndexLike, keys: IndexLike, share: int = 1) -> Expr:
    """Returns softmax of masked scores times values; `share` heads have common keys and values."""
    b = ExprBuilder(
        tensor(F32, heads, rows, DEPTH),
        *(tensor(F32, heads // share, keys, DEPTH) for _ in range(2)),
    )
    h, i, j = at = b.iters(heads, rows, keys)
    (d,) = b.iters(DEPTH)
    products = fn("mul", b.read(0, h, i, d), b.read(1, h // share, j, d))
    scores = b.stage(at, products, over=(d,), monoid="sum")
    h, i, j = at = b.iters(heads, rows, keys)
    scores = b.stage(at, mask.scalar(fn("mul", b.read(scores, *at), 0.25), i, j))
    h, i = b.iters(heads, rows)
    (j,) = b.iters(keys)
    peak = b.stage((h, i), b.read(scores, h, i, j), over=(j,), monoid="max")
    h, i, j = at = b.iters(heads, rows, keys)
    powers = b.stage(at, fn("exp", fn("sub", b.read(scores, *at), b.read(peak, h, i))))
    h, i = b.iters(heads, rows)
    (j,) = b.iters(keys)
    total = b.stage((h, i), b.read(powers, h, i, j), over=(j,), monoid="sum")
    h, i, e = at = b.iters(heads, rows, DEPTH)
    (j,) = b.iters(keys)
    term = fn("mul", b.read(powers, h, i, j), b.read(2, h // share, j, e))
    mixed = b.stage(at, term, over=(j,), monoid="sum")
    h, i, e = at = b.iters(heads, rows, DEPTH)
    b.stage(at, fn("div", b.read(mixed, *at), b.read(total, h, i)))
    return b.done()


def kernel_of(expr: Expr, skips: bool = True) -> tuple[TileKernel, BlockSchedule]:
    group = tiles.group_of(expr)
    schedule = choose_blocks(group)
    steps = {**dict(schedule.blocks), "stream": 64}
    schedule = replace(schedule, blocks=tuple(steps.items()))
    kernel = lower_blocks(group, schedule, skips)
    verify_kernel(kernel)
    verify_blocks(kernel)
    return kernel, schedule


def run(
    expr: Expr, q: Array, k: Array, v: Array, sizes: dict[str, int], skips: bool = True
) -> Array:
    (output,) = tiles.run_kernel(kernel_of(expr, skips)[0], expr.types, [q, k, v], sizes)
    return output


def expected(mask: Mask, q: Array, k: Array, v: Array) -> Array:
    share = q.shape[0] // k.shape[0]
    k, v = (np.repeat(x, share, axis=0).astype(np.float64) for x in (k, v))
    scores = 0.25 * np.einsum("hid,hjd->hij", q, k)
    scores = np.where(mask.seen(q.shape[1], k.shape[1]), scores, -np.inf)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hij,hje->hie", powers / powers.sum(axis=-1, keepdims=True), v)


def arrays(heads: int, rows: int, keys: int, share: int = 1) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(rows + keys)
    shapes = ((heads, rows, DEPTH), *((heads // share, keys, DEPTH),) * 2)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    return q, k, v


def trips(kernel: TileKernel, sizes: dict[str, int]) -> dict[tuple[int, ...], range]:
    """Returns the steps of the only loop, for each tile."""
    (loop,) = [s for s in kernel.body if isinstance(s, TileLoop)]
    counts = [int(evaluate(extent(a), sizes)) for a in kernel.axes]
    trips_by_unit = {}
    for unit in np.ndindex(*counts):
        at = sizes | {a.name: int(n) for a, n in zip(kernel.axes, unit, strict=True)}
        trips_by_unit[unit] = range(int(evaluate(loop.start, at)), int(evaluate(loop.stop, at)))
    return trips_by_unit


MASKS = {
    "causal": Mask(high=0),
    "negated": Mask(high=0, negated=True),
    "added": Mask(high=0, added=True),
    "past": Mask(high=150),
    "future": Mask(low=0),
    "window": Mask(low=-70, high=0),
    "window_negated": Mask(low=-70, high=9, negated=True),
    "nothing_first": Mask(high=-20),
    "lowest": Mask(high=3, hidden=LOWEST),
    "lowest_added": Mask(low=-70, high=0, negated=True, added=True, hidden=LOWEST),
}


@pytest.mark.parametrize("share", [1, 2])
@pytest.mark.parametrize("name", list(MASKS))
def test_masked_attention_of_part_of_the_keys(name: str, share: int) -> None:
    mask = MASKS[name]
    q, k, v = arrays(4, 100, 200, share)
    output = run(attention(mask, 4, 100, 200, share), q, k, v, {})
    np.testing.assert_allclose(output, expected(mask, q, k, v), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("rows", "keys"), [(1, 300), (37, 37), (130, 200), (200, 70)])
@pytest.mark.parametrize("name", ["causal", "window"])
def test_open_rows_and_keys(name: str, rows: int, keys: int) -> None:
    mask = MASKS[name]
    q, k, v = arrays(2, rows, keys)
    expr = attention(mask, 2, symbol("n", 1), symbol("m", 1))
    output = run(expr, q, k, v, {"n": rows, "m": keys})
    np.testing.assert_allclose(output, expected(mask, q, k, v), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("share", [1, 2])
@pytest.mark.parametrize("name", list(MASKS))
def test_tiles_take_the_steps_that_they_need(name: str, share: int) -> None:
    mask, rows, keys = MASKS[name], 128, 512
    kernel, schedule = kernel_of(attention(mask, 4, rows, keys, share))
    block = dict(schedule.blocks)["stream"]
    mask_values = mask.seen(rows, keys)
    (tall,) = {n for name, n in schedule.blocks if name.endswith(schedule.parallel[-1])}
    for unit, steps in trips(kernel, {}).items():
        first = unit[-1] * tall % rows
        (visible,) = np.nonzero(mask_values[first : first + tall].any(axis=0))
        needed = {int(n) // block for n in visible}
        assert needed <= set(steps)
        assert len(steps) == (max(needed) - min(needed) + 1 if needed else 0)


def test_keys_masked_for_all_rows_of_a_tile_are_not_read() -> None:
    expr = attention(MASKS["causal"], 2, 32, 512)
    q, k, v = arrays(2, 32, 512)
    k[:, 64:], v[:, 64:] = np.nan, np.inf
    reference = expected(MASKS["causal"], q, k[:, :64], v[:, :64])
    np.testing.assert_allclose(run(expr, q, k, v, {}), reference, rtol=2e-5, atol=2e-5)
    assert np.isnan(run(expr, q, k, v, {}, skips=False)).all()


def test_masks_that_are_data_or_finite_hide_nothing() -> None:
    finite = (
        Mask(high=0, hidden=-1e9),  # a score may be lower
        Mask(high=-1, hidden=LOWEST),  # the first row has no other score
        Mask(low=1, hidden=LOWEST),  # the last row may have no other score
    )
    exprs = [attention(mask, 2, 128, 512) for mask in finite[:2]]
    exprs.append(attention(finite[2], 2, 512, 512))
    for expr in (_of_data(), *exprs):
        kernel, _ = kernel_of(expr)
        assert {len(t) for t in trips(kernel, {}).values()} == {8}


def test_rows_that_are_hidden_by_the_lowest_number_are_means() -> None:
    mask = Mask(high=-1, hidden=LOWEST)
    q, k, v = arrays(2, 40, 300)
    output = run(attention(mask, 2, 40, 300), q, k, v, {})
    np.testing.assert_allclose(output[:, 0], v.mean(axis=1), rtol=2e-5, atol=2e-5)
    reference = expected(mask, q, k, v)[:, 1:]
    np.testing.assert_allclose(output[:, 1:], reference, rtol=2e-5, atol=2e-5)


def _of_data() -> Expr:
    """Returns attention whose scores depend on data, without a mask."""
    b = ExprBuilder(tensor(F32, 128, 512), tensor(F32, 512, DEPTH))
    i, j = b.iters(128, 512)
    scores = b.stage((i, j), fn("add", fn("mul", b.read(0, i, j), 2.0), b.read(0, i, j)))
    (i,), (j,) = b.iters(128), b.iters(512)
    peak = b.stage((i,), b.read(scores, i, j), over=(j,), monoid="max")
    i, j = b.iters(128, 512)
    powers = b.stage((i, j), fn("exp", fn("sub", b.read(scores, i, j), b.read(peak, i))))
    i, e = b.iters(128, DEPTH)
    (j,) = b.iters(512)
    term = fn("mul", b.read(powers, i, j), b.read(1, j, e))
    b.stage((i, e), term, over=(j,), monoid="sum")
    return b.done()
