"""Regions that differ in names and order only have equal fingerprints; other regions do not."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply
from tcc.ir.index import symbol
from tcc.ir.op import OpSpec
from tcc.ir.region import Factor, Region, RegionStage, is_leaf, product
from tcc.ir.region.affine import Affine, Digit
from tcc.ir.region.canonical import fingerprint
from tcc.ir.region.convert import from_expr
from tcc.ir.region.edit import spliced, with_loop_order
from tcc.ir.types import F32, tensor

from .regions import affine, chain, convolution, matmul
from .test_convert import ROWS, expressions


def shuffled(region: Region, rng: random.Random) -> Region:
    """Returns the region with its sum loops in another order."""
    for number, stage in enumerate(region.stages):
        if is_leaf(stage):
            continue
        first = len(stage.iters)
        sums = rng.sample(range(first, len(stage.loops)), len(stage.sums))
        region = spliced(region, number, (with_loop_order(stage, range(first), sums),))
    return region


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_the_order_of_sum_loops_is_not_seen(op: OpSpec) -> None:
    rng = random.Random(0)
    for expr in expressions(op):
        region = from_expr(expr)
        other = shuffled(region, rng)
        assert fingerprint(other) == fingerprint(region)


def test_swapped_kernel_indices_are_seen() -> None:
    assert fingerprint(convolution()) != fingerprint(convolution(swapped=True))


def test_every_part_is_seen() -> None:
    n, m = symbol("n"), symbol("m")
    wide = convolution()._replace(params=(tensor(F32, 7, 6), tensor(F32, 3, 3)))
    (stage,) = convolution().stages
    image, kernel = stage.factors
    flipped = image._replace(forms=image.forms[::-1])
    doubled = stage._replace(body=product((F32, F32), F32, 2))
    digits = image._replace(
        forms=(Affine((1, 0, 0, 0), 0, (Digit(1, affine(0, 0, 1, 0), 2, 0),)), image.forms[1])
    )
    remainder = image._replace(
        forms=(Affine((1, 0, 0, 0), 0, (Digit(1, affine(0, 0, 1, 0), 1, 2),)), image.forms[1])
    )
    regions = [
        convolution(), convolution(7), convolution(taps=5), convolution(swapped=True),
        convolution(fill=None), convolution(fill=-0.0), convolution(fill=1.0), wide,
        matmul(2, 3, 4), matmul(3, 2, 4), matmul(2, n, 4), matmul(2, m, 4),
        matmul(4, 4, 4), matmul(4, 4, 4, transposed=True),
        *(spliced(convolution(), 0, (s,)) for s in (
            doubled,
            stage._replace(monoid="max"),
            stage._replace(factors=(flipped, kernel)),
            stage._replace(factors=(digits, kernel)),
            stage._replace(factors=(remainder, kernel)),
        )),
    ]  # fmt: skip
    assert len({fingerprint(r) for r in regions}) == len(regions)


def test_the_result_loops_keep_their_order() -> None:
    (stage,) = matmul(4, 4, 3).stages
    reordered = spliced(matmul(4, 4, 3), 0, (with_loop_order(stage, (1, 0), (2,)),))
    assert fingerprint(reordered) != fingerprint(matmul(4, 4, 3))


def test_stage_order_copies_and_unused_stages_are_not_seen() -> None:
    region = chain(3, 3, 3, 3)
    first, last = region.stages
    unused = first._replace(monoid="max")
    copied = last._replace(factors=(last.factors[0]._replace(source=~1), last.factors[1]))
    twice = Region(region.params, (first, first, copied), ((2, 0),))
    later = Region(region.params, (unused, first, copied), ((2, 0),))
    assert fingerprint(twice) == fingerprint(later) == fingerprint(region)


def test_factors_commute_and_other_bodies_do_not() -> None:
    (stage,) = matmul(2, 3, 4).stages
    a, b = stage.factors
    assert fingerprint(spliced(matmul(2, 3, 4), 0, (stage._replace(factors=(b, a)),))) == (
        fingerprint(matmul(2, 3, 4))
    )
    x = ExprBuilder(tensor(F32, 4), tensor(F32, 4))
    (i,) = x.iters(4)
    one = x.finish((i,), apply("sub", x.read(0, i), x.read(1, i)))
    two = x.finish((i,), apply("sub", x.read(1, i), x.read(0, i)))
    assert fingerprint(from_expr(one)) != fingerprint(from_expr(two))


def test_loops_alike_by_colour_are_told_apart_by_the_least_code() -> None:
    """The region is a ring of four loops, in every order: colour refinement sees four equal
    loops."""
    codes = set()
    for order in permutations(range(4)):
        pairs = [(order[k], order[(k + 1) % 4]) for k in range(4)]
        factors = tuple(
            Factor(0, 0, tuple(affine(*(int(n == k) for n in range(4))) for k in pair), F32)
            for pair in pairs
        )
        stage = RegionStage((), (5,) * 4, "sum", factors, product((F32,) * 4, F32))
        codes.add(fingerprint(Region((tensor(F32, 5, 5),), (stage,), ((0, 0),))))
    assert len(codes) == 1


def test_pairs_of_a_ring_and_of_two_rings_differ() -> None:
    def rings(pairs: list[tuple[int, int]]) -> bytes:
        factors = tuple(
            Factor(0, 0, tuple(affine(*(int(n == k) for n in range(4))) for k in pair), F32)
            for pair in pairs
        )
        stage = RegionStage((), (5,) * 4, "sum", factors, product((F32,) * 4, F32))
        return fingerprint(Region((tensor(F32, 5, 5),), (stage,), ((0, 0),)))

    assert rings([(0, 1), (1, 2), (2, 3), (3, 0)]) != rings([(0, 1), (1, 0), (2, 3), (3, 2)])
