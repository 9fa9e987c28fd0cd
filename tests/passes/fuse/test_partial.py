"""Totals over whole tensors in two steps: on numbers, and where kernels are cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.graph import Value
from tcc.ir.types import F32, TensorType
from tcc.ops import OPS
from tcc.ops.formula import fn
from tcc.passes.fuse.split import SplitKernel, split

from tests.passes.test_choose_layouts import planner

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


def pieces(expr: Expr) -> tuple[SplitKernel, ...]:
    """The kernels of `expr` by price: x0, x1, ... in, y out."""
    operands = tuple(Value(f"x{n}", t) for n, t in enumerate(expr.params) if t)
    kernels = planner()

    def seconds(expr: Expr) -> float:
        found = kernels.alone(expr, [False] * len(expr.params))
        assert found is not None
        return found

    results = tuple(Value("y" if n == 0 else f"y{n}", t) for n, t in enumerate(expr.types))
    return split(expr, operands, results, limits=kernels.limits, seconds=seconds)


def run(kernels: Sequence[SplitKernel], *arrays: np.ndarray) -> np.ndarray:
    """The value y."""
    values = {f"x{n}": array for n, array in enumerate(arrays)}
    for kernel in kernels:
        results = evaluate_expr(kernel.expr, [values[v.name] for v in kernel.operands])
        values.update(zip((v.name for v in kernel.results), results, strict=True))
    return values["y"]


@pytest.mark.parametrize(("monoid", "numpy"), [("max", np.max), ("sum", np.sum)])
def test_a_large_total_is_one_of_parts(monoid: str, numpy: object) -> None:
    found = pieces(total(SHAPE, monoid))
    assert [[len(s.iters) for s in p.expr.stages] for p in found] == [[1], [0]]
    assert callable(numpy)
    np.testing.assert_allclose(run(found, X), numpy(X.astype(np.float64)), rtol=1e-4)


def test_a_small_total_is_a_kernel() -> None:
    (found,) = pieces(small := total((2, 3, 10), "sum"))
    assert found.expr is small


def test_a_total_and_its_readers_are_kernels_with_loops_of_their_own() -> None:
    found = pieces(centred(SHAPE))
    # Every unit of the second one repeats the short step over parts.
    assert [len(p.expr.stages) for p in found] == [1, 2]
    np.testing.assert_array_equal(run(found, X), X - X.max())


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
    found = pieces(expr)
    assert [len(p.expr.stages) for p in found] == kernels
    low, high = arrays[sources[0]].min(), arrays[sources[1]].max()
    np.testing.assert_array_equal(run(found, *arrays), (X - low) / (high - low))


def test_small_chains_and_shared_loops_stay_whole() -> None:
    assert len(pieces(centred((4, 5, 6)))) == 1
    b = ExprBuilder(TensorType(F32, SHAPE))
    i, j, k = b.iters(*SHAPE)
    top = b.stage((i, j), b.read(0, i, j, k), over=(k,), monoid="max")
    i, j, k = b.iters(*SHAPE)
    b.stage((i, j, k), fn("sub", b.read(0, i, j, k), b.read(top, i, j)))
    assert len(pieces(b.done())) == 1


def test_results_that_the_first_kernel_computes_are_read_by_the_rest() -> None:
    """Scale and zero point are results that all levels need: one thread computes both, and all
    threads the levels."""
    op = OPS["dynamic_quantize_linear"]
    assert op.expr is not None
    found = pieces(op.expr([TensorType(F32, SHAPE)], op.attrs()))
    assert [v.name for v in found[-1].results] == ["y"]
    assert {v.name for v in found[-1].operands} == {"x0", "y1", "y2"}
    assert len(found[-1].expr.stages) == 1
    np.testing.assert_array_equal(run(found, X), op.reference([X], op.attrs())[0])
