"""Compiles for a cluster use meshes without plan files, and add a lean plan beside the fastest
plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tcc.artifact import read_manifest
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.options import read_options

from tests.draws import RNG, seeded

from .test_plans import tcc

CPU = "x86-64-v3"  # plans depend on the prices of this processor
ROWS, WIDTH, HIDDEN = 64, 64, 4096
WEIGHTS = 2 * WIDTH * HIDDEN * 4
with seeded("lean plans"):
    X = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
    FIRST, SECOND = (
        RNG.normal(size=shape).astype(np.float32) / 16
        for shape in ((WIDTH, HIDDEN), (HIDDEN, WIDTH))
    )


def save(folder: Path) -> Path:
    graph = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{ROWS}, {WIDTH}] x) => (float[{ROWS}, {WIDTH}] y) {{
          h = MatMul(x, first) r = Relu(h) y = MatMul(r, second) }}"""
    )
    for name, array in (("first", FIRST), ("second", SECOND)):
        graph.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(graph, folder / "m.onnx")
    return folder / "m.onnx"


def cluster(path: Path, hosts: int, ranks: int, flops: float, latency: float) -> Path:
    names = "abcd"[:hosts]
    between = [[a, b] for a in names for b in names if a <= b]
    link = {"kind": "any", "bytes": 0, "latency_s": latency, "bytes_per_s": 1e12}
    row = {"ranks": ranks, "memory_bytes": 1 << 34, "flops": flops}
    path.write_text(json.dumps({
        "version": 1,
        "hosts": [{"name": name, **row} for name in names],
        "links": [{"between": pair, **link} for pair in between],
    }))  # fmt: skip
    return path


def assert_right(folder: Path, ranks: int) -> None:
    x, first, second = (array.astype(np.float64) for array in (X, FIRST, SECOND))
    reference = np.maximum(x @ first, 0) @ second
    for rank in range(ranks):
        output = np.load(folder / f"out{rank}" / "y.npy")
        np.testing.assert_allclose(output, reference, rtol=0, atol=1e-5 * np.abs(reference).max())


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles a model for one and two ranks; an exchange takes most of the time of two ranks."""
    folder = tmp_path_factory.mktemp("lean")
    model = save(folder)
    ended = tcc(Path(), folder, "plan", "m.onnx", "--cpu", CPU, "--ranks", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    seconds = json.loads(ended.stdout)["one_rank_seconds"]
    file = cluster(folder / "c.json", 1, 2, 4 * ROWS * WIDTH * HIDDEN / seconds, 0.85 * seconds)
    options = read_options({"cpu": CPU, "jobs": 1, "ranks": "1,2", "cluster": file})
    compile_model(model, options, folder / "m.so")
    np.save(folder / "x.npy", X)
    return folder


def needs(entry: dict[str, Any]) -> int:
    return int(entry["weights"]["bytes"] + entry["arena_bytes"])


def test_memory_takes_the_lean_plan_of_a_compile(
    comm_library: Path, lean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, fast, small = read_manifest(lean / "m.so")["variants"]
    assert fast["weights"]["offsets"] == [one["weights"]["offset"]] * 2
    assert (small["ranks"], small["plan"]) == (2, 1)
    assert small["weights"]["bytes"] < 0.6 * fast["weights"]["bytes"]
    words = ("run", "m.so", "--input", "x=@x.npy", "--nproc", "2", "--output", "out{rank}")
    for memory in (2 * needs(fast), needs(small) + (64 << 10)):
        monkeypatch.setenv("TCC_MEMORY", str(memory))
        ended = tcc(comm_library, lean, *words)
        assert ended.returncode == 0, ended.stderr
        assert_right(lean, 2)
    monkeypatch.setenv("TCC_MEMORY", str(needs(small) - 1))
    assert tcc(comm_library, lean, *words).returncode != 0


def test_plans_of_clusters_name_the_lean_plan(lean: Path) -> None:
    process = tcc(
        Path(), lean, "plan", "m.onnx", "--cpu", CPU, "--ranks", "2", "--cluster", "c.json"
    )
    assert "tcc compile writes a plan of least memory too" in " ".join(process.stdout.split())
    words = (
        "plan",
        "m.onnx",
        "--cpu",
        CPU,
        "--ranks",
        "2",
        "--cluster",
        "c.json",
        "--objective",
        "memory",
    )
    least = json.loads(tcc(Path(), lean, *words, "--json").stdout)
    assert least["rank_weight_bytes"] == WEIGHTS // 2
    assert least["lean"] is None


def test_a_compile_for_a_cluster_divides_on_its_mesh(comm_library: Path, tmp_path: Path) -> None:
    model = save(tmp_path)
    file = cluster(tmp_path / "c.json", 2, 2, 1e8, 1e-9)
    options = read_options({"jobs": 1, "ranks": "1,4", "cluster": file})
    compile_model(model, options, tmp_path / "m.so")
    np.save(tmp_path / "x.npy", X)
    words = ("run", "m.so", "--input", "x=@x.npy", "--nproc", "4", "--output", "out{rank}")
    ended = tcc(comm_library, tmp_path, *words)
    assert ended.returncode == 0, ended.stderr
    assert_right(tmp_path, 4)
    _, divided = read_manifest(tmp_path / "m.so")["variants"]
    assert divided["weights"]["bytes"] < 0.3 * WEIGHTS


def test_clusters_that_no_plan_uses_are_refused(tmp_path: Path) -> None:
    model, file = save(tmp_path), cluster(tmp_path / "c.json", 2, 2, 1e8, 1e-9)
    for ranks, what in (("1", "no plan uses the cluster"), ("8", "too few ranks")):
        options = read_options({"ranks": ranks, "cluster": file})
        with pytest.raises(UserError, match=what):
            compile_model(model, options, tmp_path / "m.so")
        assert not (tmp_path / "m.so").exists()
