"""Chained reductions in parts give the results of whole rows, whatever the number of parts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder, extent
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.graph import Value
from tcc.ir.index import evaluate, symbol
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import F32, tensor
from tcc.passes.fuse.chain_parts import chain_parts
from tcc.passes.fuse.split import Kernel, cut_behind
from tcc.passes.fuse.streaming import streamed
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.limits import TYPICAL_LIMITS
from tcc.schedule.masked_terms import limits_of, moves_with
from tcc.schedule.nest import multiplied

from tests.closeness import assert_within
from tests.passes.fuse.test_online_reductions import (
    MASKS,
    Array,
    attention,
    chain,
    expected,
    fn,
    inputs,
    short_runs,
)
from tests.passes.tile.cpu import tiles

ROWS = symbol("r", 1)
KEYS = symbol("s", 0, typical=64)


def kernels(expr: Expr, size: int = 12) -> tuple[Kernel, Kernel]:
    """Returns the kernel of the parts of `size` elements, and the kernel that combines them."""
    (parts,) = chain_parts(expr, (size,))
    operands = tuple(Value(f"p{n}", type_) for n, type_ in enumerate(expr.params) if type_)
    results = tuple(Value(f"r{n}", type_) for n, type_ in enumerate(expr.types))
    names = (f"part{n}" for n in count())
    return cut_behind(Kernel(parts.expr, operands, results), parts.partial, names)


def computed(expr: Expr, operands: list[Array], sizes: dict[str, int]) -> Array:
    """Returns the result of `expr`, computed by both kernels as tile programs."""
    by_name = {f"p{n}": array for n, array in enumerate(operands)}
    for kernel in kernels(expr):
        arrays = [by_name[v.name] for v in kernel.operands]
        results = tiles.run(kernel.expr, arrays, sizes, short_runs)
        by_name |= {v.name: array for v, array in zip(kernel.results, results, strict=True)}
    return by_name["r0"]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_in_parts(mask: str, causal: bool, clean: bool) -> None:
    """Parts may have masked keys only, infinite scores and NaNs."""
    operands, sizes = inputs(9, 40), {"r": 9, "s": 40}
    for where, value in MASKS[mask]:
        operands[2][where] = value
    expr = attention(ROWS, KEYS, causal=causal, clean=clean)
    (parts,) = chain_parts(expr, (12,))
    with np.errstate(all="ignore"):
        (exact_result,) = evaluate_expr(parts.expr, operands, sizes)
    reference = expected(*operands, causal=causal, clean=clean)
    for result in (exact_result, computed(expr, operands, sizes)):
        np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [1, 11, 12, 13, 24, 100])
def test_a_last_part_of_any_length(keys: int) -> None:
    operands, sizes = inputs(1, keys), {"r": 1, "s": keys}
    output = computed(attention(ROWS, KEYS), operands, sizes)
    reference = expected(*operands, causal=False, clean=False)
    np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-5)


def test_no_part_of_no_keys() -> None:
    output = computed(attention(ROWS, KEYS, clean=True), inputs(2, 0), {"r": 2, "s": 0})
    assert not output.any()


def test_a_sum_that_reads_no_state_is_in_parts_too() -> None:
    """l = sum exp(y - max y) and a plain sum of y, for y = x x."""
    b = ExprBuilder(tensor(F32, 3, KEYS))
    i, j = b.iters(3, KEYS)
    square = b.stage((i, j), b.read(0, i, j) * b.read(0, i, j))
    i, j = b.iters(3, KEYS)
    top = b.stage((i,), b.read(square, i, j), over=(j,), monoid="max")
    i, j = b.iters(3, KEYS)
    total = b.sum((i,), fn("exp", b.read(square, i, j) - b.read(top, i)), over=(j,))
    i, j = b.iters(3, KEYS)
    plain = b.sum((i,), b.read(square, i, j), over=(j,))
    (i,) = b.iters(3)
    b.stage((i,), b.read(total, i) + b.read(plain, i))
    x = np.random.default_rng(0).standard_normal((3, 50)).astype("f4")
    output = computed(b.done(), [x], {"s": 50})
    exact = x.astype("f8") ** 2
    reference = np.exp(exact - exact.max(1, keepdims=True)).sum(1) + exact.sum(1)
    assert_within(output, reference, 1e-6 * (50 + exact.sum(1)))


def test_a_tile_leaves_out_the_blocks_of_other_parts() -> None:
    """Both ends of a part limit the streaming loop of the first kernel."""
    first, second = kernels(attention(ROWS, KEYS, causal=True))
    assert streamed(first.expr, TYPICAL_LIMITS) is not None
    group = tiles.build(first.expr).group
    assert len(limits_of(group)) == 3
    (moving_loop,) = (loop for loop in group.common if moves_with(group, loop))
    assert evaluate(extent(moving_loop), {"s": 100}) == 9
    assert multiplied(first.expr.stages[-1])  # values stay a factor that no mask hides
    assert len(second.expr.stages) == 5
    assert streamed(second.expr, TYPICAL_LIMITS) is not None


@pytest.mark.parametrize("seed", range(4))
def test_parts_under_any_schedule(seed: int) -> None:
    operands, sizes = inputs(5, 31), {"r": 5, "s": 31}
    operands[2][:13] = -np.inf
    first, second = kernels(attention(ROWS, KEYS))
    draw: Callable[[TileGroup], Schedule] = tiles.drawn(np.random.default_rng(seed))
    by_name = {v.name: a for v, a in zip(first.operands, [operands[0], *operands[1:]], strict=True)}
    for kernel in (first, second):
        arrays = [by_name[v.name] for v in kernel.operands]
        results = tiles.run(kernel.expr, arrays, sizes, draw)
        by_name |= {v.name: array for v, array in zip(kernel.results, results, strict=True)}
    reference = expected(*operands, causal=False, clean=False)
    np.testing.assert_allclose(by_name["r0"], reference, rtol=1e-4, atol=1e-5)


def test_no_parts_without_a_chain_or_with_one_part() -> None:
    assert not list(chain_parts(chain(keep=True), (4,)))
    assert not list(chain_parts(attention(9, 40), (12,)))
    assert not list(chain_parts(attention(ROWS, KEYS), (64,)))
