"""Each rank keeps its own part of the states: the heads of a KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tcc.artifact import load, read_manifest
from tcc.driver import compile_model
from tcc.options import read_options

from tests.draws import RNG, seeded
from tests.ranks import on_ranks

HEADS, ROWS, SIZE, WIDTH = 4, 7, 64, 256
CACHE, GROWN = f"float[{HEADS}, {ROWS}, {SIZE}]", f"float[{HEADS}, {ROWS + 1}, {SIZE}]"

TEXT = f"""
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, {WIDTH}] x, {CACHE} past_k, {CACHE} past_v)
  => (float[1, {WIDTH}] y, {GROWN} k, {GROWN} v)
<int64[3] heads = {{1, {HEADS}, {SIZE}}}, int64[2] joined = {{1, {WIDTH}}}> {{
  q0 = MatMul(x, wq)  q1 = Reshape(q0, heads)  q = Transpose <perm = [1, 0, 2]> (q1)
  k0 = MatMul(x, wk)  k1 = Reshape(k0, heads)  k2 = Transpose <perm = [1, 0, 2]> (k1)
  v0 = MatMul(x, wv)  v1 = Reshape(v0, heads)  v2 = Transpose <perm = [1, 0, 2]> (v1)
  k = Concat <axis = 1> (past_k, k2)
  v = Concat <axis = 1> (past_v, v2)
  kt = Transpose <perm = [0, 2, 1]> (k)
  s = MatMul(q, kt)
  p = Softmax <axis = 2> (s)
  o0 = MatMul(p, v)  o1 = Transpose <perm = [1, 0, 2]> (o0)  o = Reshape(o1, joined)
  y = MatMul(o, wo)
}}
"""

with seeded("rank states"):
    WEIGHTS = {
        name: (RNG.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32)
        for name in ("wq", "wk", "wv", "wo")
    }
    X = RNG.standard_normal((1, WIDTH)).astype(np.float32)
    PAST = {name: RNG.standard_normal((HEADS, ROWS, SIZE)).astype(np.float32) for name in "kv"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")
    model = onnx.parser.parse_model(TEXT)
    for name, array in WEIGHTS.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    states = ["past_k=k", "past_v=v"]
    options = read_options({"ranks": "1,2,4", "state": states, "jobs": 1})
    compile_model(model, options, folder / "decode.so")
    return folder


def reference() -> dict[str, np.ndarray[Any, Any]]:
    """Returns the results in float64."""

    def heads(name: str) -> np.ndarray[Any, Any]:
        rows = X.astype(np.float64) @ WEIGHTS[name]
        return rows.reshape(1, HEADS, SIZE).transpose(1, 0, 2)

    k, v = (np.concatenate([PAST[n], heads(f"w{n}")], 1) for n in "kv")
    scores = np.exp(heads("wq") @ k.transpose(0, 2, 1))
    outs = scores / scores.sum(-1, keepdims=True) @ v
    return {"y": outs.transpose(1, 0, 2).reshape(1, WIDTH) @ WEIGHTS["wo"], "k": k, "v": v}


def inputs(first: int, count: int) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the inputs of a rank that holds `count` heads from `first` on, with room for the rows
    that a run appends."""
    caches = {}
    for name, past in PAST.items():
        caches[f"past_{name}"] = np.zeros((count, ROWS + 1, SIZE), np.float32)
        caches[f"past_{name}"][:, :ROWS] = past[first : first + count]
    return {"x": X, **caches}


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_keep_their_heads(comm_library: Path, folder: Path, ranks: int) -> None:
    count, expected = HEADS // ranks, reference()
    feeds = [inputs(rank * count, count) for rank in range(ranks)]
    results = on_ranks(folder, comm_library, {"decode": feeds})["decode"]
    for rank, outputs in enumerate(results):
        np.testing.assert_allclose(outputs["y"], expected["y"], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(outputs["y"], results[0]["y"])
        for name in "kv":
            part = expected[name][rank * count : (rank + 1) * count]
            np.testing.assert_allclose(outputs[name], part, rtol=0, atol=1e-5)


def test_one_process_has_all_heads(folder: Path) -> None:
    results = load(folder / "decode.so").run(inputs(0, HEADS))
    for name, exact in reference().items():
        np.testing.assert_allclose(results[name], exact, rtol=0, atol=1e-5)


def test_the_manifest_has_the_sizes_of_each_plan(folder: Path) -> None:
    manifest = read_manifest(folder / "decode.so")
    shapes = [
        {port["name"]: port["shape"] for port in (variant.get("inputs") or manifest["inputs"])}
        for variant in manifest["variants"]
    ]
    assert [shape["past_k"][0] for shape in shapes] == [4, 2, 1]
    assert [shape["x"] for shape in shapes] == [[1, WIDTH]] * 3
