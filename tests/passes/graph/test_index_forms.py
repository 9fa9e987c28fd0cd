"""The search finds formulas of arrays, and each formula gives all elements of its array in
NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tcc.ir.expr import Expr, Stage
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import StageRef
from tcc.ir.index import Index, evaluate, free_vars, iterator
from tcc.ir.op import Array
from tcc.passes.graph import index_forms
from tcc.passes.graph.index_forms import condition_form, index_form

N, J = np.arange(24), np.arange(9)
ROWS = N[:, None]
Y = np.arange(49)
TABLES = {
    "range": 3 * N - 2,
    "clipped": np.clip(N - 2, 0, 9),
    "remainder": N % 5,
    "quotient": N // 3,
    "odd_quotient": np.arange(23) % 4 + 10 * (np.arange(23) // 4),
    "interleaved": N % 2 * 12 + N // 2,
    "three_digits": N // 6 * 6 + N % 3 * 2 + N // 3 % 2,
    "reversed": N[::-1] % 4,
    "window": ROWS + J - 4,
    "clipped_window": np.clip(ROWS + J - 4, 0, 23),
    "flat_clipped_window": np.clip(ROWS + J - 4, 0, 23).reshape(-1),
    "circular_window": (ROWS + J) % 24,
    "strided_circular": (ROWS * 9 + J) % 7,
    "relative_position": (Y[:, None] // 7 - Y // 7 + 6) * 13 + Y[:, None] % 7 - Y % 7 + 6,
    "chunks": (N[:4, None, None] * 6 + J[:8, None]) * 2 + N[:2],
    "equal": np.full((3, 4), 5),
    "one": np.array([[7]]),
    "two_values": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
}


def iterators(values: Array) -> list[Index]:
    return [iterator(f"i{n}", size) for n, size in enumerate(values.shape)]


def grid(values: Array) -> dict[str, Array]:
    places = np.indices(values.shape)
    return {free_vars(index)[0].name: places[n] for n, index in enumerate(iterators(values))}


@pytest.mark.parametrize("name", list(TABLES))
def test_tables_have_a_form_that_gives_all_elements(name: str) -> None:
    values = TABLES[name]
    form = index_form(values, iterators(values))
    assert form is not None
    np.testing.assert_array_equal(evaluate(form.index, grid(values)) + 0 * values, values)


def test_large_arrays_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_forms, "_PIECE", 16)
    for values in TABLES.values():
        assert index_form(values, iterators(values)) is not None
    other = TABLES["window"].copy()
    other[-1, -1] += 1
    assert index_form(other, iterators(other)) is None
    mask = np.tril(np.ones((40, 40), np.bool_))
    np.testing.assert_array_equal(condition(mask), mask)
    assert condition(_changed(_changed(mask, (39, 7)), (20, 3))) is None


def test_a_table_with_one_other_element_has_none() -> None:
    for name, values in TABLES.items():
        if values.size > 12 and name != "equal":
            other = values.copy()
            other.flat[7] += 100
            assert index_form(other, iterators(other)) is None, name


def test_random_tables_have_no_form_or_the_right_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.integers(0, rng.integers(2, 5), rng.integers(1, 4, 2))
        form = index_form(values, iterators(values))
        if form is not None:
            elements = evaluate(form.index, grid(values)) + 0 * values
            np.testing.assert_array_equal(elements, values)
    assert index_form(rng.permutation(40), iterators(np.zeros(40))) is None
    assert index_form(np.zeros((0, 3), np.int64), iterators(np.zeros((0, 3)))) is None


def condition(mask: Array) -> Array | None:
    """Returns the values of the comparisons that the search found for `mask`; None if it found
    none."""
    at = iterators(mask)
    form = condition_form(mask, at)
    if form is None:
        return None
    stage = Stage(tuple(free_vars(i)[0] for i in at), (), None, (form,))
    return evaluate_expr(Expr((), (stage,), (StageRef(0),)), [])[0]


BANDS = [
    (low, high, shape)
    for low, high in product([None, -7, 0, 3], [None, -3, 0, 8])
    for shape in [(9, 9), (5, 12), (12, 5), (1, 1, 12, 5), (2, 3, 9, 9)]
]


def test_bands_are_recognised() -> None:
    for low, high, shape in BANDS:
        distance = np.arange(shape[-1]) - np.arange(shape[-2])[:, None]
        inside = (distance >= (-np.inf if low is None else low)) & (
            distance <= (np.inf if high is None else high)
        )
        mask = np.broadcast_to(inside, shape)
        for variant in (mask, ~mask, mask[..., ::-1]):
            elements = condition(variant)
            if inside.all() or not inside.any():
                assert elements is None
            else:
                assert elements is not None, (low, high, shape)
                np.testing.assert_array_equal(elements, variant)


def test_other_runs_are_recognised() -> None:
    block = np.arange(16) // 4
    place = ROWS + J - 4
    masks = (
        np.broadcast_to(np.arange(8) < 5, (3, 1, 4, 8)),
        block <= block[:, None],
        block == block[:, None],
        (place >= 0) & (place < 24),
        np.tril(np.ones((64, 4096), np.bool_), 3000),
        np.array([True, False]),
    )
    for mask in masks:
        elements = condition(mask)
        assert elements is not None
        np.testing.assert_array_equal(elements, mask)


def _changed(mask: Array, at: tuple[int, ...]) -> Array:
    mask = mask.copy()
    mask[at] = not mask[at]
    return mask


def test_other_masks_have_no_comparisons() -> None:
    causal = np.tril(np.ones((2, 80, 80), np.bool_))
    masks = (
        _changed(causal, (1, 70, 3)),
        _changed(causal, (0, 0, 79)),
        np.ones((80, 80), np.bool_),
        np.random.default_rng(0).random((40, 40)) < 0.5,
        np.tril(np.ones((40, 40), np.bool_)) & (np.arange(40) != 7),
    )
    for mask in masks:
        assert condition(mask) is None
