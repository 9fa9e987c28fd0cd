"""A table of rows and a matmul that reads the table transposed share memory."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.ir.graph import GraphBuilder
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.types import F32, I64, tensor
from tcc.passes.graph.emit import emit
from tcc.passes.graph.share_tables import share_tables

_TABLE = np.sin(np.arange(160.0 * 128) ** 2).astype(np.float32).reshape(160, 128)


@pytest.mark.parametrize(("shape", "change"), [((3,), 0.0), ((2, 3), 0.0), ((3,), 1.0)])
def test_rows_are_read_from_the_transpose_if_it_is_equal(
    shape: tuple[int, ...], change: float
) -> None:
    b = GraphBuilder("tied")
    index, x = b.input("i", tensor(I64, *shape)), b.input("x", tensor(F32, 2, 128))
    transposed = _TABLE.T.copy()
    transposed[-1, -1] += change
    rows = emit(b, "gather", b.constant(_TABLE, "w"), index, axis=0)
    product = emit(b, "matmul", x, b.constant(transposed, "wt"))
    graph = b.finish([rows, product])
    shared = share_tables(graph)
    assert len(shared.constants) == (2 if change else 1)
    numbers = np.arange(np.prod(shape)).reshape(shape) * 31 % 160
    feeds = {"i": numbers, "x": np.ones((2, 128), np.float32)}
    (result, *_), (expected, *_) = (evaluate_graph(g, feeds).values() for g in (shared, graph))
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(result, _TABLE[numbers])
