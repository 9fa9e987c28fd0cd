"""Hardmax agrees with NumPy's position of the first largest element."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.draws import RNG


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [11, 13])
def test_the_first_largest_element(axis: int, opset: int) -> None:
    x = RNG.integers(-3, 3, (3, 7, 5)).astype(np.float32)
    call = f"y = Hardmax <axis = {axis}> (x)"
    text = f"g (float[3,7,5] x) => (float[3,7,5] y) {{ {call} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    y = evaluate_graph(load_model(model), {"x": x})["y"]
    # Before opset 13, Hardmax flattened `axis` and all later axes to the columns of a matrix.
    rows = x if opset > 11 else x.reshape(int(np.prod(x.shape[: axis % 3])), -1)
    along = axis if opset > 11 else 1
    due = np.zeros_like(rows)
    np.put_along_axis(due, np.argmax(rows, along, keepdims=True), 1, along)
    np.testing.assert_array_equal(y, due.reshape(x.shape))
