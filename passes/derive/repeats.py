"""Finds rows, columns and blocks of a matrix that repeat.

Rows repeat if `matrix == rows[labels]`, and blocks, each with a factor, if `matrix == kron(a, b)`.
An outer product is a case of the latter.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tcc.ir.op import Array

# Rows are compared at _SAMPLE places first.  They repeat if less than _SHARE of them differ.
# Blocks are compared in matrices of at most _MOST elements.
_SAMPLE, _SHARE, _MOST = 16, 0.75, 1 << 22


def repeats(array: Array) -> bool:
    """Returns True if the axes of an array that are longer than 1 make a matrix whose rows,
    columns or blocks repeat."""
    matrix = array.squeeze()
    return matrix.ndim == 2 and bool(
        repeated_rows(matrix) or repeated_rows(matrix.T) or kronecker_factors(matrix)
    )


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


@np.errstate(all="ignore")  # blocks with infinities or NaN are compared too
def kronecker_factors(matrix: Array) -> tuple[Array, Array] | None:
    """Returns matrices (a, b) with `np.kron(a, b) == matrix`, of few elements; None if there are
    none.

    A block divided by the largest common divisor of its entries is b.  So the factors of products
    that were rounded are not found.
    """
    size, (rows, columns) = matrix.size, matrix.shape
    row, column = divmod(int(abs(matrix).argmax()), columns)
    top = np.float64(matrix[row, column])
    sizes = [
        (p, q) for p in _divisors(rows) for q in _divisors(columns) if 1 < p * q < size <= _MOST
    ]
    for p, q in sorted(sizes, key=lambda pair: prod(pair) + size // prod(pair)):
        a = matrix[row % p :: p, column % q :: q]
        b = matrix[row - row % p :, column - column % q :][:p, :q]
        # Comparisons of one entry and of one row, before that of all entries.
        if np.float64(a[-1, -1]) * b[-1, -1] == matrix[-1, -1] * top and np.array_equal(
            np.kron(np.float64(a[-1]), b[-1]), matrix[-1] * top
        ):
            numbers = b / np.spacing(abs(b[b != 0]).min(initial=1)).astype(np.float64)
            # Numbers that are too large for an integer fail the comparison.
            numbers /= np.gcd.reduce(numbers.astype(np.int64), axis=None)
            b = np.ldexp(numbers, -np.frexp(abs(numbers).max())[1]).astype(matrix.dtype)
            a = a / b[row % p, column % q]
            if np.array_equal(np.kron(a, b), matrix):
                return a, b
    return None


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
