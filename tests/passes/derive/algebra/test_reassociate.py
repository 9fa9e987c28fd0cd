"""Reassociated sums of products are exact on integers and cheapest by the estimate; reassociation
is refused if the algebra does not hold or does not pay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import apply, literal
from tcc.ir.region import Region
from tcc.ir.region.check import equal_at
from tcc.ir.region.convert import from_expr
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.passes.derive.algebra.cost import estimate
from tcc.passes.derive.algebra.fold import fold
from tcc.passes.derive.algebra.reassociate import Rewrite, reassociated
from tcc.schedule.limits import Rates

from tests.closeness import assert_within
from tests.ir.region.regions import chain, operands, values

# Multiplications cost most, so that small sizes behave like large sizes.
RATES = Rates(1.0, 1e3, 1e3)


def best(region: Region, constants: Sequence[bool] = ()) -> Rewrite:
    fixed = tuple(constants) or (False,) * len(region.params)
    return reassociated(region, fixed, RATES).candidates[0]


def exact(region: Region, constants: Sequence[bool] = ()) -> Rewrite:
    """Returns the best candidate, after a comparison of all candidates with the region on
    integers."""
    fixed = tuple(constants) or (False,) * len(region.params)
    arrays = operands(region)
    found = reassociated(region, fixed, RATES).candidates
    for candidate in found:
        for got, want in zip(values(candidate.region, arrays), values(region, arrays), strict=True):
            assert np.array_equal(got, want), candidate.chain
    return found[0]


def einsum(equation: str, sizes: dict[str, int]) -> Region:
    terms = equation.partition("->")[0].split(",")
    types = [tensor(F32, *(sizes[letter] for letter in term)) for term in terms]
    row = OPS["einsum"]
    assert row.expr is not None
    return from_expr(row.expr(types, row.attrs(equation)))


@pytest.mark.parametrize("seed", range(8))
def test_random_einsums_agree_with_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        letters = "abcdef"[: rng.integers(2, 7)]
        terms = [
            "".join(rng.permutation(list(letters))[: rng.integers(0, 4)])
            for _ in range(rng.integers(1, 5))
        ]
        used = sorted(set("".join(terms)))
        result = "".join(rng.permutation(used)[: rng.integers(0, 4)]) if used else ""
        sizes = {letter: int(rng.integers(1, 5)) for letter in letters}
        equation = f"{','.join(terms)}->{result}"
        region = einsum(equation, sizes)
        arrays = [
            rng.integers(-3, 4, [sizes[letter] for letter in term]).astype(np.float32)
            for term in terms
        ]
        constants = tuple(bool(n) for n in rng.integers(0, 2, len(terms)))
        for candidate in reassociated(region, constants, RATES).candidates:
            (got,) = values(candidate.region, arrays)
            assert np.array_equal(got, np.einsum(equation, *arrays)), (equation, candidate.chain)


def brute_force(sizes: Sequence[int]) -> int:
    """Returns the fewest multiplications of a chain of matrices (Godbole 1973)."""
    count = len(sizes) - 1
    least = {(i, i): 0 for i in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            least[i, j] = min(
                least[i, k] + least[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1]
                for k in range(i, j)
            )
    return least[0, count - 1]


@pytest.mark.parametrize("seed", range(6))
def test_chains_of_matrices_take_the_fewest_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(2, 20, rng.integers(4, 7))]
    region = chain(*sizes)
    products = Rates(1.0, 1e30, 1e30)
    found = reassociated(region, (False,) * len(region.params), products).candidates[0]
    assert found.seconds == pytest.approx(brute_force(sizes))
    assert equal_at(region, found.region)


def test_many_factors_are_joined_one_pair_after_the_other() -> None:
    region = chain(*(3, 2, 4, 2, 5, 3, 2, 4, 3, 2, 3))
    assert exact(region).seconds <= estimate(region, (False,) * 10, RATES)


def test_a_cheap_order_stays() -> None:
    region = chain(2, 30, 30, 30)
    assert best(region).seconds == estimate(region, (False,) * 3, RATES)


# ---- constants ----------------------------------------------------------------------------------


@pytest.mark.parametrize("equation", ["ab,bc->ac", "ab,b->a", "ab,ab->ba", "ab,c->ac", "aab,b->"])
def test_constant_stages_are_folded_in_f64(equation: str) -> None:
    region = einsum(equation, {"a": 3, "b": 4, "c": 5})
    rng = np.random.default_rng(0)
    shapes = [[{"a": 3, "b": 4, "c": 5}[c] for c in t] for t in equation.split("->")[0].split(",")]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    made = fold(region, (True,) * len(arrays), arrays)
    wide = [a.astype(np.float64) for a in arrays]
    want, magnitudes = np.einsum(equation, *wide), np.einsum(equation, *map(np.abs, wide))
    (got,) = made[region.outputs[0][0]]
    assert got.dtype == np.float64
    assert_within(got, want, 1e-14 * magnitudes)


def test_bodies_that_are_no_product_are_folded_too() -> None:
    b = ExprBuilder(tensor(F32, 3, 4), tensor(F32, 4))
    i, j = b.iters(3, 4)
    body = apply("sqrt", apply("abs", b.read(0, i, j))) + b.read(1, 3 - j) * 0.125
    region = from_expr(b.finish((i, j), body))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4,))]
    x, y = (a.astype(np.float64) for a in arrays)
    (got,) = fold(region, (True, True), arrays)[0]
    root, eighth = np.sqrt(np.abs(x)), y[::-1] * 0.125
    assert_within(got, root + eighth, 1e-15 * (root + np.abs(eighth)))


def test_a_literal_is_folded_too() -> None:
    b = ExprBuilder()
    (i,) = b.iters(3)
    (got,) = fold(from_expr(b.finish((i,), literal(0.5, F32))), (), ())[0]
    assert np.array_equal(got, np.full(3, 0.5))
