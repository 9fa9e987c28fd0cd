"""If there are more ranks than key heads, neighbouring ranks keep a cache of the same head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.commands import command
from tests.draws import RNG, seeded
from tests.ranks import on_ranks

Array = np.ndarray[Any, np.dtype[Any]]
RANKS, HEADS, SHARED, ROWS, SIZE = 4, 8, 2, 6, 32
WIDTH, OWN = HEADS * SIZE, SHARED * SIZE
CACHE, GROWN = f"float[{SHARED}, {ROWS}, {SIZE}]", f"float[{SHARED}, {ROWS + 1}, {SIZE}]"
TEXT = f"""
<ir_version: 8, opset_import: ["" : 17]>
decode (float[1, {WIDTH}] x, {CACHE} past_k, {CACHE} past_v)
  => (float[1, {WIDTH}] y, {GROWN} k, {GROWN} v)
<int64[3] heads = {{1, {HEADS}, {SIZE}}}, int64[3] shared = {{1, {SHARED}, {SIZE}}},
 int64[4] one = {{{SHARED}, 1, {ROWS + 1}, {SIZE}}},
 int64[4] copies = {{{SHARED}, {HEADS // SHARED}, {ROWS + 1}, {SIZE}}},
 int64[3] all = {{{HEADS}, {ROWS + 1}, {SIZE}}}, int64[2] joined = {{1, {WIDTH}}}> {{
  q0 = MatMul(x, wq)  q1 = Reshape(q0, heads)  q = Transpose <perm = [1, 0, 2]> (q1)
  k0 = MatMul(x, wk)  k1 = Reshape(k0, shared)  k2 = Transpose <perm = [1, 0, 2]> (k1)
  v0 = MatMul(x, wv)  v1 = Reshape(v0, shared)  v2 = Transpose <perm = [1, 0, 2]> (v1)
  k = Concat <axis = 1> (past_k, k2)
  v = Concat <axis = 1> (past_v, v2)
  k3 = Reshape(k, one)  k4 = Expand(k3, copies)  k5 = Reshape(k4, all)
  v3 = Reshape(v, one)  v4 = Expand(v3, copies)  v5 = Reshape(v4, all)
  kt = Transpose <perm = [0, 2, 1]> (k5)
  s = MatMul(q, kt)
  p = Softmax <axis = 2> (s)
  o0 = MatMul(p, v5)  o1 = Transpose <perm = [1, 0, 2]> (o0)  o = Reshape(o1, joined)
  y = MatMul(o, wo)
}}
"""

with seeded("shared heads"):
    WEIGHTS = {
        name: (RNG.standard_normal((WIDTH, columns)) / 16).astype(np.float32)
        for name, columns in {"wq": WIDTH, "wk": OWN, "wv": OWN, "wo": WIDTH}.items()
    }
    X = RNG.standard_normal((1, WIDTH)).astype(np.float32)
    PAST = {name: RNG.standard_normal((SHARED, ROWS, SIZE)).astype(np.float32) for name in "kv"}


def reference() -> dict[str, Array]:
    """Returns the results in float64; head h reads the keys of head h // 4."""

    def heads(name: str) -> Array:
        return (X.astype(np.float64) @ WEIGHTS[name]).reshape(1, -1, SIZE).swapaxes(0, 1)

    k, v = (np.concatenate([PAST[n], heads(f"w{n}")], 1) for n in "kv")
    q, outs = heads("wq"), []
    for head in range(HEADS):
        scores = np.exp(q[head] @ k[head * SHARED // HEADS].T)
        outs.append(scores / scores.sum() @ v[head * SHARED // HEADS])
    return {"y": np.concatenate(outs, 1) @ WEIGHTS["wo"], "k": k, "v": v}


def tcc(library: Path, folder: Path, *words: str) -> None:
    states = ("--state", "past_k=k", "--state", "past_v=v", "--ranks", str(RANKS))
    ended = command(folder, *words, *states, TCC_COMM_LIBRARY=str(library))
    assert ended.returncode == 0, ended.stderr


def test_neighbour_ranks_keep_the_head_that_they_share(comm_library: Path, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(TEXT)
    for name, array in WEIGHTS.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "decode.onnx")
    tcc(comm_library, tmp_path, "plan", "decode.onnx", "-o", "plan.json")
    plan = json.loads((tmp_path / "plan.json").read_text())
    cache = "split(0, copies=2)"
    texts = {"softmax": "split(0) -> split(0)", "concat": f"{cache}, {cache} -> {cache}"}
    rows = [row for row in plan["nodes"] if row["op"] in texts]
    assert sorted(row["op"] for row in rows) == ["concat", "concat", "softmax"]
    plan["nodes"] = [row | {"strategy": texts[row["op"]]} for row in rows]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    tcc(comm_library, tmp_path, "compile", "decode.onnx", "--plan", "plan.json")

    feeds, expected = [], reference()
    for rank in range(RANKS):
        caches = {f"past_{n}": np.zeros((1, ROWS + 1, SIZE), np.float32) for n in "kv"}
        for name, past in PAST.items():
            caches[f"past_{name}"][:, :ROWS] = past[rank // 2]
        feeds.append({"x": X, **caches})
    results = on_ranks(tmp_path, comm_library, {"decode": feeds})["decode"]
    for rank, outputs in enumerate(results):
        np.testing.assert_allclose(outputs["y"], expected["y"], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(outputs["y"], results[0]["y"])
        for name in "kv":
            part = expected[name][rank // 2 : rank // 2 + 1]
            np.testing.assert_allclose(outputs[name], part, rtol=0, atol=1e-5)
