"""Reductions over whole tensors and windows in two steps are correct, and kernels are split where
it pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tcc.ir.expr import Expr, ExprBuilder, extent
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.graph import Value
from tcc.ir.index import const
from tcc.ir.types import F32, TensorType, tensor
from tcc.ops import OPS
from tcc.ops.formula import fn
from tcc.passes.fuse.split import Kernel, split
from tcc.passes.fuse.split_reductions import in_parts

from tests.draws import RNG, seeded
from tests.passes.layout.test_choose import planner

SHAPE = (16, 96, 100)
with seeded("test_partial: x"):
    X = RNG.standard_normal(SHAPE).astype(np.float32)


def total(shape: tuple[int, ...], monoid: str) -> Expr:
    b = ExprBuilder(TensorType(F32, shape))
    over = b.iters(*shape)
    b.stage((), b.read(0, *over), over=over, monoid=monoid)
    return b.done()


def centred(shape: tuple[int, ...]) -> Expr:
    """Returns x minus its largest element."""
    b = ExprBuilder(TensorType(F32, shape))
    over = b.iters(*shape)
    top = b.stage((), b.read(0, *over), over=over, monoid="max")
    at = b.iters(*shape)
    b.stage(at, fn("sub", b.read(0, *at), b.read(top)))
    return b.done()


def pieces(expr: Expr) -> tuple[Kernel, ...]:
    """Returns the kernels of `expr`, split by price, with operands x0, x1, ... and result y."""
    operands = tuple(Value(f"x{n}", t) for n, t in enumerate(expr.params) if t)
    kernels = planner()

    def seconds(expr: Expr) -> float:
        parts = kernels.alone(expr, [False] * len(expr.params))
        assert parts is not None
        return parts

    results = tuple(Value("y" if n == 0 else f"y{n}", t) for n, t in enumerate(expr.types))
    return split(Kernel(expr, operands, results), limits=kernels.limits, seconds=seconds)


def run(kernels: Sequence[Kernel], *arrays: np.ndarray) -> np.ndarray:
    """Returns the value y."""
    values = {f"x{n}": array for n, array in enumerate(arrays)}
    for kernel in kernels:
        results = evaluate_expr(kernel.expr, [values[v.name] for v in kernel.operands])
        values.update(zip((v.name for v in kernel.results), results, strict=True))
    return values["y"]


@pytest.mark.parametrize(("monoid", "numpy"), [("max", np.max), ("sum", np.sum)])
def test_a_large_total_is_one_of_parts(monoid: str, numpy: object) -> None:
    parts = pieces(total(SHAPE, monoid))
    assert [[len(s.iters) for s in p.expr.stages] for p in parts] == [[1], [0]]
    assert callable(numpy)
    # a sequential sum of 153,600 terms would be off by less than 1e-6 of their magnitudes
    atol = 1e-6 * np.abs(X.astype(np.float64)).sum()
    np.testing.assert_allclose(run(parts, X), numpy(X.astype(np.float64)), rtol=0, atol=atol)


def test_a_small_total_is_a_kernel() -> None:
    (part,) = pieces(small := total((2, 3, 10), "sum"))
    assert part.expr is small


def test_a_total_and_its_readers_are_kernels_with_loops_of_their_own() -> None:
    parts = pieces(centred(SHAPE))
    # Every tile of the second kernel repeats the short reduction over parts.
    assert [len(p.expr.stages) for p in parts] == [1, 2]
    np.testing.assert_array_equal(run(parts, X), X - X.max())


def spread(*sources: int) -> Expr:
    """Returns p0 minus the minimum of p`sources[0]`, divided by its distance from the maximum of
    p`sources[1]`."""
    b = ExprBuilder(*(TensorType(F32, SHAPE) for _ in range(1 + max(sources))))
    ends = []
    for monoid, source in zip(("min", "max"), sources, strict=True):
        over = b.iters(*SHAPE)
        ends.append(b.stage((), b.read(source, *over), over=over, monoid=monoid))
    low, high = (b.read(end) for end in ends)
    at = b.iters(*SHAPE)
    b.stage(at, (b.read(0, *at) - low) / (high - low))
    return b.done()


@pytest.mark.parametrize(("sources", "kernels"), [((0, 0), [2, 1, 1, 1]), ((0, 1), [1] * 5)])
def test_totals_of_the_same_operands_are_one_kernel(
    sources: tuple[int, ...], kernels: list[int]
) -> None:
    expr = spread(*sources)
    arrays = [X, np.float32(2) * X[::-1]][: len(expr.params)]
    parts = pieces(expr)
    assert [len(p.expr.stages) for p in parts] == kernels
    low, high = arrays[sources[0]].min(), arrays[sources[1]].max()
    np.testing.assert_array_equal(run(parts, *arrays), (X - low) / (high - low))


def test_small_chains_and_shared_loops_stay_whole() -> None:
    assert len(pieces(centred((4, 5, 6)))) == 1
    b = ExprBuilder(TensorType(F32, SHAPE))
    i, j, k = b.iters(*SHAPE)
    top = b.stage((i, j), b.read(0, i, j, k), over=(k,), monoid="max")
    i, j, k = b.iters(*SHAPE)
    b.stage((i, j, k), fn("sub", b.read(0, i, j, k), b.read(top, i, j)))
    assert len(pieces(b.done())) == 1


def test_results_that_the_first_kernel_computes_are_read_by_later_kernels() -> None:
    """All levels need scale and zero point, which are results: one thread computes both, and all
    threads compute the levels."""
    op = OPS["dynamic_quantize_linear"]
    assert op.expr is not None
    parts = pieces(op.expr([TensorType(F32, SHAPE)], op.attrs()))
    assert [v.name for v in parts[-1].results] == ["y"]
    assert {v.name for v in parts[-1].operands} == {"x0", "y1", "y2"}
    assert len(parts[-1].expr.stages) == 1
    np.testing.assert_array_equal(run(parts, X), op.reference([X], op.attrs())[0])


# ---- windows ------------------------------------------------------------------------------------


def pool(op: str, shape: tuple[int, ...], kernel: int, stride: int = 1, dilation: int = 1) -> Expr:
    """Returns a pool with square windows, padded by half a window."""
    rank = len(shape) - 2
    pads = tuple(const(kernel // 2 * dilation) for _ in range(rank))
    row = OPS[op]
    attrs = row.attrs((stride,) * rank, pads, pads, (dilation,) * rank, kernel=(kernel,) * rank)
    assert row.expr is not None
    return row.expr([tensor(F32, *shape)], attrs)


def windows(x: np.ndarray, kernel: int, fill: float) -> np.ndarray:
    """Returns windows with stride 1 as [batch, channel, places..., window elements], in f64."""
    rank = x.ndim - 2
    half = (kernel // 2, kernel // 2)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *[half] * rank), constant_values=fill)
    axes = tuple(range(2, x.ndim))
    views = np.lib.stride_tricks.sliding_window_view(padded, (kernel,) * rank, axes)
    return views.reshape(*views.shape[: x.ndim], -1)


with seeded("test_partial: image"):
    IMAGE = RNG.standard_normal((2, 3, 7, 6)).astype(np.float32)
IMAGE[0, 1, 3, 2] = np.nan
IMAGE[1, 0, 0, :] = -np.inf


@pytest.mark.parametrize(("monoid", "count", "parts"), [("sum", 1000, 50), ("max", 50257, 29)])
def test_a_total_over_one_loop_has_parts_that_divide_it(
    monoid: str, count: int, parts: int
) -> None:
    form = next(in_parts(total((count,), monoid)))
    assert [extent(v).key for v in form.stages[0].iters] == [const(parts).key]
    x = np.random.default_rng(6).integers(-9, 9, count).astype(np.float32)
    (result,) = evaluate_expr(form, [x])
    assert result == {"sum": np.sum, "max": np.max}[monoid](x)


@pytest.mark.parametrize("shape", [(50261,), (0,), (1,)], ids=["prime", "none", "one"])
def test_indivisible_and_tiny_totals_stay_whole(shape: tuple[int, ...]) -> None:
    assert not list(in_parts(total(shape, "sum")))


def test_a_long_row_is_two_kernels_and_a_short_one_is_one() -> None:
    assert [len(p.expr.stages[0].iters) for p in pieces(total((1 << 18,), "max"))] == [1, 0]
    assert len(pieces(total((1 << 10,), "max"))) == 1


def test_windows_one_apart_are_reduced_along_one_axis_and_then_along_the_other() -> None:
    forms = list(in_parts(pool("max_pool", IMAGE.shape, 3)))
    assert [[len(s.reduce) for s in form.stages] for form in forms] == [[1, 1], [1, 1]]
    assert [[extent(v).key for v in form.stages[0].iters] for form in forms] == [
        [const(n).key for n in shape] for shape in ((2, 3, 9, 6), (2, 3, 7, 8))
    ]
    for form in forms:
        (result,) = evaluate_expr(form, [IMAGE])
        np.testing.assert_array_equal(result, windows(IMAGE, 3, -np.inf).max(-1))


def test_windows_of_three_axes_and_sums_are_reduced_in_steps() -> None:
    x = np.random.default_rng(4).standard_normal((1, 2, 4, 5, 6)).astype(np.float32)
    forms = list(in_parts(pool("lp_pool", x.shape, 3)))
    assert [[len(s.reduce) for s in form.stages] for form in forms] == [[2, 1, 0]] * 3
    for form in forms:
        (result,) = evaluate_expr(form, [x])
        reference = np.sqrt((windows(x, 3, 0) ** 2).sum(-1))
        np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-6 * reference.max())


def test_the_first_of_equal_maxima_stays_the_first() -> None:
    x = np.round(IMAGE)
    expr = pool("max_pool_indices", x.shape, 3)
    references = evaluate_expr(expr, [x])
    forms = list(in_parts(expr))
    assert len(forms) == 2
    for form in forms:
        for result, reference in zip(evaluate_expr(form, [x]), references, strict=True):
            np.testing.assert_array_equal(result, reference)


@pytest.mark.parametrize(("stride", "dilation"), [(2, 1), (1, 2), (3, 2)])
def test_windows_that_share_no_column_stay_whole(stride: int, dilation: int) -> None:
    assert not list(in_parts(pool("max_pool", IMAGE.shape, 3, stride, dilation)))


def test_a_large_window_is_reduced_in_two_steps_and_a_small_one_in_one() -> None:
    """The values between the steps of the large window wait in scratch."""
    x = np.random.default_rng(5).standard_normal((1, 64, 20, 20)).astype(np.float32)
    parts = pieces(pool("max_pool", x.shape, 5))
    assert [[len(s.reduce) for s in p.expr.stages] for p in parts] == [[1, 1]]
    np.testing.assert_array_equal(run(parts, x), windows(x, 5, -np.inf).max(-1))
    assert len(pieces(pool("max_pool", (1, 64, 20, 20), 2, stride=2))) == 1
