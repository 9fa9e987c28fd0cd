"""Totals over whole tensors in two steps: on numbers, and where kernels are cut."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.graph import Value
from tcc.ir.types import F32, TensorType
from tcc.ops.formula import fn
from tcc.passes.fuse.split import split
from tcc.passes.fuse.split_reductions import alone, in_parts
from tcc.schedule.limits import TYPICAL_LIMITS

SHAPE = (16, 96, 100)
X = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)


def total(shape: tuple[int, ...], monoid: str) -> Expr:
    b = ExprBuilder(TensorType(F32, shape))
    over = b.iters(*shape)
    b.stage((), b.read(0, *over), over=over, monoid=monoid)
    return b.done()


def centred(shape: tuple[int, ...]) -> Expr:
    """x less its largest element."""
    b = ExprBuilder(TensorType(F32, shape))
    over = b.iters(*shape)
    top = b.stage((), b.read(0, *over), over=over, monoid="max")
    at = b.iters(*shape)
    b.stage(at, fn("sub", b.read(0, *at), b.read(top)))
    return b.done()


@pytest.mark.parametrize(("monoid", "numpy"), [("max", np.max), ("sum", np.sum)])
def test_a_large_total_is_one_of_parts(monoid: str, numpy: object) -> None:
    found = in_parts(total(SHAPE, monoid), TYPICAL_LIMITS)
    assert [len(s.iters) for s in found.stages] == [1, 0]
    assert callable(numpy)
    (got,) = evaluate_expr(found, [X])
    np.testing.assert_allclose(got, numpy(X.astype(np.float64)), rtol=1e-4)


def test_small_totals_stay() -> None:
    small = total((16, 96, 10), "sum")
    assert in_parts(small, TYPICAL_LIMITS) is small


def test_a_total_and_its_readers_are_kernels_with_loops_of_their_own() -> None:
    expr = centred(SHAPE)
    x, y = (Value(n, TensorType(F32, SHAPE)) for n in "xy")
    pieces = split(expr, (x,), (y,))
    # Every unit of the second one repeats the short step over parts.
    assert [len(p.expr.stages) for p in pieces] == [1, 2]
    values = {x: X}
    for piece in pieces:
        results = evaluate_expr(piece.expr, [values[v] for v in piece.operands])
        values.update(zip(piece.results, results, strict=True))
    np.testing.assert_array_equal(values[y], X - X.max())


def spread(*sources: int) -> Expr:
    """p0 less the least of p`sources[0]`, over its distance from the largest of p`sources[1]`."""
    b = ExprBuilder(*(TensorType(F32, SHAPE) for _ in range(1 + max(sources))))
    ends = []
    for monoid, source in zip(("min", "max"), sources, strict=True):
        over = b.iters(*SHAPE)
        ends.append(b.stage((), b.read(source, *over), over=over, monoid=monoid))
    low, high = (b.read(end) for end in ends)
    at = b.iters(*SHAPE)
    b.stage(at, (b.read(0, *at) - low) / (high - low))
    return b.done()


@pytest.mark.parametrize(("sources", "kernels"), [((0, 0), [2, 3]), ((0, 1), [1, 1, 3])])
def test_totals_of_the_same_operands_are_one_kernel(
    sources: tuple[int, ...], kernels: list[int]
) -> None:
    expr = spread(*sources)
    arrays = [X, np.float32(2) * X[::-1]][: len(expr.params)]
    operands = tuple(Value(f"x{n}", TensorType(F32, SHAPE)) for n in range(len(arrays)))
    y = Value("y", TensorType(F32, SHAPE))
    pieces = split(expr, operands, (y,))
    assert [len(p.expr.stages) for p in pieces] == kernels
    values = dict(zip(operands, arrays, strict=True))
    for piece in pieces:
        results = evaluate_expr(piece.expr, [values[v] for v in piece.operands])
        values.update(zip(piece.results, results, strict=True))
    low, high = arrays[sources[0]].min(), arrays[sources[1]].max()
    np.testing.assert_array_equal(values[y], (X - low) / (high - low))


def test_small_chains_and_shared_loops_stay_whole() -> None:
    assert alone(centred((4, 5, 6)), TYPICAL_LIMITS) is None
    b = ExprBuilder(TensorType(F32, SHAPE))
    i, j, k = b.iters(*SHAPE)
    top = b.stage((i, j), b.read(0, i, j, k), over=(k,), monoid="max")
    i, j, k = b.iters(*SHAPE)
    b.stage((i, j, k), fn("sub", b.read(0, i, j, k), b.read(top, i, j)))
    assert alone(b.done(), TYPICAL_LIMITS) is None
