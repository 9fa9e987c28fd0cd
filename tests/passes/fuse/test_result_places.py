"""Values of symbolic size wait for later stages in the memory of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tcc.errors import InternalError
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import apply, cast, literal
from tcc.ir.index import IndexLike, symbol
from tcc.ir.layout import permuted, row_major
from tcc.ir.tile import Load, MemorySpace, Store, walk_statements
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.types import BF16, F32, tensor
from tcc.passes.fuse.scratch_limit import too_large
from tcc.passes.fuse.structure import Storage, build_group
from tcc.passes.tile.cpu.lower import lower
from tcc.schedule.cpu.choose import choose
from tcc.schedule.limits import CORE_LIMITS, TYPICAL_LIMITS

from tests.draws import RNG
from tests.passes.fuse.shared_results import two_powers
from tests.passes.tile.cpu import tiles
from tests.passes.tile.cpu.tiles import Array

ROWS = 3
N = symbol("n", 0)
SIZES = (0, 1, 2, 15, 16, 17, 64, 75)


def softmax(n: IndexLike = N, times: int = 1) -> Expr:
    """Returns `times` softmaxes in a chain."""
    b = ExprBuilder(tensor(F32, ROWS, n))
    x: int | tuple[int, int] = 0
    for _ in range(times):
        i, j = b.iters(ROWS, n)
        top = b.stage((i,), b.read(x, i, j), over=(j,), monoid="max")
        i, j = b.iters(ROWS, n)
        power = b.stage((i, j), apply("exp", apply("sub", b.read(x, i, j), b.read(top, i))))
        i, j = b.iters(ROWS, n)
        total = b.stage((i,), b.read(power, i, j), over=(j,), monoid="sum")
        i, j = b.iters(ROWS, n)
        x = b.stage((i, j), apply("div", b.read(power, i, j), b.read(total, i)))
    return b.done()


def residual() -> Expr:
    """Returns x + y, which is a result, minus its mean."""
    b = ExprBuilder(tensor(F32, ROWS, N), tensor(F32, ROWS, N))
    i, j = b.iters(ROWS, N)
    sum_stage = b.stage((i, j), apply("add", b.read(0, i, j), b.read(1, i, j)))
    i, j = b.iters(ROWS, N)
    total = b.stage((i,), b.read(sum_stage, i, j), over=(j,), monoid="sum")
    i, j = b.iters(ROWS, N)
    mean = apply("mul", b.read(total, i), literal(1 / 8, F32))
    last = b.stage((i, j), apply("sub", b.read(sum_stage, i, j), mean))
    return b.done(sum_stage, last)


def turned() -> Expr:
    """Returns an expression whose last reader reads another element than it replaces."""
    b = ExprBuilder(tensor(F32, ROWS, N, N))
    n, i, j = b.iters(ROWS, N, N)
    power = b.stage((n, i, j), apply("exp", b.read(0, n, i, j)))
    n, i, j = b.iters(ROWS, N, N)
    total = b.stage((n,), b.read(power, n, i, j), over=(i, j), monoid="sum")
    n, i, j = b.iters(ROWS, N, N)
    return b.finish((n, i, j), apply("div", b.read(power, n, j, i), b.read(total, n)))


def rounded() -> Expr:
    """Returns a softmax that is stored in a narrower type than its powers."""
    softmax_expr = softmax()
    *other_stages, last = softmax_expr.stages
    return replace(
        softmax_expr, stages=(*other_stages, replace(last, body=(cast(last.body[0], BF16),)))
    )


def shares(x: Array) -> Array:
    """Returns the softmax of rows, which may have no elements."""
    power = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return np.asarray(power / power.sum(-1, keepdims=True))


def wanted(name: str, x: Array, y: Array) -> tuple[Array, ...]:
    x, y = x.astype(np.float64), y.astype(np.float64)
    if name == "residual":
        return x + y, x + y - (x + y).sum(-1, keepdims=True) / 8
    if name == "two_powers":
        return (shares(x) * shares(y),)
    if name == "turned":
        power = np.exp(x)
        return (power.swapaxes(1, 2) / power.sum((1, 2), keepdims=True),)
    for _ in range(3 if name == "chain" else 1):
        x = shares(x)
    return (x,)


EXPRS: dict[str, Callable[[], Expr]] = {
    "softmax": softmax,
    "chain": lambda: softmax(times=3),
    "residual": residual,
    "two_powers": lambda: two_powers(ROWS, N),
    "turned": turned,
    "rounded": rounded,
}


@pytest.mark.parametrize("name", list(EXPRS))
def test_results_under_many_schedules(name: str) -> None:
    expr, tolerance = EXPRS[name](), 1e-2 if name == "rounded" else 1e-5
    for seed, size in enumerate(SIZES):
        shape = (ROWS, size, size) if name == "turned" else (ROWS, size)
        x, y = (RNG.standard_normal(shape).astype(np.float32) for _ in range(2))
        operands = [x, y][: len(expr.params)]
        for chooser in (tiles.chosen, tiles.drawn(np.random.default_rng(seed))):
            outputs = tiles.run(expr, operands, {"n": size}, chooser, limits=CORE_LIMITS)
            for output, reference in zip(outputs, wanted(name, x, y), strict=True):
                output = output.astype(np.float64)
                np.testing.assert_allclose(output, reference, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("softmax", 1),
        ("chain", 5),
        ("residual", 1),
        ("two_powers", 1),
        ("turned", 0),
        ("rounded", 0),
    ],
)
def test_values_lie_in_results_and_others_are_made_again(name: str, kept: int) -> None:
    """`kept` is the number of values that later stages read from the memory of the result; no value
    lies in scratch."""
    built = tiles.build(EXPRS[name](), limits=CORE_LIMITS)
    assert not built.kernel.locals
    places = [b for b in built.group.buffers if b.scope is MemorySpace.LOCAL]
    assert len(places) == kept
    read = {n.buffer.scope for n in walk_statements(built.kernel.body) if isinstance(n, Load)}
    assert (MemorySpace.OUTPUT in read) is (kept > 0)


def test_only_limits_that_allow_it_keep_values_of_symbolic_size() -> None:
    for expr in (softmax(), softmax(times=3)):
        assert too_large(expr, CORE_LIMITS) is None
        assert too_large(expr, TYPICAL_LIMITS) is not None
    assert too_large(two_powers(ROWS, N), CORE_LIMITS) is not None
    assert too_large(softmax(75), TYPICAL_LIMITS) is None


@pytest.mark.parametrize("size", SIZES)
def test_a_value_lies_as_its_result_does(size: int) -> None:
    """The result is stored by columns."""
    expr = softmax()
    (source,), (target,) = expr.params, expr.types
    assert source is not None
    columns = permuted(target.shape, (1, 0))
    group = build_group(
        expr,
        [Storage(F32, source.shape, row_major(source.shape))],
        [Storage(F32, target.shape, columns)],
        limits=CORE_LIMITS,
    )
    kernel = lower(group, choose(group, tiles.REGISTERS))
    assert not kernel.locals
    assert not verify_kernel(kernel)
    assert len([n for n in walk_statements(kernel.body) if isinstance(n, Store)]) > 1
    x = RNG.standard_normal((ROWS, size)).astype(np.float32)
    (output,) = tiles.run_kernel(kernel, [tensor(F32, N, ROWS)], [x], {"n": size})
    np.testing.assert_allclose(output.T, shares(x.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_a_place_that_no_store_proves_is_refused() -> None:
    """The test claims that the powers lie in the memory of the operand."""
    built = tiles.build(softmax(), limits=CORE_LIMITS)
    buffers = tuple(b if b.place is None else replace(b, place=0) for b in built.group.buffers)
    assert buffers != built.group.buffers
    with pytest.raises(InternalError, match="static size"):
        lower(replace(built.group, buffers=buffers), built.schedule)
