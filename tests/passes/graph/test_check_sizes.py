"""Arrays that a compiled model cannot take are refused by name before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import symbol
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.runtime import Module

Run = Callable[[Graph], Module]

N, M = symbol("n", 2, 64, 2), symbol("m", 1)


def sized() -> Graph:
    """Returns x[n,3], y[2n] and z[n+m,m] for even n in 2..64 and m >= 1."""
    b = GraphBuilder("g")
    x, y, z = (
        b.input(name, tensor(F32, *dims)) for name, dims in (
            ("x", (N, 3)), ("y", (2 * N,)), ("z", (N + M, M)),
        )
    )  # fmt: skip
    results = [b.add(OPS["relu"], [v], names=[f"{v.name}.out"])[0] for v in (x, y, z)]
    return b.finish(results)


def arrays(n: int, m: int) -> dict[str, np.ndarray]:
    return {"x": shaped(n, 3), "y": shaped(2 * n), "z": shaped(n + m, m)}


def shaped(*shape: int) -> np.ndarray:
    return np.full(shape, -1, np.float32)


REFUSED: tuple[tuple[str, np.ndarray, str], ...] = (
    ("x", shaped(4), "input 'x': expected shape [n,3], got"),
    ("x", shaped(4, 3, 1), "input 'x': expected shape [n,3], got"),
    ("x", np.zeros((4, 3)), "f64"),
    ("x", np.zeros((4, 3), np.int32), "i32"),
    ("x", shaped(4, 2), "expected shape [n,3], got [4,2]"),
    ("x", shaped(0, 3), "at least 2"),
    ("x", shaped(66, 3), "at most 64"),
    ("x", shaped(5, 3), "a multiple of 2"),
    ("y", shaped(7), "input y, dimension 0: 2*n is due"),
    ("y", shaped(0), "input y, dimension 0: 2*n is due"),
    ("z", shaped(4, 0), "at least 1"),
    ("z", shaped(3, 1), "input z, dimension 0"),
    ("z", shaped(6, 1), "input z, dimension 0"),
)


def test_the_ends_of_all_ranges_are_taken_and_other_arrays_refused(compiled: Run) -> None:
    module = compiled(sized())
    for n, m in ((2, 1), (64, 1), (4, 100)):
        outputs = module.run(arrays(n, m))
        assert [outputs[f"{name}.out"].shape for name in "xyz"] == [(n, 3), (2 * n,), (n + m, m)]
    for name, array, why in REFUSED:
        with pytest.raises(RuntimeError, match=re.escape(why)):
            module.run({**arrays(4, 1), name: array})
