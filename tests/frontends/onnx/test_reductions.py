"""Composite reductions agree with float64."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from numpy.typing import NDArray
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.closeness import assert_within
from tests.draws import RNG


def log_sum_exp(x: NDArray[np.generic], dtype: str, keep: int) -> NDArray[np.generic]:
    """Returns the result of ReduceLogSumExp along axis 1."""
    shape, rank = ",".join(map(str, x.shape)), ",".join("n" * (x.ndim - 1 + keep))
    call = f"y = ReduceLogSumExp <keepdims = {keep}> (x, a)"
    text = f"g ({dtype}[{shape}] x) => ({dtype}[{rank}] y) <int64[1] a = {{1}}> {{ {call} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    return evaluate_graph(load_model(model), {"x": x})["y"]


@pytest.mark.parametrize(
    ("dtype", "kind", "bound"),
    [("float", np.float32, 1e-5), ("double", np.float64, 1e-12), ("float16", np.float16, 1e-2)],
)
@pytest.mark.parametrize("keep", [0, 1])
def test_exponentials_of_large_numbers_do_not_overflow(
    dtype: str, kind: type[np.floating], bound: float, keep: int
) -> None:
    x = (RNG.standard_normal((3, 5, 2)) * 9 + np.array([0, 900, -900])[:, None, None]).astype(kind)
    due = np.logaddexp.reduce(x.astype(np.float64), axis=1, keepdims=bool(keep))
    y = log_sum_exp(x, dtype, keep)
    assert y.dtype == kind
    assert_within(y, due, bound + np.abs(due) * np.finfo(kind).eps)


def test_infinities_and_integers() -> None:
    inf = np.inf
    x = np.array([[-inf, -inf], [inf, 1], [-inf, 3], [np.nan, 1]])
    np.testing.assert_allclose(log_sum_exp(x, "double", 0), [-inf, inf, 3, np.nan], 1e-15, 1e-15)
    integers = np.array([[700, 700], [-9, 4]], np.int32)
    np.testing.assert_array_equal(log_sum_exp(integers, "int32", 0), [700, 4])
