"""The equality check of regions accepts equal regions and refuses every planted mistake."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, apply, index_value, literal
from tcc.ir.index import Index, minimum, symbol
from tcc.ir.op import OpSpec
from tcc.ir.region import Factor, Region, RegionStage, is_leaf, product
from tcc.ir.region.affine import Affine, Size
from tcc.ir.region.check import Unchecked, equal_at
from tcc.ir.region.convert import from_expr
from tcc.ir.region.edit import inlined, spliced, with_loop_order, with_loops
from tcc.ir.region.field import PRIMES, PrimeField, element
from tcc.ir.types import F32, I64, tensor
from tcc.ops import OPS
from tcc.passes.derive.rules.digits import split

from tests.passes.derive.mistakes import mistakes

from .regions import chain, convolution, matmul, operands, values
from .test_convert import ROWS, expressions


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_an_op_equals_itself_with_its_sums_reordered(op: OpSpec) -> None:
    for expr in expressions(op)[:2]:
        region = other = from_expr(expr)
        for number, stage in enumerate(region.stages):
            if not is_leaf(stage):
                first = len(stage.iters)
                reordered = with_loop_order(
                    stage, range(first), range(len(stage.loops) - 1, first - 1, -1)
                )
                other = spliced(other, number, (reordered,))
        assert equal_at(region, other, points=2)


@pytest.mark.parametrize("size", [6, 300])
def test_mistakes_are_seen(size: int) -> None:
    for name, (origin, right, wrong) in mistakes(size):
        assert equal_at(origin, right), name
        assert not equal_at(origin, wrong, points=4), name


def test_reassociation_and_splits_are_equal() -> None:
    chain_region = chain(3, 40, 5, 600)
    first, last = chain_region.stages
    right_inner = first._replace(
        iters=(40, 600), sums=(5,),
        factors=(first.factors[0]._replace(source=1), first.factors[1]._replace(source=2)),
    )  # fmt: skip
    right_outer = last._replace(
        sums=(40,),
        factors=(last.factors[0]._replace(source=0), last.factors[1]._replace(source=~0)),
    )
    right = Region(chain_region.params, (right_inner, right_outer), ((1, 0),))
    assert equal_at(chain_region, right)
    swapped = right_outer._replace(factors=right_outer.factors[::-1])
    assert equal_at(chain_region, Region(chain_region.params, (right_inner, swapped), ((1, 0),)))
    inlined_stage = inlined(chain_region, 1, 0)
    assert inlined_stage is not None
    assert equal_at(chain_region, split(spliced(chain_region, 1, (inlined_stage,)), 1, 3, 5))


def test_a_large_sum_is_taken_in_full() -> None:
    region = matmul(8, 8, 4608)
    (stage,) = region.stages
    last = stage._replace(sums=(4607,))
    assert equal_at(region, split(region, 0, 2, 9), points=4)
    assert not equal_at(region, spliced(region, 0, (last,)), points=4)
    with pytest.raises(Unchecked, match="terms"):
        equal_at(matmul(8, 8, 1 << 26), matmul(8, 8, 1 << 26))


def test_symbolic_sizes_are_drawn() -> None:
    n = symbol("n", lo=4)
    region = matmul(n, 4, n)
    (stage,) = region.stages
    assert equal_at(region, spliced(region, 0, (with_loop_order(stage, (0, 1), (2,)),)))
    flipped = with_loops(stage, stage.iters, stage.sums, (
        Affine((1, 0, 0)), Affine((0, 1, 0)), Affine((0, 0, -1), n - 1)))  # fmt: skip
    assert equal_at(region, spliced(region, 0, (flipped,)))
    assert not equal_at(region, spliced(region, 0, (stage._replace(sums=(n - 1,)),)))


def _cropped(h: Index, by: int) -> tuple[Region, Region, Region]:
    """Returns a matmul with `by` fewer rows and half as many terms, the same with terms reversed,
    and a wrong matmul."""
    region = matmul(h - by, 3, h // 2)
    (stage,) = region.stages
    flipped = with_loops(stage, stage.iters, stage.sums, (
        Affine((1, 0, 0)), Affine((0, 1, 0)), Affine((0, 0, -1), h // 2 - 1)))  # fmt: skip
    short = spliced(region, 0, (stage._replace(sums=((h - 1) // 2,)),))
    return region, spliced(region, 0, (flipped,)), short


@pytest.mark.parametrize("by", [0, 4, 7, 50, 1000])
def test_symbols_are_drawn_where_every_loop_runs(by: int) -> None:
    """A window size is subtracted from an arbitrary height; the wrong sum lacks its last term if
    the height is even."""
    region, flipped, short = _cropped(symbol("h"), by)
    assert equal_at(region, flipped)
    assert not all(equal_at(region, short, seed=seed) for seed in range(3))


def test_padding_at_run_time_may_be_negative() -> None:
    """A read at i - p with zeros outside crops if `p` is negative, and pads only otherwise."""
    p, n = symbol("p", lo=-8), symbol("n")
    i = Affine((1,), -p)
    read = Factor(0, 0, (i,), F32, literal(0.0, F32))
    stage = RegionStage((n + p,), (), None, (read,), product((F32,), F32))
    region = Region((tensor(F32, n),), (stage,), ((0, 0),))
    inside = spliced(region, 0, (stage._replace(factors=(read._replace(forms=(Affine((1,)),)),)),))
    assert equal_at(region, region)
    assert not equal_at(region, inside)


@pytest.mark.parametrize("rows", [0, symbol("h", lo=1, hi=8) - 9, minimum(symbol("h"), 0)])
def test_a_region_without_points_is_not_checked(rows: Size) -> None:
    region = matmul(rows, 4, 3)
    (stage,) = region.stages
    wrong = spliced(region, 0, (stage._replace(sums=(2,)),))
    with pytest.raises(Unchecked, match="no sizes are known"):
        equal_at(region, wrong)


def test_a_negative_extent_is_a_mistake() -> None:
    n = symbol("n", lo=1)
    region = matmul(n, 4, 3)
    more = Region(region.params, (*region.stages, *matmul(n - 9000, 4, 3).stages), region.outputs)
    assert equal_at(region, region)
    assert not equal_at(region, more)


def test_functions_orders_and_infinities() -> None:
    """A causal mask of minus infinity before the exponential equals a mask of zero after it."""
    b = ExprBuilder(tensor(F32, 6, 9))
    i, k = b.iters(6, 9)
    mask = index_value(k, I64) <= index_value(i, I64)
    x, lost = b.read(0, i, k), literal(float("-inf"), F32)
    masked = apply("select", mask, x, lost)
    m = b.stage((i,), masked, over=(k,), monoid="max")
    before = b.finish((i,), apply("exp", masked - b.read(m, i)), over=(k,), monoid="sum")

    def behind(condition: Scalar, function: str = "exp") -> Region:
        body = apply("select", condition, apply(function, x - b.read(m, i)), literal(0, F32))
        last = replace(before.stages[1], body=(body,))
        return from_expr(replace(before, stages=(before.stages[0], last)))

    strict = index_value(k, I64) < index_value(i, I64)
    assert equal_at(from_expr(before), behind(mask))
    assert not equal_at(from_expr(before), behind(strict))
    assert not equal_at(from_expr(before), behind(mask, "sqrt"))


def test_elements_are_exact() -> None:
    for prime in PRIMES:
        assert all(prime % d for d in range(2, 46_341))
        field = PrimeField(prime, 0)
        a = np.array([1, 5, prime - 3, 123456789], np.int64)
        third = field.apply("div", F32, [a, np.array(3, np.int64) + 0 * a])
        assert np.array_equal(third * 3 % prime, a)
        assert element(0.375, prime) * 8 % prime == 3
        assert element(-1, prime) == prime - 1
        assert field.signed(np.array([prime - 1, 0, 1], np.int64)).tolist() == [-1, 0, 1]
        assert not np.array_equal(field.random("f", [a]), field.random("g", [a]))


def test_the_check_agrees_with_numpy_on_small_regions() -> None:
    """Regions that the check calls equal have equal NumPy values, and the check refuses regions
    with different values."""
    region = convolution(4)
    (stage,) = region.stages
    for step in range(-2, 3):
        for plus in range(-2, 2):
            image = stage.factors[0]
            form = Affine((1, 0, step, 0), plus)
            other = spliced(region, 0, (stage._replace(factors=(
                image._replace(forms=(form, image.forms[1])), stage.factors[1])),))  # fmt: skip
            arrays = operands(region)
            is_equal = np.array_equal(values(region, arrays)[0], values(other, arrays)[0])
            assert equal_at(region, other, points=4) == is_equal


def test_a_leaf_stands_for_itself() -> None:
    region = from_expr(expressions(OPS["gather"])[0])
    (leaf,) = region.stages
    assert is_leaf(leaf)
    assert equal_at(region, region)
    factors = [f._replace(source=0) for f in leaf.factors]
    assert not equal_at(region, spliced(region, 0, (leaf._replace(factors=tuple(factors)),)))
