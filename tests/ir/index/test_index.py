"""The simplifier agrees with Python integers on small ranges exhaustively, and z3 proves its rules.

A test draws an expression as a tree, builds it through the constructors, and compares it with the
tree's value at every point of a grid of sizes and iterators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tcc.ir.index import (
    Index,
    as_int,
    bounds,
    ceildiv,
    const,
    divisor_of,
    evaluate,
    free_vars,
    iterator,
    linear_in,
    maximum,
    minimum,
    mod,
    nonnegative,
    substitute,
    symbol,
    var_of,
)
from tcc.ir.index.long import LargeFormulaError
from tcc.ir.index.names import facts_of, weight
from tcc.ir.index.prove import at_most, inside

Tree: TypeAlias = Any  # an int, a name, or (operator, tree, tree)
Array: TypeAlias = "np.ndarray[Any, Any]"

N, M, W = symbol("n", 1, 5), symbol("m", 2, 8, 2), symbol("w", 0)
P, Q = iterator("p", 6), iterator("q", N)
R, S, E = iterator("r", 2 * M), iterator("s", N * M), iterator("e", W)
VARIABLES = {"n": N, "m": M, "w": W, "p": P, "q": Q, "r": R, "s": S, "e": E}


def _grid() -> dict[str, Array]:
    """Returns points with n in 1..5, m in 2, 4, 6, 8, w in 1..3 and the iterators in range.

    The Cartesian product is too large; the points are a fixed sample with all its corners.
    """
    rng = np.random.default_rng(0)
    points = []
    for n, m, w in itertools.product(range(1, 6), (2, 4, 6, 8), (1, 2, 3)):
        tops = (6, n, 2 * m, n * m, w)
        corners = itertools.product(*((0, top - 1) for top in tops))
        inner = zip(*(rng.integers(0, top, 40) for top in tops), strict=True)
        points.extend((n, m, w, *point) for point in (*corners, *inner))
    columns = np.array(sorted(set(points)), dtype=np.int64).T
    return dict(zip(VARIABLES, columns, strict=True))


GRID = _grid()
DIVISORS: tuple[Tree, ...] = (
    1, 2, 3, 4, 6, 8, "n", "m", ("*", 2, "n"), ("*", "n", "m"), ("+", "n", "m"), ("*", 4, "m"),
)  # fmt: skip

BUILD: Mapping[str, Callable[[Any, Any], Index]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": minimum,
    "max": maximum,
}
COMPUTE: Mapping[str, Callable[[Any, Any], Any]] = {
    **BUILD,
    "min": np.minimum,
    "max": np.maximum,
}


def build(tree: Tree) -> Index:
    match tree:
        case int():
            return const(tree)
        case str():
            return VARIABLES[tree]
        case operator, a, b:
            return BUILD[operator](build(a), build(b))
    raise AssertionError(tree)


def compute(tree: Tree, grid: Mapping[str, Array]) -> Any:
    match tree:
        case int():
            return np.int64(tree)
        case str():
            return grid[tree]
        case operator, a, b:
            return COMPUTE[operator](compute(a, grid), compute(b, grid))
    raise AssertionError(tree)


LEAVES = st.one_of(st.integers(-12, 12), st.sampled_from(list(VARIABLES)))


def _grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner),
        st.tuples(st.just("*"), st.integers(-8, 8), inner),
        st.tuples(st.sampled_from(["//", "%"]), inner, st.sampled_from(DIVISORS)),
    )


TREES = st.recursive(LEAVES, _grow, max_leaves=7)


def values(index: Index, grid: Mapping[str, Array] = GRID) -> Array:
    return np.broadcast_to(evaluate(index, grid), grid["n"].shape)


@settings(max_examples=150, deadline=None)
@given(TREES)
@example(("%", ("%", "p", 4), 2))
@example(("//", ("%", "p", 5), 5))
@example(("%", ("-", 0, "w"), 5))
@example(("//", ("+", "m", 3), 2))
@example(("%", ("+", ("*", "n", "s"), "m"), "m"))
def test_simplifying_keeps_the_value(tree: Tree) -> None:
    np.testing.assert_array_equal(values(build(tree)), compute(tree, GRID))


@settings(max_examples=150, deadline=None)
@given(TREES)
@example(("%", ("-", 0, "w"), 5))
def test_bounds_and_divisors_hold(tree: Tree) -> None:
    index, points = build(tree), compute(tree, GRID)
    lo, hi = bounds(index)
    assert lo is None or lo <= points.min()
    assert hi is None or hi >= points.max()
    divisor = divisor_of(index)
    assert not points.any() if divisor == 0 else not (points % divisor).any()
    if nonnegative(index):
        assert points.min() >= 0


@settings(max_examples=120, deadline=None)
@given(TREES, TREES)
def test_proofs_hold(a: Tree, b: Tree) -> None:
    lhs, right = compute(a, GRID), compute(b, GRID)
    if at_most(build(a), build(b)):
        assert (lhs <= right).all()
    if inside(build(a), build(b)):
        assert ((lhs >= 0) & (lhs < right)).all()


@settings(max_examples=80, deadline=None)
@given(TREES, st.sampled_from(list(VARIABLES)))
def test_substitution(tree: Tree, name: str) -> None:
    """A variable is replaced by an expression of the same range: its mirror image.

    Other values could break facts about the variable that the simplifier has already used.
    """
    mirror = {"p": 5 - P, "q": N - 1 - Q, "r": 2 * M - 1 - R, "s": N * M - 1 - S, "e": W - 1 - E}
    mirror |= {"n": 6 - N, "m": 10 - M, "w": W + 3}
    index, var = build(tree), var_of(VARIABLES[name])
    assert var is not None
    replaced = substitute(index, {var: mirror[name]})
    changed = {**GRID, name: evaluate(mirror[name], GRID)}
    np.testing.assert_array_equal(values(replaced), values(index, changed))


@settings(max_examples=80, deadline=None)
@given(TREES, st.sampled_from(list(VARIABLES)))
def test_linear_parts(tree: Tree, name: str) -> None:
    index, var = build(tree), var_of(VARIABLES[name])
    assert var is not None
    parts = linear_in(index, var)
    if parts is not None:
        assert var not in free_vars(parts[0]) + free_vars(parts[1])
        assert parts[0] * VARIABLES[name] + parts[1] is index


@settings(max_examples=80, deadline=None)
@given(TREES, TREES, TREES)
def test_sums_and_products_have_one_form(a: Tree, b: Tree, c: Tree) -> None:
    x, y, z = build(a), build(b), build(c)
    assert x + y is y + x
    assert (x + y) + z is x + (y + z)
    assert x * y is y * x
    assert x * (y + z) is x * y + x * z
    assert x - x is const(0)


# ---- simplifications ---------------------------------------------------------------------------


D, H = iterator("d", 64), iterator("h", N)


@pytest.mark.parametrize(
    ("index", "want"),
    [
        ((64 * H + D) // 64, H),
        ((64 * H + D) % 64, D),
        ((M * H + iterator("k", M)) // M, H),
        ((M * H + iterator("k", M)) % M, iterator("k", M)),
        ((W // 2) // 3, W // 6),
        ((4 * W + 2 * P + 1) // 8, (2 * W + P) // 4),
        ((W + 8) // 8, W // 8 + 1),
        (M % 2, const(0)),
        ((M + 3) // 2, M // 2 + 1),
        ((6 * W) % 4, 2 * (W % 2)),
        ((6 * W + 3) % 4, 2 * ((W + (W + W) + 1) % 2) + 1),
        (minimum(P, const(5)), P),
        (maximum(P - 9, const(0)), const(0)),
        (W % 1, const(0)),
        (W // W, const(1)),
        (ceildiv(8 * W, 8), W),
        (mod(W * N, N), const(0)),
        ((P % 8) // 8, const(0)),
        (symbol("one", 3, 3), const(3)),
        ((4 * W + iterator("j", 4)) // 16, W // 4),
        ((4 * W + iterator("j", 4)) % 16, 4 * (W % 4) + iterator("j", 4)),
        ((4096 * H + D + 64 * iterator("k", 64)) // 16384, H // 4),
    ],
)
def test_simplifies(index: Index, want: Index) -> None:
    assert index is want


def _grown(steps: int, a: Any, b: Any) -> Any:
    """Returns a formula of `a` and `b` whose expanded text would double with each step."""
    for _ in range(steps):
        a = a + b
        b = (a * b) // 2
    return b % 7


def test_texts_of_formulas_of_formulas_stay_short_and_apart() -> None:
    assert len(_grown(30, N, W).key) < 10_000
    assert len({_grown(steps, N, W).key for steps in range(2, 30)}) == 28
    assert evaluate(_grown(10, N, W), {"n": 3, "w": 4}) == _grown(10, 3, 4)


def test_a_product_of_long_sums_is_refused() -> None:
    long = sum((symbol(f"l{n}") for n in range(200)), const(0))
    with pytest.raises(LargeFormulaError, match="too long a formula"):
        long * long


def test_proofs_look_at_a_limited_number_of_cases() -> None:
    """The proof could split twenty maxima into 3**20 cases."""
    total = W
    for n in range(20):
        total = maximum(total - symbol(f"p{n}"), symbol(f"q{n}")) + minimum(total, N)
    assert not at_most(total, W)


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_a_symbol_may_stand_for_a_formula(tree: Tree) -> None:
    index, points = build(tree), compute(tree, GRID)
    least, most, typical, divisor = facts_of(index, 128)
    assert least <= points.min()
    assert points.max() <= most
    assert least <= typical <= most
    assert not (points % divisor).any() if divisor else not points.any()
    assert weight(index) <= 200


def test_mixed_radix_of_three_digits_round_trips() -> None:
    """Flattening (b, i, j) and splitting the result returns the iterators, for symbolic sizes."""
    i, j, b = iterator("i", M), iterator("j", 7), iterator("b", N)
    flat = (b * M + i) * 7 + j
    assert flat % 7 is j
    assert flat // 7 % M is i
    assert flat // 7 // M is b


def test_questions() -> None:
    assert as_int(W - W + 3) == 3
    assert as_int(W) is None
    assert var_of(W + 1) is None
    assert var_of(2 * W) is None
    assert bounds(2 * M - 3) == (1, 13)
    assert bounds(W // N) == (0, None)
    assert divisor_of(2 * M + 4) == 4
    assert set(free_vars(W % (N + M) + P * N)) == {var_of(x) for x in (W, N, M, P)}


@pytest.mark.parametrize(
    ("index", "proved"),
    [
        (N * M - 1 - S, True),
        (8 * ((W + 7) // 8) - W, True),
        (W - 8 * (W // 8), True),
        (8 * ((W + 7) // 8) - 8 * (E // 8) - 8, True),
        (W - E - 1, True),
        (W - E - 2, False),
        (N * W - Q * W - W, True),
        (W - 1 - (2 * iterator("x", W // 2) + iterator("y", 2)), True),
        (W - 1 - (2 * iterator("x", W // 2) + iterator("y", 3)), False),
        (W - 1 - ((iterator("z", 4 * N) // N) // 2 + 2 * iterator("x", W // 2)), True),
    ],
)
def test_nonnegative(index: Index, proved: bool) -> None:
    assert nonnegative(index) is proved


# ---- the rules for all integers, by z3 ---------------------------------------------------------


Z3_RULES = (
    "whole",
    "nested",
    "reduce",
    "factor",
    "exact",
    "within",
    "radix",
    "digits",
    "cancel",
    "least",
    "least_of_sum",
)


@pytest.mark.parametrize("rule", Z3_RULES)
def test_rules_hold_for_all_integers(rule: str) -> None:
    """The test states each rule of `tcc.ir.index` as a formula, and z3 finds no counterexample.

    z3's `div` and `mod` agree with Python's for positive divisors, and all rules have positive
    divisors.
    """
    z3: Any = pytest.importorskip("z3")
    x, y, q, r = z3.Ints("x y q r")
    for a, b in itertools.product((1, 2, 3, 7, 64), (2, 3, 8)):
        claims = {
            # (a*q + r) // a == q + r // a, which `_divide` uses for each term
            "whole": (a * q + r) / a == q + r / a,
            "nested": (x / a) / b == x / (a * b),
            # a common factor of all but the constant: `_reduce`
            "reduce": (a * x + y) / (a * b) == (x + y / a) / b,
            "factor": (a * x + y) % (a * b) == a * ((x + y / a) % b) + y % a,
            "exact": z3.Implies(x % a == 0, z3.And((x + y) % a == y % a,
                                (x + y) / a == x / a + y / a)),
            "within": z3.Implies(z3.And(x >= 0, x < a), z3.And(x / a == 0, x % a == x)),
            "radix": z3.Implies(z3.And(r >= 0, r < a), z3.And((a * q + r) / a == q,
                                (a * q + r) % a == r)),
            # `_digits`
            "digits": z3.Implies(z3.And(r >= 0, r < a), z3.And(
                (a * q + r) / (a * b) == q / b, (a * q + r) % (a * b) == a * (q % b) + r)),
            # the limits of d * (x // d): `_term_limit`
            "cancel": z3.And(a * (x / a) <= x, a * (x / a) >= x - (a - 1)),
            # min and max against the mean: `at_most`
            "least": z3.And(
                z3.Implies(x + y <= 2 * r + 1, z3.Or(x <= r, y <= r)),
                z3.Implies(x + y >= 2 * r - 1, z3.Or(x >= r, y >= r)),
            ),
            # the same for sums, with either sign of the factor: `at_most`
            "least_of_sum": z3.And(*(
                z3.Implies(c * (x + y) + 2 * r >= -1, z3.Or(c * x + r >= 0, c * y + r >= 0))
                for c in (a, -a)
            )),
        }  # fmt: skip
        solver = z3.Solver()
        solver.set("timeout", 5000)
        solver.add(z3.Not(claims[rule]))
        assert solver.check() == z3.unsat, (rule, a, b)
