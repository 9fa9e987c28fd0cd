"""The evaluator agrees with ONNX Runtime on control flow of imported models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import graph_text
from tcc.ir.graph.verify import verify_graph
from tcc.ops import OPS

from tests.lib.oracle.graph.parse import parse_graph

LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[n] x, int64 trips, bool go) => (float[n] last, float[r, n] rows, float[k] kept)
{
  last, rows = Loop (trips, go, x) <body = step (int64 i, bool on, float[n] s) =>
      (bool next, float[n] t, float[n] row) {
    j = Cast <to = 1> (i)
    t = Add (s, j)
    row = Mul (t, x)
    total = ReduceSum <keepdims = 0> (t)
    limit = Constant <value = float {40.0}> ()
    next = Less (total, limit)
  }>
  zero = Constant <value = float {3.0}> ()
  mask = Greater (last, zero)
  kept = Compress (last, mask)
}
"""

IF = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[n, 4] x, bool c) => (float[a, b] y)
{
  twice = Add (x, x)
  y = If (c) <
    then_branch = yes () => (float[a1, b1] p) { p = Transpose (twice) },
    else_branch = no () => (float[a2, b2] q) { q = Concat <axis = 0> (x, twice) }
  >
  }
"""

SCAN = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[3] start, float[3, n] x, float[n, 3] z) => (float[3] last, float[3, n] sums)
{
  last, sums = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
      scan_output_axes = [1], scan_output_directions = [1],
      body = step (float[3] s, float[3] a, float[3] b) => (float[3] t, float[3] u) {
    ab = Mul (a, b)
    t = Add (s, ab)
    u = Identity (t)
  }> (start, x, z)
}
"""


def check(text: str, feeds: dict[str, np.ndarray[Any, Any]]) -> None:
    model = onnx.parser.parse_model(text)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feeds)
    atol = 1e-6 * sum(np.abs(x).sum() for x in feeds.values() if x.dtype == np.float32)
    graph = load_model(model)
    verify_graph(graph)
    again = parse_graph(graph_text(graph), OPS, graph.store)
    assert graph_text(again) == graph_text(graph)
    for form in (graph, again):
        outputs = evaluate_graph(form, feeds)
        for output, array in zip(session.get_outputs(), expected, strict=True):
            if array.size:
                np.testing.assert_allclose(outputs[output.name], array, rtol=1e-6, atol=atol)
            else:  # ONNX Runtime loses the sizes of rows if no iteration ran
                assert outputs[output.name].shape[0] == array.shape[0] == 0


@pytest.mark.parametrize(("trips", "go"), [(3, True), (9, True), (0, True), (4, False)])
def test_loop(trips: int, go: bool) -> None:
    x = np.array([1, 2, 3, 4], np.float32)
    check(LOOP, {"x": x, "trips": np.array(trips), "go": np.array(go)})


@pytest.mark.parametrize("taken", [True, False])
def test_branches_of_different_shape(taken: bool) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    check(IF, {"x": x, "c": np.array(taken)})


def test_scan_with_axes_and_directions() -> None:
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal(s).astype(np.float32) for s in ((3, 5), (5, 3)))
    check(SCAN, {"start": np.zeros(3, np.float32), "x": x, "z": z})
