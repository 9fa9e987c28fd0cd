"""Plans for two hosts of two ranks each: the ranks run on this machine and agree with one rank."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tcc.artifact import load, read_manifest

from .test_plans import tcc

LAYER = """
<ir_version: 8, opset_import: ["" : 20]>
layer (float[16, 64] x, int64[3] heads, int64[2] flat) => (float[16, 64] y) {
  q = MatMul(x, wq)
  k = MatMul(x, wk)
  v = MatMul(x, wv)
  q3 = Reshape(q, heads)
  k3 = Reshape(k, heads)
  v3 = Reshape(v, heads)
  qh = Transpose<perm = [1, 0, 2]>(q3)
  kh = Transpose<perm = [1, 2, 0]>(k3)
  vh = Transpose<perm = [1, 0, 2]>(v3)
  s = MatMul(qh, kh)
  p = Softmax<axis = -1>(s)
  m = MatMul(p, vh)
  mt = Transpose<perm = [1, 0, 2]>(m)
  mf = Reshape(mt, flat)
  o = MatMul(mf, wo)
  r = Add(o, x)
  n = LayerNormalization<axis = -1>(r, scale)
  h = MatMul(n, w1)
  g = Gelu(h)
  z = MatMul(g, w2)
  y = Add(z, n)
}
"""
SHAPES = {"wq": (64, 64), "wk": (64, 64), "wv": (64, 64), "wo": (64, 64), "scale": (64,),
          "w1": (64, 256), "w2": (256, 64)}  # fmt: skip
HOSTS = [{"name": name, "ranks": 2, "memory_bytes": 1 << 30, "flops": 1e8} for name in "ab"]
LINKS = [
    {"between": [first, second], "kind": "any", "bytes": 0, "latency_s": late, "bytes_per_s": rate}
    for first, second, late, rate in (
        ("a", "a", 1e-6, 1e10), ("b", "b", 1e-6, 1e10), ("a", "b", 5e-6, 2e9)
    )
]  # fmt: skip


def encoder() -> onnx.ModelProto:
    """Returns an encoder layer."""
    model = onnx.parser.parse_model(LAYER)
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(size=shape).astype(np.float32) / 8 for name, shape in SHAPES.items()}
    arrays |= {"heads": np.array([16, 4, 16]), "flat": np.array([16, 64])}
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for value in [*model.graph.input][1:]:
        model.graph.input.remove(value)
    return model


@pytest.fixture(scope="module")
def folder(comm_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a model, a cluster file, a plan for the cluster, and the artifact."""
    folder = tmp_path_factory.mktemp("mesh")
    onnx.save(encoder(), folder / "model.onnx")
    table = {"version": 1, "hosts": HOSTS, "links": LINKS}
    (folder / "cluster.json").write_text(json.dumps(table))
    ended = tcc(comm_library, folder, "plan", "model.onnx", "--cluster", "cluster.json",
                "-o", "plan.json")  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    ended = tcc(comm_library, folder, "compile", "model.onnx", "--ranks", "1,4",
                "--plan", "plan.json")  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return folder


def test_a_plan_has_a_strategy_for_hosts_and_one_for_their_ranks(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["ranks"], plan["mesh"]) == (4, [2, 2])
    assert all(len(row["strategy"]) == 2 for row in plan["nodes"])
    along = [{row["strategy"][axis] for row in plan["nodes"]} for axis in range(2)]
    assert all("split" in text for texts in along for text in map("".join, along))
    one, four = read_manifest(folder / "model.so")["variants"]
    assert four["weights"]["bytes"] < 0.6 * one["weights"]["bytes"]


def test_ranks_of_two_hosts_agree_with_one_rank(comm_library: Path, folder: Path) -> None:
    x = np.random.default_rng(2).normal(size=(16, 64)).astype(np.float32)
    np.save(folder / "x.npy", x)
    ended = tcc(comm_library, folder, "run", "model.so", "--input", "x=@x.npy", "--nproc", "4",
                "--output", "rank{rank}")  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    ranks = [np.load(folder / f"rank{rank}" / "y.npy") for rank in range(4)]
    reference = load(folder / "model.so").run({"x": x})["y"]
    for array in ranks:
        assert array.tobytes() == ranks[0].tobytes()
        np.testing.assert_allclose(array, reference, rtol=0, atol=1e-5 * np.abs(reference).max())
