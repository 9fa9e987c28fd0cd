"""Tests of attention with rounded factors: compiled kernels against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tcc.backends.cpu.detect import detect
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import cast, index_value
from tcc.ir.graph import carrier
from tcc.ir.index import Index, as_index, symbol
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import BF16, F32, I64, tensor
from tcc.ops.formula import choose as selected
from tcc.ops.formula import fn
from tcc.passes.fuse.structure import build_group, row_major_storage
from tcc.passes.quantize.round_factors import with_rounded_factors
from tcc.passes.tile.cpu.lower import lower
from tcc.schedule.cpu.choose import choose
from tcc.schedule.cpu.core import CoreModel, Knobs
from tcc.target import Target, parse_target

from tests.backends.cpu.conftest import Compiled
from tests.closeness import assert_within
from tests.draws import RNG

Array = np.ndarray[Any, np.dtype[Any]]
PAST, ROWS = symbol("past", 0, 9999), symbol("rows", 1, 9999)


def attention(
    rows: Index, past: Index, heads: int, share: int, width: int, narrow: bool = False
) -> Expr:
    """Returns causal attention; `share` heads share keys, and all arrays are [token, head, width].

    `narrow` stores keys and values in bf16.
    """
    keys, dtype = past + rows, BF16 if narrow else F32
    b = ExprBuilder(
        tensor(F32, rows, heads, width),
        *(tensor(dtype, keys, heads // share, width) for _ in range(2)),
    )
    h, i, j = at = b.iters(heads, rows, keys)
    (d,) = b.iters(width)
    term = fn("mul", b.read(0, i, h, d), cast(b.read(1, j, h // share, d), F32))
    products = b.stage(at, term, over=(d,), monoid="sum")

    def score(h: Index, i: Index, j: Index) -> Any:
        is_seen = index_value(j, I64) <= index_value(i + past, I64)
        return selected(is_seen, b.read(products, h, i, j) * (width**-0.5), -np.inf)

    h, i = b.iters(heads, rows)
    (j,) = b.iters(keys)
    peak = b.stage((h, i), score(h, i, j), over=(j,), monoid="max")
    h, i, j = at = b.iters(heads, rows, keys)
    powers = b.stage(at, fn("exp", score(h, i, j) - b.read(peak, h, i)))
    h, i = b.iters(heads, rows)
    (j,) = b.iters(keys)
    total = b.stage((h, i), b.read(powers, h, i, j), over=(j,), monoid="sum")
    h, i, e = at = b.iters(heads, rows, width)
    (j,) = b.iters(keys)
    term = fn("mul", b.read(powers, h, i, j), cast(b.read(2, j, h // share, e), F32))
    mixed = b.stage(at, term, over=(j,), monoid="sum")
    i, h, e = b.iters(rows, heads, width)
    b.stage((i, h, e), b.read(mixed, h, i, e) / b.read(total, h, i))
    return b.done()


def exact(q: Array, k: Array, v: Array, past: int) -> tuple[Array, Array]:
    """Returns the attention in float64, and the weighted sums of the values' magnitudes."""
    share = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64).swapaxes(0, 1) for x in (q, k, v))
    k, v = (np.repeat(x, share, 0) for x in (k, v))
    s = q @ k.swapaxes(1, 2) * q.shape[2] ** -0.5
    s = np.where(np.tri(*s.shape[1:], past, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return (p @ v).swapaxes(0, 1), (p @ np.abs(v)).swapaxes(0, 1)


def bf16(x: Array) -> Array:
    return np.asarray(carrier(x, BF16), np.float32)


@pytest.fixture(params=["host", "x86-64-v3"])
def compiled(request: pytest.FixtureRequest) -> Callable[[Expr], Compiled]:
    target: Target = parse_target("cpu", request.param, detect)
    profile = target.profile
    core = CoreModel(profile.lanes(32), profile.vector_registers, masked=profile.lanes(32) == 16)

    def compile_(expr: Expr) -> Compiled:
        group = build_group(expr, *row_major_storage(expr, [False] * 3), limits=core.limits)
        assert group.stream is not None
        kernel = lower(group, choose(group, core))
        verify_kernel(kernel)
        return Compiled(kernel, target)

    return compile_


# Each row is (rows, heads, heads that share keys, width), and the (rows, cached tokens) of runs; 0
# rows stands for a symbol.
CASES = {
    "one row, shared heads": ((1, 16, 8, 64), ((1, 0), (1, 1), (1, 99), (1, 510), (1, 1499))),
    "open rows": ((0, 4, 2, 40), ((1, 0), (2, 0), (5, 95), (70, 441), (64, 64), (17, 1))),
    "a head for each": ((0, 2, 1, 80), ((1, 510), (3, 7), (100, 0))),
    "wide heads": ((32, 4, 4, 112), ((32, 0), (32, 97))),
    "three heads share": ((1, 9, 3, 64), ((1, 0), (1, 200))),
}  # fmt: skip


@pytest.mark.parametrize("narrow", [False, True], ids=["f32 cache", "bf16 cache"])
@pytest.mark.parametrize("name", CASES)
def test_factors_are_rounded_and_sums_are_not(
    name: str, narrow: bool, compiled: Callable[[Expr], Compiled]
) -> None:
    (rows, heads, share, width), runs = CASES[name]
    expr = attention(as_index(rows) if rows else ROWS, PAST, heads, share, width, narrow)
    paired = with_rounded_factors(expr, ())
    assert paired != expr
    kernel = compiled(paired)
    for rows, past in runs:
        keys = (past + rows, heads // share, width)
        q, k, v = (
            RNG.standard_normal(s).astype(np.float32) for s in ((rows, heads, width), keys, keys)
        )
        k, v = (bf16(x) if narrow else x for x in (k, v))
        output = kernel.run([q, k, v, np.zeros_like(q)], {"rows": rows, "past": past})[-1]
        reference, magnitude = exact(*map(bf16, (q, k, v)), past)
        # Rounding to 8 bits changes an exponential by at most 2^-9 of its value, and the sum
        # likewise.
        assert_within(output, reference, 2.0**-8 * magnitude + 1e-6)
        if past + rows >= 90:
            unrounded, _ = exact(q, k, v, past)
            error_of_rounded, error_of_unrounded = (
                np.square(output - x).mean() for x in (reference, unrounded)
            )
            assert 1.5 * error_of_rounded < error_of_unrounded


@pytest.mark.parametrize(("rows", "past"), [(1, 0), (2, 99), (70, 441)])
def test_vectors_run_along_rows_or_along_keys(rows: int, past: int) -> None:
    target = parse_target("cpu", "host", detect)
    core = CoreModel(target.profile.lanes(32), target.profile.vector_registers)
    expr = attention(ROWS, PAST, 4, 2, 40)
    group = build_group(expr, *row_major_storage(expr, [False] * 3), limits=core.limits)
    assert group.stream is not None
    keys = (past + rows, 2, 40)
    q, k, v = (RNG.standard_normal(s).astype(np.float32) for s in ((rows, 4, 40), keys, keys))
    reference, magnitude = exact(q, k, v, past)
    along = []
    for direction in (0, 1):
        schedule = choose(group, replace(core, knobs=Knobs(direction=direction)))
        (peak,) = (n for n, s in enumerate(group.stages) if s.monoid == "max")
        along.append(schedule.nest(peak).vector == group.stream.loop.name)
        arrays = [q, k, v, np.zeros_like(q)]
        outputs = Compiled(lower(group, schedule), target).run(arrays, {"rows": rows, "past": past})
        assert_within(outputs[-1], reference, 1e-5 * magnitude + 1e-6)
    assert sorted(along) == [False, True]


def test_factors_that_no_loop_uses_again_stay_f32() -> None:
    """A row of one head multiplies each key once, so no key is rounded for it."""
    expr = attention(as_index(1), PAST, 2, 1, 64)
    assert with_rounded_factors(expr, ()) == expr


def test_factors_of_constants_stay() -> None:
    expr = attention(ROWS, PAST, 4, 2, 40)
    assert with_rounded_factors(expr, (0, 1, 2)) != with_rounded_factors(expr, ())
