"""The online form of chained reductions is found where it exists, and gives the same results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.rename import canonical
from tcc.ir.expr.scalar import Scalar, apply, argument, index_value, literal, read, replaced
from tcc.ir.index import IndexLike, as_int, iterator, symbol
from tcc.ir.tile.group import TileGroup
from tcc.ir.types import F32, I64, tensor
from tcc.passes.fuse.compose import costly, drop_unused, inline_pointwise
from tcc.passes.fuse.hoist import hoist_normalisers
from tcc.passes.fuse.online_reductions import derive
from tcc.passes.fuse.rescale import rescaling
from tcc.passes.fuse.streaming import streamed
from tcc.schedule.cpu.schedule import Schedule
from tcc.schedule.limits import TYPICAL_LIMITS

from tests.closeness import assert_within
from tests.passes.tile.cpu import tiles

Array = np.ndarray[Any, np.dtype[Any]]
_J = iterator("i0", 8)
_X = read(0, (_J,), F32)
_V = read(1, (_J,), F32)
_M = read(2, (), F32)


def fn(name: str, *args: Scalar) -> Scalar:
    return apply(name, *args)


def number(value: float) -> Scalar:
    return literal(value, F32)


# ---- the algebraic test -------------------------------------------------------------------------

_OLD, _NEW = argument(0, F32), argument(1, F32)
_FOLLOWS = {
    "exponential": (fn("exp", fn("sub", _X, _M)), fn("exp", fn("sub", _OLD, _NEW))),
    "weighted": (
        fn("mul", fn("exp", fn("sub", _X, _M)), _V),
        fn("exp", fn("sub", _OLD, _NEW)),
    ),
    "of a minimum": (fn("exp", fn("sub", _M, _X)), fn("exp", fn("sub", _NEW, _OLD))),
    "scaled": (
        fn("exp", fn("mul", fn("sub", _X, _M), number(0.5))),
        fn("exp", fn("mul", fn("sub", _OLD, _NEW), number(0.5))),
    ),
    "in a quotient": (
        fn("div", _V, fn("exp", fn("sub", _X, _M))),
        fn("div", number(1), fn("exp", fn("sub", _OLD, _NEW))),
    ),
}


@pytest.mark.parametrize("name", _FOLLOWS)
def test_terms_that_follow_a_state(name: str) -> None:
    term, factor = _FOLLOWS[name]
    assert rescaling(term, _M) is factor


@pytest.mark.parametrize(
    "term",
    [
        fn("sub", _X, _M),
        fn("mul", fn("sub", _X, _M), fn("sub", _X, _M)),
        fn("exp", fn("mul", _X, _M)),
        fn("exp", fn("max", _X, _M)),
        fn("add", fn("exp", fn("sub", _X, _M)), _V),
        fn("tanh", fn("sub", _X, _M)),
        fn("select", fn("lt", _X, _M), _V, number(0)),
    ],
    ids=str,
)
def test_terms_that_do_not(term: Scalar) -> None:
    assert rescaling(term, _M) is None


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_factor_is_never_wrong(data: st.DataObject) -> None:
    """For every scalar: if there is a rescaling factor, terms times the factor are terms of the new
    state."""
    leaf = st.sampled_from([_X, _V, _M, number(0.5), number(-2)])

    def grow(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
        two = st.builds(fn, st.sampled_from(["add", "sub", "mul", "div", "max"]), inner, inner)
        return two | st.builds(fn, st.sampled_from(["exp", "neg", "abs"]), inner)

    term = data.draw(st.recursive(leaf, grow, max_leaves=6))
    factor = rescaling(term, _M)
    if factor is None:
        return
    rng = np.random.default_rng(0)
    x, v = (rng.uniform(-1, 1, 8).astype("f4") for _ in range(2))
    old, new = (np.asarray(n, "f4") for n in (0.3, 0.8))
    terms = ExprBuilder(tensor(F32, 8), tensor(F32, 8), tensor(F32))
    terms.stage((_J,), term)
    change = ExprBuilder(tensor(F32), tensor(F32))
    change.stage((), replaced(factor, {argument(n, F32): read(n, (), F32) for n in range(2)}))
    (before,) = evaluate_expr(terms.done(), [x, v, old])
    (after,) = evaluate_expr(terms.done(), [x, v, new])
    (rescaled,) = evaluate_expr(change.done(), [old, new])
    np.testing.assert_allclose(before * rescaled, after, rtol=1e-3, atol=1e-5)


# ---- chains -------------------------------------------------------------------------------------


def attention(
    rows: IndexLike, keys: IndexLike, *, causal: bool = False, clean: bool = False
) -> Expr:
    """Returns softmax(q k^T + mask) v of two heads, 8 wide; `clean` replaces NaN shares by 0."""
    q, k = tensor(F32, 2, rows, 8), tensor(F32, 2, keys, 8)
    b = ExprBuilder(q, k, tensor(F32, keys), k)
    h, i, j, d = b.iters(2, rows, keys, 8)
    score = b.stage(
        (h, i, j), fn("mul", b.read(0, h, i, d), b.read(1, h, j, d)), over=(d,), monoid="sum"
    )
    h, i, j = b.iters(2, rows, keys)
    value = fn("add", b.read(score, h, i, j), b.read(2, j))
    if causal:
        is_visible = apply("le", index_value(j, I64), index_value(i, I64))
        value = fn("select", is_visible, value, number(-np.inf))
    masked = b.stage((h, i, j), value)
    h, i, j = b.iters(2, rows, keys)
    top = b.stage((h, i), b.read(masked, h, i, j), over=(j,), monoid="max")
    h, i, j = b.iters(2, rows, keys)
    below = fn("sub", b.read(masked, h, i, j), b.read(top, h, i))
    share = b.stage((h, i, j), fn("exp", below))
    h, i, j = b.iters(2, rows, keys)
    total = b.stage((h, i), b.read(share, h, i, j), over=(j,), monoid="sum")
    h, i, j = b.iters(2, rows, keys)
    part = fn("mul", b.read(share, h, i, j), fn("div", number(1), b.read(total, h, i)))
    if clean:
        part = fn("select", fn("is_nan", part), number(0), part)
    weights = b.stage((h, i, j), part)
    h, i, j, d = b.iters(2, rows, keys, 8)
    body = fn("mul", b.read(weights, h, i, j), b.read(3, h, j, d))
    b.stage((h, i, d), body, over=(j,), monoid="sum")
    return inlined(b.done())


def inlined(expr: Expr) -> Expr:
    """Inlines stages that are read once, as the composition of nodes does."""
    reduced, _ = drop_unused(hoist_normalisers(expr))
    reduced, _ = drop_unused(inline_pointwise(reduced, costly(reduced, TYPICAL_LIMITS)))
    return canonical(reduced)


def expected(q: Array, k: Array, mask: Array, v: Array, *, causal: bool, clean: bool) -> Array:
    """Returns the result in float64, computed on whole rows."""
    q, k, mask, v = (a.astype("f8") for a in (q, k, mask, v))
    with np.errstate(all="ignore"):
        s = q @ k.transpose(0, 2, 1) + mask
        if causal:
            s = np.where(np.tri(s.shape[1], s.shape[2], dtype=bool), s, -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        result: Array = (np.where(np.isnan(p), 0, p) if clean else p) @ v
    return result


def inputs(rows: int, keys: int) -> list[Array]:
    rng = np.random.default_rng(rows)
    shapes = ((2, rows, 8), (2, keys, 8), (keys,), (2, keys, 8))
    return [rng.standard_normal(s).astype("f4") for s in shapes]


def short_runs(group: TileGroup) -> Schedule:
    assert group.stream is not None
    return replace(tiles.chosen(group), stream_block=12)


MASKS = {
    "none": (),
    "padded front": ((slice(0, 30), -np.inf),),
    "padded back": ((slice(20, None), -np.inf),),
    "nothing left": ((slice(None), -np.inf),),
    "infinite": ((17, np.inf),),
    "nan": ((17, np.nan),),
}


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("causal", "open_"), [(False, False), (True, True)])
def test_attention_in_runs(mask: str, causal: bool, clean: bool, open_: bool) -> None:
    rows, keys = 9, 40
    sizes = {"r": rows, "s": keys}
    shape = (symbol("r", 1), symbol("s", 1)) if open_ else (rows, keys)
    expr = attention(*shape, causal=causal, clean=clean)
    assert streamed(expr, TYPICAL_LIMITS) is not None
    operands = inputs(rows, keys)
    for where, value in MASKS[mask]:
        operands[2][where] = value
    (output,) = tiles.run(expr, operands, sizes, short_runs)
    reference = expected(*operands, causal=causal, clean=clean)
    np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [0, 40])
def test_attention_over_keys_that_may_be_none(keys: int, causal: bool, clean: bool) -> None:
    """A sum without terms is 0, for any divisor."""
    expr = attention(symbol("r"), symbol("s"), causal=causal, clean=clean)
    assert streamed(expr, TYPICAL_LIMITS) is not None
    operands = inputs(9, keys)
    (output,) = tiles.run(expr, operands, {"r": 9, "s": keys}, short_runs)
    (direct,) = evaluate_expr(expr, operands, {"r": 9, "s": keys})
    reference = expected(*operands, causal=causal, clean=clean) if keys else np.zeros((2, 9, 8))
    for result in (output, direct):
        np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 9])
@pytest.mark.parametrize("seed", range(6))
def test_attention_under_any_schedule(seed: int, rows: int) -> None:
    operands = inputs(rows, 17)
    operands[2][:9] = -np.inf
    (output,) = tiles.run(
        attention(rows, 17), operands, {}, tiles.drawn(np.random.default_rng(seed))
    )
    reference = expected(*operands, causal=False, clean=False)
    np.testing.assert_allclose(output, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 7])
def test_a_few_rows_multiply_keys_as_they_lie(rows: int) -> None:
    """The sums of the scores run along the vectors, so that neither keys nor rows are
    transposed."""
    expr = attention(rows, 64)
    assert streamed(expr, TYPICAL_LIMITS) is None
    assert streamed(attention(8, 64), TYPICAL_LIMITS) is not None
    built = tiles.build(expr)
    stage = built.group.stages[0]
    (vector,) = [n.vector for n in built.schedule.nests if 0 in n.stages]
    assert [v.name for v in stage.reduce] == [vector]
    assert all(as_int(b.sizes[0]) != 64 * 8 for b in built.kernel.locals)


def test_many_keys_take_little_memory() -> None:
    """Scratch does not grow with the number of keys."""
    small, large = (tiles.build(attention(64, keys)) for keys in (512, 8192))
    assert resident(small) == resident(large) < 1 << 17
    assert small.unproved == large.unproved == ()


def resident(built: tiles.Built) -> int:
    return sum(as_int(b.sizes[0]) or 0 for b in built.kernel.locals) * 4


def chain(term: Scalar | None = None, *, keep: bool = False) -> Expr:
    """Returns m = max x, l = sum term(x, m), and a result of both; with `keep`, the result reads
    the terms again."""
    n = symbol("n", 1)
    b = ExprBuilder(tensor(F32, 3, n))
    i, j = b.iters(3, n)
    top = b.stage((i,), b.read(0, i, j), over=(j,), monoid="max")
    i, j = b.iters(3, n)
    below = fn("sub", b.read(0, i, j), b.read(top, i))
    body = fn("exp", below) if term is None else fn("mul", below, below)
    share = b.stage((i, j), body)
    i, j = b.iters(3, n)
    total = b.stage((i,), b.read(share, i, j), over=(j,), monoid="sum")
    if keep:
        i, j = b.iters(3, n)
        b.stage((i, j), fn("div", b.read(share, i, j), b.read(total, i)))
    else:
        (i,) = b.iters(3)
        b.stage((i,), fn("add", b.read(top, i), fn("log", b.read(total, i))))
    return b.done()


def test_a_log_of_a_sum_streams() -> None:
    x = np.random.default_rng(0).standard_normal((3, 50)).astype("f4") * 9
    x[1] = -np.inf
    (output,) = tiles.run(chain(), [x], {"n": 50}, short_runs)
    with np.errstate(all="ignore"):
        reference = x.max(1) + np.log(np.exp(x.astype("f8") - x.max(1, keepdims=True)).sum(1))
    assert_within(output, reference, 1e-6 * np.nan_to_num(np.abs(x).max(1), posinf=0))


def test_values_read_after_the_streaming_loop_must_not_be_computed_in_it() -> None:
    assert derive(chain()) is not None
    assert derive(chain(keep=True)) is None


def shares(*, bounded: bool) -> Expr:
    """Returns sum (e / sum e) v with e = exp(x - max x) if `bounded`, else e = exp(x), which may
    overflow."""
    b = ExprBuilder(tensor(F32, 3, 8), tensor(F32, 8, 4))
    i, j = b.iters(3, 8)
    top = b.stage((i,), b.read(0, i, j), over=(j,), monoid="max")
    i, j = b.iters(3, 8)
    below = b.stage((i, j), fn("sub", b.read(0, i, j), b.read(top, i)))
    i, j = b.iters(3, 8)
    part = b.stage((i, j), fn("exp", b.read(below, i, j) if bounded else b.read(0, i, j)))
    i, j = b.iters(3, 8)
    total = b.stage((i,), b.read(part, i, j), over=(j,), monoid="sum")
    i, j = b.iters(3, 8)
    share = b.stage((i, j), fn("div", b.read(part, i, j), b.read(total, i)))
    i, j, n = b.iters(3, 8, 4)
    b.stage((i, n), fn("mul", b.read(share, i, j), b.read(1, j, n)), over=(j,), monoid="sum")
    return b.done()


@pytest.mark.parametrize("bounded", [False, True])
def test_totals_stay_where_weights_may_be_large(bounded: bool) -> None:
    expr = shares(bounded=bounded)
    assert (hoist_normalisers(expr) is expr) is not bounded
    x, v = np.full((3, 8), 86, "f4"), np.full((8, 4), 20, "f4")
    (output,) = evaluate_expr(hoist_normalisers(expr), [x, v])
    np.testing.assert_allclose(output, np.full((3, 4), 20), rtol=1e-6, atol=1e-5)


def test_a_sum_of_squares_does_not_follow_a_maximum() -> None:
    assert derive(chain(number(2))) is None
