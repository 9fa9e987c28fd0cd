"""The places of rows, grouped by their data-dependent matrices, equal those of a stable sort, and
lead back."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.ir.expr import Expr
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.index import as_int, const
from tcc.ir.types import I64, tensor
from tcc.passes.moe import forms as group_forms
from tcc.passes.moe.forms import Grouping, places, rows


def _check(index: np.ndarray, matrices: int, tile: int) -> None:
    grouping = Grouping(tensor(I64, *index.shape), const(matrices), tile)
    forms: tuple[Expr, Expr] = places(grouping), rows(grouping)
    flat = index.reshape(-1)
    place, matrix, *other_values = evaluate_expr(forms[0], [flat])
    (row,) = evaluate_expr(forms[1], [place, matrix, *other_values])
    matrix_numbers = flat % matrices
    # Groups follow each other, and each begins at a multiple of the tile.
    reference, at = np.empty(len(flat), int), 0
    for group in range(matrices):
        (members,) = np.nonzero(matrix_numbers == group)
        reference[members] = at + np.arange(len(members))
        at += -(-len(members) // tile) * tile
    np.testing.assert_array_equal(place, reference)
    np.testing.assert_array_equal(row[place], np.arange(len(flat)))
    np.testing.assert_array_equal(matrix[place // tile], matrix_numbers)
    assert at <= len(row) == (as_int(grouping.tiles) or 0) * tile
    assert row.min() >= 0
    assert row.max() < len(flat)


CASES = ((1, 4, 16), (5, 8, 4), (7, 3, 2), (300, 5, 16), (513, 8, 1), (64, 64, 8))


@pytest.mark.parametrize("many", [2048, 4])
@pytest.mark.parametrize(("count", "matrices", "tile"), CASES)
def test_places_are_those_of_a_stable_sort(
    count: int, matrices: int, tile: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows may be compared in chunks; negative indices count from the end."""
    monkeypatch.setattr(group_forms, "_MANY", many)
    monkeypatch.setattr(group_forms, "_CHUNK", 16)
    index = np.random.default_rng(count).integers(-matrices, matrices, count)
    _check(index, matrices, tile)


def test_all_rows_in_one_group_and_tiles_at_their_worst() -> None:
    _check(np.full((20, 2), 3), 4, 8)
    _check(np.arange(8), 8, 16)
    # Every group has one row too many for its tiles, so that no tile is unused.
    _check(np.repeat(np.arange(4), 9), 4, 8)
