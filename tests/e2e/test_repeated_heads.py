"""Attention whose exports repeat shared heads: readers read the heads where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import numpy_helper
from tcc.debug import Trace
from tcc.frontends import load_model
from tcc.passes.pipeline import run_pipeline

from tests.closeness import assert_within
from tests.draws import RNG
from tests.passes.layout.test_choose import planner
from tests.passes.placing import place_graph

Array = np.ndarray[Any, np.dtype[Any]]
# Keys as exporters write them: transposed, with or without a scalar factor behind the repetition.
KEYS = {
    "scaled": "t = Transpose <perm = [0, 1, 3, 2]> (rk)  u = Mul (t, c)  z = Mul (q, c)",
    "scaled first": "m = Mul (rk, c)  u = Transpose <perm = [0, 1, 3, 2]> (m)  z = Mul (q, c)",
    "plain": "u = Transpose <perm = [0, 1, 3, 2]> (rk)  z = Mul (q, d)",
}


def model(keys: str, batch: str, heads: int, share: int, width: int, rows: str) -> onnx.ModelProto:
    """Attention with an additive mask; `share` heads share keys of [batch, head, token, width]."""
    shared = f"float[{batch}, {heads // share}, n, {width}]"
    repeated = "  ".join(
        f"x{x} = Unsqueeze ({x}, two)  e{x} = Expand (x{x}, copies)  r{x} = Reshape (e{x}, all)"
        for x in "kv"
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[{batch}, {heads}, {rows}, {width}] q, {shared} k, {shared} v,
           float[1, 1, {rows}, n] mask) => (float[{batch}, {heads}, {rows}, {width}] y)
        <int64[1] two = {{2}}, int64[5] copies = {{1, 1, {share}, 1, 1}},
         int64[4] all = {{0, {heads}, -1, {width}}}> {{
          {repeated}  {KEYS[keys]}
          s = MatMul (z, u)  a = Add (s, mask)  p = Softmax <axis = -1> (a)  y = MatMul (p, rv)
        }}"""
    )
    constants = {"c": np.float32(width**-0.25), "d": np.float32(width**-0.5)}
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in read
    )
    return proto


def exact(q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, Array]:
    """The attention in float64, and the weighted sums of the magnitudes of the values."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5 + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return p @ v, p @ np.abs(v)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("rows", ["1", "64", "seq"])
def test_no_kernel_stores_repeated_heads(keys: str, rows: str) -> None:
    graph = run_pipeline(load_model(model(keys, "1", 8, 4, 64, rows)), 3, Trace())
    shapes = [v.type.shape for s in place_graph(graph, model=planner()).steps for v in s.results]
    repeated = [shape for shape in shapes if {"n", "64", "8"} <= {*map(str, shape)}]
    assert not repeated


@pytest.mark.parametrize(
    ("keys", "batch", "heads", "share", "width", "rows", "lengths"),
    [
        ("scaled", "1", 8, 4, 64, "seq", ((1, 1), (1, 1500), (2, 2), (100, 100), (70, 511))),
        ("scaled", "1", 8, 8, 40, "1", ((1, 1), (1, 2), (1, 100), (1, 511))),
        ("scaled first", "batch", 6, 3, 80, "seq", ((1, 2), (17, 100), (3, 511))),
        ("plain", "batch", 4, 2, 112, "seq", ((1, 1), (2, 100), (65, 129))),
    ],
)
def test_results_are_those_of_repeated_heads(
    keys: str, batch: str, heads: int, share: int, width: int, rows: str,
    lengths: tuple[tuple[int, int], ...],
) -> None:  # fmt: skip
    module = tcc.compile(model(keys, batch, heads, share, width, rows))
    for seq, n in lengths:
        b = 1 if batch == "1" else 3
        q = RNG.standard_normal((b, heads, seq, width)).astype(np.float32)
        k, v = (
            RNG.standard_normal((b, heads // share, n, width)).astype(np.float32) for _ in range(2)
        )
        visible = np.tri(seq, n, n - seq, dtype=bool)
        mask = np.where(visible, 0, -np.inf).astype(np.float32)[None, None]
        expected, size = exact(q, k, v, mask)
        y = module.run({"q": q, "k": k, "v": v, "mask": mask})["y"]
        assert_within(y, expected, 1e-5 * size)


def test_results_are_equal_on_any_number_of_threads(tmp_path: Path) -> None:
    tcc.compile(model("scaled", "1", 8, 4, 64, "seq")).save(tmp_path / "model.so")
    shapes = {"q": (1, 8, 70, 64), "k": (1, 2, 511, 64), "v": (1, 2, 511, 64)}
    feeds = {n: RNG.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    feeds["mask"] = RNG.standard_normal((1, 1, 70, 511)).astype(np.float32)
    one, *other_outputs = (
        tcc.load(tmp_path / "model.so", threads=n).run(feeds)["y"] for n in (1, 2, 4)
    )
    for other in other_outputs:
        np.testing.assert_array_equal(one, other)
