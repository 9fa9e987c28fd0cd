"""Regions from which several derivation tests start, and their values by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.expr.scalar import literal
from tcc.ir.region import Factor, Region, RegionStage, product
from tcc.ir.region.affine import Affine, Size, unit
from tcc.ir.region.convert import to_expr
from tcc.ir.types import F32, tensor

Array = np.ndarray[Any, np.dtype[Any]]


def affine(*steps: Size, plus: Size = 0) -> Affine:
    return Affine(steps, plus)


def convolution(size: Size = 6, taps: int = 3, *, swapped: bool = False, fill: Any = 0.0) -> Region:
    """Returns y[h, w] = sum(r, s) A[h + r - 1, w + s - 1 else fill] * K[r, s]; K[s, r] if
    `swapped`."""
    r, s = affine(0, 0, 1, 0), affine(0, 0, 0, 1)
    image = affine(1, 0, 1, 0, plus=-(taps // 2)), affine(0, 1, 0, 1, plus=-(taps // 2))
    factors = (
        Factor(0, 0, image, F32, None if fill is None else literal(fill, F32)),
        Factor(1, 0, (s, r) if swapped else (r, s), F32),
    )
    stage = RegionStage((size, size), (taps, taps), "sum", factors, product((F32, F32), F32))
    params = tensor(F32, size, size), tensor(F32, taps, taps)
    return Region(params, (stage,), ((0, 0),))


def matmul(m: Size, n: Size, k: Size, *, transposed: bool = False) -> Region:
    """Returns y[i, j] = sum(k) A[i, k] * B[k, j]; B[j, k] if `transposed`."""
    i, j, d = (unit(n, 3) for n in range(3))
    factors = Factor(0, 0, (i, d), F32), Factor(1, 0, (j, d) if transposed else (d, j), F32)
    stage = RegionStage((m, n), (k,), "sum", factors, product((F32, F32), F32))
    other = tensor(F32, n, k) if transposed else tensor(F32, k, n)
    return Region((tensor(F32, m, k), other), (stage,), ((0, 0),))


def chain(*sizes: int) -> Region:
    """Returns the matmul of len(sizes) - 1 matrices, from the left."""
    stages = []
    for n, k in enumerate(sizes[1:-1]):
        i, j, d = (unit(axis, 3) for axis in range(3))
        factors = Factor(~(n - 1) if n else 0, 0, (i, d), F32), Factor(n + 1, 0, (d, j), F32)
        loops = (sizes[0], sizes[n + 2])
        stages.append(RegionStage(loops, (k,), "sum", factors, product((F32, F32), F32)))
    params = tuple(tensor(F32, a, b) for a, b in pairwise(sizes))
    return Region(params, tuple(stages), ((len(stages) - 1, 0),))


def operands(region: Region, seed: int = 0) -> list[Array]:
    """Returns operands of small integers, for which every order of a sum gives the same result."""
    rng = np.random.default_rng(seed)
    shapes = [p.shape for p in region.params if p is not None]
    return [
        rng.integers(-4, 5, tuple(int(repr(d)) for d in shape)).astype(np.float32)
        for shape in shapes
    ]


def values(region: Region, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return evaluate_expr(to_expr(region), tuple(arrays))
