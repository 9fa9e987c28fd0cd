"""The maps that bilinear algorithms compute, written out."""

from __future__ import annotations

from itertools import product

from tcc.passes.derive.bilinear.algorithms import Tensor


def correlation(results: int, taps: int) -> Tensor:
    """The map y[i] = sum(k) x[i + k] * w[k]."""
    return tuple(
        tuple(tuple(int(j == i + k) for k in range(taps)) for j in range(results + taps - 1))
        for i in range(results)
    )


def block_product() -> Tensor:
    """The product of two matrices of 2 x 2 blocks, counted row by row: y[i, j] of x[i, k] and
    w[k, j]."""
    blocks = tuple(product(range(2), repeat=2))
    return tuple(
        tuple(tuple(int((a, b, d) == (i, c, j)) for c, d in blocks) for a, b in blocks)
        for i, j in blocks
    )
