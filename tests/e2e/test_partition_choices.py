"""The division of nodes among ranks is a decision that is listed and can be forced."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tcc.cli.decisions import decision_records
from tcc.distributed.divisions import read_shardings
from tcc.distributed.plan import model_hash
from tcc.driver import compile_model, divided_graph, model_choices
from tcc.errors import UserError
from tcc.options import read_options
from tcc.schedule.alternatives import digest_of, read_site

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[8, 64] x) => (float[8, 64] y) {
  h = MatMul(x, w0)
  r = Relu(h)
  z = MatMul(r, w1)
  h2 = MatMul(z, w2)
  r2 = Relu(h2)
  y = MatMul(r2, w3)
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    proto, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(5)
    for number in range(4):
        shape = (64, 2048) if number % 2 == 0 else (2048, 64)
        array = rng.standard_normal(shape).astype(np.float32) / 32
        proto.graph.initializer.append(numpy_helper.from_array(array, f"w{number}"))
    path = tmp_path_factory.mktemp("choices") / "model.onnx"
    onnx.save(proto, path)
    return path


def records(model: Path, ranks: str = "1,2") -> list[dict[str, Any]]:
    return list(
        decision_records(model_choices(model, read_options({"ranks": ranks})), None, every=True)
    )


def compiled(model: Path, name: str, **options: object) -> bytes:
    path = model.parent / name / "model.so"
    path.parent.mkdir()
    values = {"ranks": "1,2", "name": "model", "jobs": 1, **options}
    compile_model(model, read_options(values), path)
    return path.read_bytes()


def written(model: Path, name: str, lines: Iterable[Mapping[str, Any]]) -> Path:
    path = model.parent / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def partitions(model: Path, ranks: str = "1,2") -> dict[str, dict[str, Any]]:
    """Returns the decisions of strategies, by the name of the node."""
    rows = records(model, ranks)
    return {row["place"]: row for row in rows if row["kind"] == "partition"}


def test_each_node_that_can_be_divided_is_a_decision(model: Path) -> None:
    rows = partitions(model)
    graph = divided_graph(model, read_options({"ranks": "2"}))
    assert [*rows] == [node.outputs[0].name for node in graph.nodes]
    nodes = {node.outputs[0].name: node for node in graph.nodes}
    for name, row in rows.items():
        assert len(row["site"]) == 32
        assert read_site(row["text"]).digest == row["site"]
        assert row["rule"].replace("whole", "") in (", ->  ", " -> ", ",  -> ")
        for option in row["alternatives"]:
            shardings = read_shardings(option["text"])
            assert [*map(len, shardings)] == [len(nodes[name].inputs), len(nodes[name].outputs)]
            assert " -> ".join(", ".join(map(repr, side)) for side in shardings) == option["text"]
            assert option["digest"] == digest_of(option["text"])


def test_equal_nodes_have_numbered_sites_and_ranks_have_their_own(model: Path) -> None:
    rows = partitions(model)
    first, second = (read_site(rows[name]["text"]) for name in ("h", "h2"))
    assert (first.content, first.number, second.number) == (second.content, 0, 1)
    other = read_site(partitions(model, "4")["h"]["text"])
    assert other.content == first.content.replace("2 ranks", "4 ranks")


def test_the_choices_that_were_made_give_equal_bytes(model: Path) -> None:
    rows = [row for row in records(model) if row["kind"] == "partition"]
    assert {row["alternative"] for row in rows} > {"whole, split(1) -> split(1)"}
    every = written(model, "made", rows)
    assert compiled(model, "forced", choices=every) == compiled(model, "plain")


def test_a_forced_choice_has_the_effect_of_a_plan(model: Path) -> None:
    text = "whole, whole -> whole"
    row = partitions(model)["h2"]
    assert row["alternative"] != text
    choices = written(model, "other", [{"site": row["site"], "alternative": digest_of(text)}])
    plan = model.parent / "plan.json"
    head = {"tcc_plan": 1, "ranks": 2, "nodes": [{"node": "h2", "strategy": text}]}
    plan.write_text(json.dumps({**head, "model": hash_of(model)}))
    by_choice = compiled(model, "by-choice", choices=choices)
    assert by_choice == compiled(model, "by-plan", plan=plan)
    assert by_choice != compiled(model, "neither")
    plan.write_text(plan.read_text().replace(text, "whole, split(1) -> split(1)"))
    with pytest.raises(UserError, match="divide a node differently"):
        compiled(model, "both", plan=plan, choices=choices)


def test_the_strategies_of_a_mesh_are_one_decision(model: Path) -> None:
    plan = model.parent / "mesh.json"
    head = {"tcc_plan": 1, "ranks": 4, "mesh": [2, 2], "nodes": []}
    plan.write_text(json.dumps({**head, "model": hash_of(model)}))
    options = {"ranks": "1,4", "plan": plan}
    choices = decision_records(model_choices(model, read_options(options)), None, every=True)
    row = next(r for r in choices if r["kind"] == "partition" and r["place"] == "h2")
    assert "2x2 ranks" in row["text"]
    text = "whole, split(1) -> split(1) | whole, whole -> whole"
    assert text in {option["text"] for option in row["alternatives"]}
    assert row["alternative"] != text
    forced = written(model, "mesh", [{"site": row["site"], "alternative": digest_of(text)}])
    by_choice = compiled(model, "mesh-by-choice", **options, choices=forced)
    nodes = [{"node": "h2", "strategy": text.split(" | ")}]
    plan.write_text(json.dumps({**head, "nodes": nodes, "model": hash_of(model)}))
    assert by_choice == compiled(model, "mesh-by-plan", **options)


def hash_of(model: Path) -> str:
    return model_hash(divided_graph(model, read_options({"ranks": "2"})))
