"""Collectives give on all ranks the elements that Python computes one by one."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tcc.ir.program import CollectiveKind, Reduction
from tcc.ir.types import BOOL, F32, tensor
from tcc.ops import OPS
from tcc.ops.collective import CollectiveAttrs

from tests.lib.oracle.collectives import collected

RANKS, BLOCK = 3, 2


def operands(dtype: str) -> list[Any]:
    rng = np.random.default_rng(5)
    return [
        rng.integers(0 if dtype == "u1" else -9, 10, (RANKS * BLOCK, 2)).astype(dtype)
        for _ in range(RANKS)
    ]


def combined(reduction: Reduction, numbers: list[int]) -> Fraction:
    match reduction:
        case Reduction.SUM:
            return Fraction(sum(numbers))
        case Reduction.PROD:
            return Fraction(int(np.prod(numbers)))
        case Reduction.MIN:
            return Fraction(min(numbers))
        case Reduction.MAX:
            return Fraction(max(numbers))
        case Reduction.AVG:
            return Fraction(sum(numbers), len(numbers))


def element(kind: CollectiveKind, reduction: Reduction, xs: list[Any], at: tuple[int, ...]) -> Any:
    """Returns the exact element `at` (rank, row, column) of the results."""
    rank, row, column = at
    match kind:
        case CollectiveKind.ALL_REDUCE:
            return combined(reduction, [int(x[row, column]) for x in xs])
        case CollectiveKind.REDUCE_SCATTER:
            return combined(reduction, [int(x[rank * BLOCK + row, column]) for x in xs])
        case CollectiveKind.ALL_GATHER:
            return xs[row // (RANKS * BLOCK)][row % (RANKS * BLOCK), column]
        case CollectiveKind.ALL_TO_ALL:
            return xs[row // BLOCK][rank * BLOCK + row % BLOCK, column]
        case CollectiveKind.BROADCAST:
            return xs[1][row, column]


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "u1", "i4", "i8"])
@pytest.mark.parametrize("kind", CollectiveKind, ids=lambda kind: kind.name)
def test_results_of_all_ranks(kind: CollectiveKind, dtype: str) -> None:
    for reduction in Reduction if kind.reduces else [Reduction.SUM]:
        root = 1 if kind is CollectiveKind.BROADCAST else 0
        attrs = CollectiveAttrs(RANKS, reduction.name.lower(), root)
        xs = operands(dtype)
        results = collected(kind, attrs, xs)
        (form,) = OPS[kind.name.lower()].infer([tensor(F32, *xs[0].shape)], attrs)
        assert [x.shape for x in results] == [form.static_shape] * RANKS
        assert {x.dtype for x in results} == {np.dtype(dtype)}
        for at in itertools.product(range(RANKS), *map(range, results[0].shape)):
            exact = element(kind, reduction, xs, at)
            result = results[at[0]][at[1:]]
            if np.dtype(dtype).kind == "f":
                rtol = 1e-3 if dtype == "f2" else 1e-6
                np.testing.assert_allclose(result, float(exact), rtol=rtol, atol=9 * rtol)
            else:
                bits = 8 * np.dtype(dtype).itemsize
                assert (int(result) - int(exact)) % (1 << bits) == 0, (at, reduction)


@pytest.mark.parametrize(
    ("kind", "shape", "attrs", "why"),
    [
        ("all_gather", (2,), CollectiveAttrs(), "has no blocks"),
        ("all_gather", (), CollectiveAttrs(2), "has no blocks"),
        ("reduce_scatter", (3, 2), CollectiveAttrs(2), "no 2 equal blocks"),
        ("all_to_all", (3, 2), CollectiveAttrs(2), "no 2 equal blocks"),
        ("all_reduce", (3,), CollectiveAttrs(2, "mean"), "no reduction mean"),
        ("broadcast", (3,), CollectiveAttrs(2, root=2), "rank 2 of 2"),
    ],
)
def test_invalid_collectives_have_no_type(
    kind: str, shape: tuple[int, ...], attrs: CollectiveAttrs, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        OPS[kind].infer([tensor(F32, *shape)], attrs)
    with pytest.raises(ValueError, match="bool"):
        OPS[kind].infer([tensor(BOOL, 4)], CollectiveAttrs(2))
