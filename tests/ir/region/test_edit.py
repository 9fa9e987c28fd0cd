"""Editing helpers of rules preserve values, by NumPy on integers."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply, literal, read
from tcc.ir.region import Factor, Region, RegionStage, product, reads_inside
from tcc.ir.region.affine import Affine, unit
from tcc.ir.region.convert import from_expr
from tcc.ir.region.edit import (
    depends,
    drop_unused,
    inlined,
    readers,
    spliced,
    with_extra_loop,
    with_loop_order,
    with_loops,
)
from tcc.ir.types import F16, F32, I64, tensor

from .regions import affine, chain, convolution, matmul, operands, values


def same(a: Region, b: Region) -> bool:
    arrays = operands(a)
    pairs = zip(values(a, arrays), values(b, arrays), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def _whole(rank: int) -> Factor:
    return Factor(~0, 0, tuple(unit(k, rank) for k in range(rank)), F32)


def test_a_summation_is_split_off() -> None:
    """y = sum(r, s) becomes t[h, w, r] = sum(s) and y = sum(r) t[h, w, r]."""
    region = convolution()
    inner = with_loop_order(region.stages[0], (0, 1, 2), (3,))
    outer = RegionStage((6, 6), (3,), "sum", (_whole(3),), product((F32,), F32))
    new = spliced(region, 0, (inner, outer))
    assert same(region, new)
    assert readers(new, 0) == (1,)
    back = inlined(new, 1, 0)
    assert back is not None
    assert spliced(region, 0, (with_loop_order(back, (0, 1), (2, 3)),)) == region


def test_skewed_loops() -> None:
    """t[p, r] = sum(s) of image row p = h + r is read at [h + r, r]."""
    region = convolution()
    inner = with_loop_order(region.stages[0], (0, 1, 2), (3,))
    p, w, r, s = (unit(k, 4) for k in range(4))
    skewed = with_loops(inner, (8, 6, 3), (3,), (affine(1, 0, -1, 0), w, r, s))
    assert skewed.factors[0].forms[0] == affine(1, 0, 0, 0, plus=-1)
    at = affine(1, 0, 1), affine(0, 1, 0), affine(0, 0, 1)
    outer = RegionStage((6, 6), (3,), "sum", (Factor(~0, 0, at, F32),), product((F32,), F32))
    assert p.steps[0] == 1
    assert same(region, spliced(region, 0, (skewed, outer)))


def test_a_chain_of_matmuls_inlines_to_one_sum() -> None:
    region = chain(3, 4, 5, 6)
    inlined_stage = inlined(region, 1, 0)
    assert inlined_stage is not None
    assert inlined_stage.sums == (5, 4)
    assert len(inlined_stage.factors) == 3
    new = drop_unused(spliced(region, 1, (inlined_stage,)))
    assert len(new.stages) == 1
    assert same(region, new)


def test_a_pointwise_producer_is_inlined_into_any_body() -> None:
    b = ExprBuilder(tensor(F32, 4, 3), tensor(F32, 3))
    i, j = b.iters(4, 3)
    shifted = b.stage((i, j), apply("max", b.read(0, i, j) - b.read(1, j), b.read(1, j)))
    j2, i2 = b.iters(3, 4)
    x = read(shifted, (i2, j2), F32)
    expr = b.finish((j2, i2), apply("abs", x) + b.read(1, j2) * x)
    region = from_expr(expr)
    stage = inlined(region, 1, 0)
    assert stage is not None
    new = drop_unused(spliced(region, 1, (stage,)))
    assert len(new.stages) == 1
    assert same(region, new)


def test_stages_that_compute_other_values_are_not_inlined() -> None:
    padded = RegionStage(
        (8,),
        (),
        None,
        (Factor(~0, 0, (affine(1, plus=-1),), F32, literal(0, F32)),),
        product((F32,), F32),
    )
    stage = RegionStage((6,), (), None, (Factor(0, 0, (affine(1),), F32),), product((F32,), F32, 2))
    region = Region((tensor(F32, 6),), (stage, padded), ((1, 0),))
    assert not reads_inside(region, padded, padded.factors[0])
    assert inlined(region, 1, 0) is None
    ab, narrow = chain(3, 4, 5, 6), product((F16, F32), F16)
    rounded = ab.stages[0]._replace(body=narrow)
    other = ab._replace(stages=(rounded, ab.stages[1]))
    assert inlined(other, 1, 0) is None
    largest = ab.stages[0]._replace(monoid="max")
    assert inlined(ab._replace(stages=(largest, ab.stages[1])), 1, 0) is None
    assert inlined(ab, 0, 0) is None


def test_stages_are_renumbered() -> None:
    region = chain(2, 3, 4, 5)
    first, last = region.stages
    copy = RegionStage((2, 4), (), None, (_whole(2),), product((F32,), F32))
    again = last._replace(factors=(last.factors[0]._replace(source=~1), last.factors[1]))
    new = spliced(region, 0, (first, copy))
    assert new.stages == (first, copy, again)
    assert new.outputs == ((2, 0),)
    assert same(region, new)
    assert drop_unused(spliced(new, 1, (first,))).stages == region.stages


def test_a_loop_is_added() -> None:
    (stage,) = matmul(3, 4, 5).stages
    more = with_extra_loop(stage, 2, 1)
    assert (more.iters, more.sums) == ((3, 4, 1), (5,))
    assert depends(more.factors[0]) == {0, 3}
    assert with_extra_loop(stage, 0, 7).iters == (7, 3, 4)


def test_a_leaf_keeps_its_loops() -> None:
    b = ExprBuilder(tensor(F32, 5), tensor(I64, 4))
    (i,) = b.iters(4)
    t = b.position(b.read(1, i), 5)
    leaf = from_expr(b.finish((i,), b.read(0, t))).stages[0]
    with pytest.raises(ValueError, match="a leaf keeps its loops"):
        with_loops(leaf, (4,), (), (Affine((1,)),))
