"""Finds rows and columns of a matrix that repeat."""

from __future__ import annotations

import numpy as np
from tcc.ir.op import Array

# Rows are compared at _SAMPLE places first.  They repeat if less than _SHARE of them differ.
_SAMPLE, _SHARE = 16, 0.75


def repeats(array: Array) -> bool:
    """Returns True if the axes of an array that are longer than 1 make a matrix whose rows or
    columns repeat."""
    matrix = array.squeeze()
    return matrix.ndim == 2 and any(map(repeated_rows, (matrix, matrix.T)))


def repeated_rows(matrix: Array) -> tuple[Array, Array] | None:
    """Returns (rows, labels) with `rows[labels]` equal to `matrix` bit for bit.

    Returns None if most rows differ.
    """
    bits = matrix.view(f"u{matrix.itemsize}")
    places = np.linspace(0, matrix.shape[1] - 1, _SAMPLE).astype(np.int64)
    _, first, labels = np.unique(bits[:, places], True, True, axis=0)
    labels = labels.reshape(-1)
    is_repeated = len(first) < _SHARE * len(bits) and np.array_equal(bits[first][labels], bits)
    return (matrix[first], labels) if is_repeated else None
