"""Bilinear maps, and the proof that an algorithm computes a map."""

from __future__ import annotations

from typing import TypeAlias

from tcc.passes.derive.bilinear.algorithms import Bilinear

# T[i][j][k] of y[i] = sum(j, k) T[i][j][k] * x[j] * w[k].
Tensor: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]


def correlation(results: int, taps: int) -> Tensor:
    """Returns the map y[i] = sum(k) x[i + k] * w[k]."""
    return tuple(
        tuple(tuple(int(j == i + k) for k in range(taps)) for j in range(results + taps - 1))
        for i in range(results)
    )


def computes(algorithm: Bilinear, target: Tensor) -> bool:
    """Returns True if the algorithm computes the map of `target` exactly."""
    columns = zip(*algorithm.results, strict=True)
    factors = list(zip(columns, algorithm.inputs, algorithm.weights, strict=True))
    return all(
        sum(c[i] * a[j] * b[k] for c, a, b in factors) == wanted
        for i, plane in enumerate(target)
        for j, row in enumerate(plane)
        for k, wanted in enumerate(row)
    )
