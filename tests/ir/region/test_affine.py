"""Quasi-affine forms are simplified, substituted and bounded correctly at every point of small
boxes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest
from tcc.ir.index import const, iterator, symbol
from tcc.ir.region.affine import (
    Affine,
    Digit,
    affine_of,
    combine,
    digit,
    index_of,
    interval,
    is_inside,
    loops_of,
    simplified,
    substitute,
    unit,
)


def value(form: Affine, point: Sequence[int]) -> int:
    total = form.offset + sum(s * p for s, p in zip(form.steps, point, strict=True))
    for d in form.digits:
        inner = value(d.of, point) // d.div
        total += d.step * (inner % d.mod if d.mod else inner)
    assert isinstance(total, int)
    return total


def points(extents: Sequence[int]) -> list[tuple[int, ...]]:
    return list(product(*map(range, extents)))


def draw(rng: random.Random, loops: int, depth: int = 2) -> Affine:
    steps = tuple(rng.choice((0, 0, 1, 2, 3, 4, 6, 12, -1, -2)) for _ in range(loops))
    digits = ()
    if depth:
        digits = tuple(
            Digit(
                rng.choice((1, 2, 4, -3)),
                draw(rng, loops, depth - 1),
                rng.choice((1, 2, 3, 4, 6, 12)),
                rng.choice((0, 2, 3, 4, 6)),
            )
            for _ in range(rng.choice((0, 1, 1, 2)))
        )
    return Affine(steps, rng.randint(-5, 9), digits)


@pytest.mark.parametrize("seed", range(300))
def test_simplification_keeps_every_value(seed: int) -> None:
    rng = random.Random(seed)
    extents = tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(3))
    form = draw(rng, 3)
    simple = simplified(form, extents)
    assert [value(simple, p) for p in points(extents)] == [value(form, p) for p in points(extents)]
    assert simplified(simple, extents) == simple


@pytest.mark.parametrize("seed", range(100))
def test_substitution_is_composition(seed: int) -> None:
    rng = random.Random(seed)
    extents = tuple(rng.choice((1, 2, 3, 5)) for _ in range(3))
    form, maps = draw(rng, 2), [draw(rng, 3, 1) for _ in range(2)]
    composed = substitute(form, maps, extents)
    for point in points(extents):
        assert value(composed, point) == value(form, [value(m, point) for m in maps])


@pytest.mark.parametrize("seed", range(100))
def test_the_interval_holds_every_value(seed: int) -> None:
    rng = random.Random(seed)
    extents = tuple(rng.choice((1, 2, 3, 5)) for _ in range(3))
    form = draw(rng, 3, rng.choice((0, 1, 2)))
    low, high = interval(form, extents)
    values = [value(form, p) for p in points(extents)]
    assert isinstance(low, int)
    assert isinstance(high, int)
    assert low <= min(values)
    assert max(values) <= high
    if not form.digits:
        assert (low, high) == (min(values), max(values))


@pytest.mark.parametrize(
    ("form", "extents", "simple"),
    [
        (digit(Affine((4, 1)), 4), (3, 4), Affine((1, 0))),
        (digit(Affine((4, 1)), 1, 4), (3, 4), Affine((0, 1))),
        (digit(Affine((4, 1)), 1, 8), (6, 4), Affine((0, 1), 0, (Digit(4, unit(0, 2), 1, 2),))),
        (digit(Affine((6, 2), 1), 4), (5, 2), digit(Affine((3, 1)), 2)),
        (digit(digit(Affine((1,)), 2), 3), (40,), digit(Affine((1,)), 6)),
        (digit(digit(Affine((1,)), 1, 12), 3), (40,), digit(Affine((1,)), 3, 4)),
        (digit(digit(Affine((1,)), 1, 12), 1, 4), (40,), digit(Affine((1,)), 1, 4)),
        (digit(Affine((5, 1)), 5, 3), (3, 5), Affine((1, 0))),
        (digit(Affine((1,), -1), 2), (1,), Affine((0,), -1)),
    ],
)
def test_digits_become_simple(form: Affine, extents: tuple[int, ...], simple: Affine) -> None:
    assert simplified(form, extents) == simple


def test_quotient_and_remainder_of_one_form_join() -> None:
    x = Affine((1, 1))
    combined = combine(((3, digit(x, 3)), (1, digit(x, 1, 3))), (9, 9))
    assert combined == x
    part = combine(((3, digit(x, 3, 2)), (1, digit(x, 1, 3))), (9, 9))
    assert part == digit(x, 1, 6)


def test_a_symbol_is_compared_and_never_divided() -> None:
    n = symbol("n", lo=1)
    assert is_inside(Affine((1, 1)), n + 2, (n, 3))
    assert not is_inside(Affine((1, 1)), n + 1, (n, 3))
    assert not is_inside(Affine((1, 1), -1), n + 2, (n, 3))
    assert interval(Affine((-1,), n - 1), (n,)) == (0, n - 1)
    half = digit(Affine((2,), n), 2)
    assert simplified(half, (4,)) == Affine((1,), 0, (Digit(1, Affine((0,), n), 2, 0),))
    assert is_inside(half, 4 + n, (4,)) is False


def test_indices_convert_both_ways() -> None:
    n = symbol("n")
    i, j = iterator("i", 12), iterator("j", n)
    loops = {a: k for k, x in enumerate((i, j)) for a in (x.terms[0][0][0],)}
    for index in (
        3 * i - j + 5,
        (i + j) // 3 % 4 + 2 * (i % 5),
        j * n + i,
        (2 * i + (i + j) % 3) // 5 + n * 2,
        const(7),
    ):
        form = affine_of(index, loops)
        assert form is not None
        assert index_of(form, (i, j)) is index
    assert affine_of(i * j, loops) is None
    assert affine_of(i // n, loops) is None
    assert loops_of(digit(Affine((0, 3)), 2)) == {1}
