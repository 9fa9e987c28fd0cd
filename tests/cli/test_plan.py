"""`tcc plan` writes plans, and a compile uses them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper
from tcc.cli.plan import plan
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.options import read_options

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[8, 64] x) => (float[8, 64] y) {
  h = MatMul(x, first)
  r = Relu(h)
  y = MatMul(r, second)
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(1)
    for name, shape in (("first", (64, 4096)), ("second", (4096, 64))):
        weight = rng.normal(size=shape).astype(np.float32)
        graph.graph.initializer.append(numpy_helper.from_array(weight, name))
    path = tmp_path_factory.mktemp("plan") / "model.onnx"
    onnx.save(graph, path)
    return path


def output(*arguments: str | Path) -> str:
    result = CliRunner().invoke(plan, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_table_has_each_node_and_the_exchanges_of_ranks(model: Path) -> None:
    text = output(model, "--ranks", "2")
    assert "split(1), split(0) -> partial(sum)" in text
    assert "2 ranks exchange: 1 all_reduce; a rank hands over 2 KiB in a run" in text
    assert "weights: 2 MiB, of which a rank has 1 MiB" in text


def test_an_edited_plan_is_compiled(model: Path, tmp_path: Path) -> None:
    path, artifact = tmp_path / "plan.json", tmp_path / "model.so"
    output(model, "--ranks", "2", "-o", path)
    table = json.loads(path.read_text())
    assert {row["node"] for row in table["nodes"]} == {"h", "r", "y"}
    for row in table["nodes"]:
        row["strategy"] = "whole -> whole" if row["node"] == "r" else "whole, whole -> whole"
    path.write_text(json.dumps(table))
    options = read_options({"ranks": "2", "plan": [path]})
    undivided = compile_model(model, options, artifact).summary
    divided = compile_model(model, read_options({"ranks": "2"}), artifact).summary
    assert undivided.variants[0].weights > 1.9 * divided.variants[0].weights


def test_equal_plans_are_equal_files(model: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path in paths:
        output(model, "--ranks", "4", "-o", path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second


def test_a_plan_is_drawn(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    output(model, "--ranks", "2", "-o", path)
    assert path.read_text().startswith("<svg")
    assert "all_reduce" in path.read_text()


def test_strategies_of_a_node_are_priced(model: Path) -> None:
    records = json.loads(output(model, "--ranks", "2", "--explain", "h", "--json"))
    assert [r["strategy"] for r in records if r["chosen"]] == ["whole, split(1) -> split(1)"]


@pytest.mark.parametrize("ranks", ["1", "2,4"])
def test_a_plan_is_for_one_number_of_ranks(model: Path, ranks: str) -> None:
    with pytest.raises(UserError, match="one number of ranks"):
        output(model, "--ranks", ranks)


def test_compiles_use_every_plan_once(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    output(model, "--ranks", "2", "-o", path)
    with pytest.raises(UserError, match="no rank uses the plan"):
        compile_model(model, read_options({"ranks": "4", "plan": path}), tmp_path / "model.so")
    options = read_options({"ranks": "2", "plan": [path, path]})
    with pytest.raises(UserError, match="a plan is given twice"):
        compile_model(model, options, tmp_path / "model.so")


def test_a_cluster_gives_ranks_and_speeds(model: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    host = {"name": "a", "ranks": 2, "memory_bytes": 1 << 30, "flops": 1e11}
    link = {"between": ["a", "a"], "kind": "any", "bytes": 0, "latency_s": 1, "bytes_per_s": 1e3}
    cluster.write_text(json.dumps({"version": 1, "hosts": [host], "links": [link]}))
    assert "2 ranks exchange: nothing" in output(model, "--cluster", cluster)
    with pytest.raises(UserError, match="too few ranks"):
        output(model, "--cluster", cluster, "--ranks", "4")


def test_a_right_plan_is_proved_and_a_changed_one_refused(model: Path, tmp_path: Path) -> None:
    path, cluster = tmp_path / "plan.json", tmp_path / "cluster.json"
    output(model, "--ranks", "2", "-o", path)
    text = output(model, "--check", path)
    assert "all_reduce  1 in a run, to which a rank hands 2 KiB" in text
    assert text.endswith("the plan is right\n")
    proof = json.loads(output(model, "--check", path, "--json"))
    assert proof["costs"] == {"all_reduce": [1, 2048]}
    host = {"name": "small", "ranks": 2, "memory_bytes": 1 << 20, "flops": 1e11}
    cluster.write_text(json.dumps({"version": 1, "hosts": [host], "links": []}))
    with pytest.raises(UserError, match="memory of host small"):
        output(model, "--check", path, "--cluster", cluster)
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "exchanges": {}}))
    with pytest.raises(UserError, match="does not pay every all_reduce"):
        output(model, "--check", path)


def test_plans_of_meshes_are_proved_and_drawn(model: Path, tmp_path: Path) -> None:
    path, one, cluster = (tmp_path / f"{name}.json" for name in ("plan", "one", "cluster"))
    hosts = [{"name": n, "ranks": 2, "memory_bytes": 1 << 30, "flops": 1e11} for n in "ab"]
    cluster.write_text(json.dumps({"version": 1, "hosts": hosts, "links": []}))
    picture = tmp_path / "plan.svg"
    output(model, "--cluster", cluster, "-o", path)
    output(model, "--cluster", cluster, "-o", picture)
    assert picture.read_text().startswith("<svg")
    assert "the plan is right" in output(model, "--check", path)
    assert "the plan is right" in output(model, "--check", path, "--cluster", cluster)
    output(model, "--ranks", "4", "-o", one)
    assert "the plan is right" in output(model, "--check", one, "--cluster", cluster)


@pytest.mark.parametrize(
    "flags",
    [
        ("-o", "x.json"), ("--explain", "h"), ("--plan", "p.json"), ("--objective", "ranks"),
        ("--costs", "zero-links"),
    ],
)  # fmt: skip
def test_a_check_does_nothing_else(model: Path, flags: tuple[str, str]) -> None:
    with pytest.raises(UserError, match="only proves"):
        output(model, "--check", "plan.json", *flags)
